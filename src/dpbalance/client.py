"""How does a notebook or a program talk to a server? One method for each endpoint, plain or asynchronous.

    with Client("http://127.0.0.1:8787", token) as client:
        mine = client.submit(devices="all", windows={"latest": 2}, cost=0.1)
        print(client.pipeline(mine["id"])["state"])

Every create goes out under an Idempotency-Key, so it is repeated safely when the connection breaks: `retries` times.
What the server refuses is raised as the error it is there; AsyncClient has the same methods, to be awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import httpx

from dpbalance.clock import RealClock, secret
from dpbalance.errors import Unreachable, of_code

Json = dict[str, Any]
TIMEOUT_S = 60.0
RETRIES = 3
PAUSE_S = 0.5


class Pipeline(TypedDict):
    """A pipeline as the server tells of it."""

    id: str
    analyst: str
    label: str
    state: Literal["pending", "granted", "running", "completed", "failed", "voided", "cancelled", "expired"]
    submitted: float
    weight: float
    loss: float
    max_multiple: float | None
    deadline: float | None
    asked: Json
    seed: int | None
    denial: Json | None
    round: int | None
    grant: int | None
    multiple: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One request, and what of its answer is wanted."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def repeatable(self) -> bool:
        return self.method != "POST" or "Idempotency-Key" in self.headers

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        params = {name: value for name, value in self.params.items() if value is not None}
        return client.build_request(self.method, self.path, params=params, json=self.body, headers=self.headers)


class _Calls:
    """Every endpoint as a call; made once for both clients."""

    @staticmethod
    def create(path: str, body: Any, key: str | None, **params: Any) -> _Call:
        return _Call(method="POST", path=path, body=body, params=params, headers={"Idempotency-Key": key or secret()})

    @staticmethod
    def get(path: str, **params: Any) -> _Call:
        return _Call(method="GET", path=path, params=params)

    def submit(self, ask: Mapping[str, Any], key: str | None) -> _Call:
        return self.create("/v1/pipelines", dict(ask), key)

    def submit_many(self, asks: Iterable[Mapping[str, Any]], key: str | None) -> _Call:
        return self.create("/v1/batches", {"pipelines": [dict(each) for each in asks]}, key)

    def enrol(self, devices: Mapping[str, str | None], key: str | None) -> _Call:
        listed = [{"name": name} | ({"contributor": owner} if owner else {}) for name, owner in devices.items()]
        return self.create("/v1/devices", {"devices": listed}, key)

    def add_blocks(self, blocks: Iterable[tuple[str, str, Any]], key: str | None) -> _Call:
        listed = [{"device": device, "window": window, "budget": budget} for device, window, budget in blocks]
        return self.create("/v1/blocks", {"blocks": listed}, key)

    def change_block(self, device: str, window: str, change: Json) -> _Call:
        return _Call(method="PATCH", path=f"/v1/devices/{device}/blocks/{window}", body=change)

    def put_settings(self, settings: Mapping[str, Any], etag: str) -> _Call:
        return _Call(method="PUT", path="/v1/settings", body=dict(settings), headers={"If-Match": etag})


CALLS = _Calls()


def _answer(response: httpx.Response) -> Any:
    """What the server said, or the error it told of."""
    if response.is_success:
        return response.json()
    try:
        told = response.json()
        code, detail, hint = told["code"], told["detail"], told.get("hint", "")
    except (ValueError, KeyError, TypeError):
        raise Unreachable(f"the server answered {response.status_code} and no problem of ours") from None
    raise of_code(code, detail, hint)


def _options(server: str, token: str, timeout: float, verify: Any) -> Json:
    return {
        "base_url": server,
        "headers": {"Authorization": f"Bearer {token}"},
        "timeout": timeout,
        "verify": verify,
        "trust_env": False,
    }


def _gone(server: str, problem: Exception) -> Unreachable:
    return Unreachable(f"{server} does not answer: {problem or type(problem).__name__}", hint="dpbalance doctor")


class Client:
    """Talks to one server with one token."""

    def __init__(
        self, server: str, token: str, *, timeout: float = TIMEOUT_S, retries: int = RETRIES, verify: Any = True
    ) -> None:
        self.server, self.retries, self._clock = server, retries, RealClock()
        self._http = httpx.Client(**_options(server, token, timeout, verify))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _send(self, call: _Call) -> httpx.Response:
        for left in range(self.retries if call.repeatable else 0, -1, -1):
            try:
                response = self._http.send(call.request(self._http))
                if response.status_code not in (429, 503) or not left:
                    return response
            except httpx.TransportError as problem:
                if not left:
                    raise _gone(self.server, problem) from None
            self._clock.sleep(PAUSE_S)
        raise AssertionError

    def call(self, call: _Call) -> Any:
        """The answer to any call."""
        return _answer(self._send(call))

    def pages(self, path: str, **params: Any) -> Iterator[Json]:
        """Every item of a list, page after page."""
        cursor: str | None = None
        while True:
            told = self.call(CALLS.get(path, cursor=cursor, **params))
            yield from told["items"]
            cursor = told["next"]
            if cursor is None:
                return

    def submit(self, *, key: str | None = None, **ask: Any) -> Pipeline:
        """Submit one pipeline: devices, windows and cost, or blocks; the fields of the API."""
        made: Pipeline = self.call(CALLS.submit(ask, key))
        return made

    def submit_many(self, asks: Iterable[Mapping[str, Any]], *, key: str | None = None) -> list[str]:
        """Submit many: all or none; what they are called."""
        ids: list[str] = self.call(CALLS.submit_many(asks, key))["ids"]
        return ids

    def pipeline(self, id_: str) -> Pipeline:
        found: Pipeline = self.call(CALLS.get(f"/v1/pipelines/{id_}"))
        return found

    def pipelines(self, *, state: str | None = None, analyst: str | None = None) -> Iterator[Json]:
        return self.pages("/v1/pipelines", state=state, analyst=analyst)

    def cancel(self, id_: str) -> Pipeline:
        gone: Pipeline = self.call(_Call(method="DELETE", path=f"/v1/pipelines/{id_}"))
        return gone

    def explain(self, id_: str) -> Json:
        told: Json = self.call(CALLS.get(f"/v1/pipelines/{id_}/explain"))
        return told

    def enrol(self, devices: Mapping[str, str | None], *, key: str | None = None) -> int:
        """Enrol devices, each with its contributor."""
        return int(self.call(CALLS.enrol(devices, key))["count"])

    def add_blocks(self, blocks: Iterable[tuple[str, str, Any]], *, key: str | None = None) -> int:
        """Add blocks as (device, window, budget)."""
        return int(self.call(CALLS.add_blocks(blocks, key))["count"])

    def change_block(self, device: str, window: str, **change: Any) -> Json:
        """Another `budget` or `state`."""
        block: Json = self.call(CALLS.change_block(device, window, change))
        return block

    def run_round(self, *, key: str | None = None) -> Json:
        told: Json = self.call(CALLS.create("/v1/rounds", None, key))
        return told

    def round(self, number: int) -> Json:
        told: Json = self.call(CALLS.get(f"/v1/rounds/{number}"))
        return told

    def preview(self, **by: Any) -> Json:
        """What any scheduler, beta, lam and options would decide now."""
        told: Json = self.call(_Call(method="POST", path="/v1/previews", body=by))
        return told

    def grant(self, number: int) -> Json:
        told: Json = self.call(CALLS.get(f"/v1/grants/{number}"))
        return told

    def statement(self, **of: str) -> list[Json]:
        """Of one device, block, analyst or pipeline."""
        lines: list[Json] = self.call(CALLS.get("/v1/statements", **of))["lines"]
        return lines

    def settings(self) -> tuple[Json, str]:
        """What is set, and its version."""
        response = self._send(CALLS.get("/v1/settings"))
        return _answer(response), response.headers.get("etag", "")

    def put_settings(self, settings: Mapping[str, Any], etag: str) -> Json:
        told: Json = self.call(CALLS.put_settings(settings, etag))
        return told

    def create_token(self, role: str, name: str, *, key: str | None = None, **more: Any) -> Json:
        made: Json = self.call(CALLS.create("/v1/tokens", {"role": role, "name": name, **more}, key))
        return made

    def revoke_token(self, id_: str) -> Json:
        gone: Json = self.call(_Call(method="DELETE", path=f"/v1/tokens/{id_}"))
        return gone


class AsyncClient:
    """The same for asyncio."""

    def __init__(
        self, server: str, token: str, *, timeout: float = TIMEOUT_S, retries: int = RETRIES, verify: Any = True
    ) -> None:
        self.server, self.retries = server, retries
        self._http = httpx.AsyncClient(**_options(server, token, timeout, verify))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def call(self, call: _Call) -> Any:
        """The answer to any call."""
        for left in range(self.retries if call.repeatable else 0, -1, -1):
            try:
                response = await self._http.send(call.request(self._http))
                if response.status_code not in (429, 503) or not left:
                    return _answer(response)
            except httpx.TransportError as problem:
                if not left:
                    raise _gone(self.server, problem) from None
            await asyncio.sleep(PAUSE_S)
        raise AssertionError

    async def pages(self, path: str, **params: Any) -> AsyncIterator[Json]:
        """Every item of a list, page after page."""
        cursor: str | None = None
        while True:
            told = await self.call(CALLS.get(path, cursor=cursor, **params))
            for each in told["items"]:
                yield each
            cursor = told["next"]
            if cursor is None:
                return

    async def submit(self, *, key: str | None = None, **ask: Any) -> Pipeline:
        made: Pipeline = await self.call(CALLS.submit(ask, key))
        return made

    async def submit_many(self, asks: Sequence[Mapping[str, Any]], *, key: str | None = None) -> list[str]:
        ids: list[str] = (await self.call(CALLS.submit_many(asks, key)))["ids"]
        return ids

    async def pipeline(self, id_: str) -> Pipeline:
        found: Pipeline = await self.call(CALLS.get(f"/v1/pipelines/{id_}"))
        return found

    async def cancel(self, id_: str) -> Pipeline:
        gone: Pipeline = await self.call(_Call(method="DELETE", path=f"/v1/pipelines/{id_}"))
        return gone

    async def explain(self, id_: str) -> Json:
        told: Json = await self.call(CALLS.get(f"/v1/pipelines/{id_}/explain"))
        return told

    async def statement(self, **of: str) -> list[Json]:
        lines: list[Json] = (await self.call(CALLS.get("/v1/statements", **of)))["lines"]
        return lines
