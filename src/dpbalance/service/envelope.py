"""What surrounds every request? An id, limits on its body, one log line, its metrics, and an answer to any failure.

Nobody's body is received before their token was found good: whoever has none can hold neither memory nor a place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpbalance.clock import secret, stopwatch
from dpbalance.errors import DPBalanceError, Overloaded, TooLarge
from dpbalance.service.access import Door
from dpbalance.service.config import Config
from dpbalance.service.metrics import Metrics
from dpbalance.service.problems import problem

QUIET = {"/healthz", "/readyz", "/metrics"}
"""Asked every few seconds by machines; not worth a line each."""

ID_MAX = 100


class Body:
    """What one request brings, as it comes in."""

    def __init__(self, envelope: Envelope, receive: Receive) -> None:
        self._all, self._receive = envelope, receive
        self._until: float | None = None
        self.allowed, self.whole, self.taken = False, False, 0

    async def receive(self) -> Message:
        """The next part; refused to whoever has no token, brings too much, or takes too long."""
        if self.whole:
            return await self._receive()
        if not self.allowed:
            raise HTTPException(401, "a token that is known and not over is needed: Authorization: Bearer TOKEN")
        config, now = self._all.config, stopwatch()
        self._until = self._until or now + config.body_limit
        try:
            async with asyncio.timeout(self._until - now):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"the body was not there after {config.body_limit:g} s") from None
        size = len(message.get("body", b""))
        self.taken += size
        self._all.received += size
        self.whole = not message.get("more_body", False)
        if self.taken > config.body_max:
            raise HTTPException(413, f"a request may carry {config.body_max} bytes")
        if self._all.received > config.bodies_max:
            raise HTTPException(503, f"the requests under way carry more than {config.bodies_max} bytes together")
        return message


class Envelope:
    """Pure ASGI, because it is on the way of every status read."""

    def __init__(self, app: ASGIApp, *, door: Door, config: Config, metrics: Metrics, log: Any) -> None:
        self.app, self.door, self.config, self.metrics, self.log = app, door, config, metrics, log
        self.under_way = 0
        """Requests whose token is known."""
        self.strangers = 0
        """All others, but for those that machines ask every few seconds."""
        self.received = 0
        """Bytes of the bodies of all requests under way."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = stopwatch()
        name = _request_id(scope)
        body = Body(self, receive)
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", name.encode()))
                if status >= 400 and not body.whole and _carries(scope):
                    message["headers"].append((b"connection", b"close"))  # what is still to come is not waited for
            await send(message)

        try:
            await self._answer(scope, body, named)
        except DPBalanceError as refusal:
            await problem(type(refusal).__name__, refusal.message, refusal.hint)(scope, receive, named)
        except Exception as failure:
            self.log.error("bug", request=name, error=f"{type(failure).__name__}: {failure}", exc_info=True)
            if status == 0:
                await problem("DPBalanceError", "something nobody foresaw; see the server's log", f"request {name}")(
                    scope, receive, named
                )
        finally:
            self.received -= body.taken
            self._record(scope, name, status, stopwatch() - began)

    async def _answer(self, scope: Scope, body: Body, send: Send) -> None:
        if scope["path"] in QUIET:
            await self.app(scope, body.receive, send)
            return
        token = _header(scope, b"authorization")
        if not self.door.knows(token):
            with self._place("strangers", self.config.strangers_max):
                if not await self.door.opens(token):
                    await self.app(scope, body.receive, send)
                    return
        with self._place("under_way", self.config.connections_max):
            body.allowed = await self.door.opens(token)
            length = _header(scope, b"content-length")
            if length.isdigit() and int(length[:20]) > self.config.body_max:
                raise TooLarge(f"a request may carry {self.config.body_max} bytes", hint="fewer pipelines at once")
            await self.app(scope, body.receive, send)

    @contextmanager
    def _place(self, among: str, most: int) -> Iterator[None]:
        """One of so many."""
        if getattr(self, among) >= most:
            raise Overloaded(f"{most} requests are under way already", hint="the same again in a second")
        setattr(self, among, getattr(self, among) + 1)
        try:
            yield
        finally:
            setattr(self, among, getattr(self, among) - 1)

    def _record(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self.metrics.requests.labels(scope["method"], path, str(status)).inc()
        self.metrics.request_seconds.labels(scope["method"], path).observe(seconds)
        if scope["path"] not in QUIET:
            caller = scope.get("state", {}).get("caller")
            who = None if caller is None else caller.actor
            told = {"method": scope["method"], "path": scope["path"], "status": status, "who": who, "request": name}
            self.log.info("request", **told, ms=round(seconds * 1000, 2))


def _request_id(scope: Scope) -> str:
    for key, value in scope["headers"]:
        if key == b"x-request-id":
            text: str = value.decode("latin-1")
            if text.isascii() and text.isprintable() and 0 < len(text) <= ID_MAX:
                return text
    return secret()[:16]


def _header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""


def _carries(scope: Scope) -> bool:
    return _header(scope, b"content-length") not in ("", "0") or _header(scope, b"transfer-encoding") != ""


def logger(form: str) -> Any:
    """Where lines go: JSON for machines, or lines for people, on stderr; secrets are never given to it."""
    import sys

    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(serializer=json.dumps)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=False),
    ]
    if form == "none":
        processors = [_drop]
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr), processors=processors)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent
