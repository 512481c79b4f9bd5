"""What surrounds every request? An id, a limit on its body, one log line, its metrics, and an answer to any failure."""

from __future__ import annotations

import json
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpbalance.clock import secret, stopwatch
from dpbalance.service.metrics import Metrics
from dpbalance.service.problems import problem

QUIET = {"/healthz", "/readyz", "/metrics"}
"""Asked every few seconds by machines; not worth a line each."""

ID_MAX = 100


class Envelope:
    """Pure ASGI, because it is on the way of every status read."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, body_max: int, under_way_max: int, log: Any) -> None:
        self.app, self.metrics, self.body_max, self.log = app, metrics, body_max, log
        self.under_way, self.under_way_max = 0, under_way_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = stopwatch()
        name = _request_id(scope)
        status = 0
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.body_max:
                raise HTTPException(413, f"a request may carry {self.body_max} bytes")
            return message

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", name.encode()))
            await send(message)

        try:
            self.under_way += 1
            if self.under_way > self.under_way_max:
                sentence = f"{self.under_way_max} requests are under way already"
                await problem("Overloaded", sentence, "the same again in a second")(scope, limited, named)
            elif _length(scope) > self.body_max:
                sentence = f"a request may carry {self.body_max} bytes"
                await problem("TooLarge", sentence, "fewer pipelines at once")(scope, limited, named)
            else:
                await self.app(scope, limited, named)
        except Exception as failure:
            self.log.error("bug", request=name, error=f"{type(failure).__name__}: {failure}", exc_info=True)
            if status == 0:
                await problem("DPBalanceError", "something nobody foresaw; see the server's log", f"request {name}")(
                    scope, receive, named
                )
        finally:
            self.under_way -= 1
            self._record(scope, name, status, stopwatch() - began)

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


def _length(scope: Scope) -> int:
    for key, value in scope["headers"]:
        if key == b"content-length" and value.isdigit():
            return int(value)
    return 0


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
