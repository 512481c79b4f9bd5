"""Who may do what? Tokens, what each role may ask for, and how often."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from fastapi import Request

from dpbalance.clock import Clock, stopwatch
from dpbalance.errors import NotAllowed, NotFound, TooMany, Unauthenticated
from dpbalance.service.database import Database
from dpbalance.service.tables import token

EVERYBODY = frozenset({"analyst", "contributor", "operator", "auditor"})
READERS = EVERYBODY - {"contributor"}
WRITERS = frozenset({"analyst", "operator"})
OWNERS = frozenset({"contributor", "operator"})
OPERATORS = frozenset({"operator"})
SEERS = frozenset({"operator", "auditor"})

RULES: dict[tuple[str, str], frozenset[str]] = {
    ("GET", "/v1/whoami"): EVERYBODY,
    ("POST", "/v1/analysts"): OPERATORS,
    ("GET", "/v1/analysts"): READERS,
    ("GET", "/v1/analysts/{analyst}"): READERS,
    ("PATCH", "/v1/analysts/{analyst}"): OPERATORS,
    ("POST", "/v1/pipelines"): WRITERS,
    ("POST", "/v1/batches"): WRITERS,
    ("GET", "/v1/pipelines"): READERS,
    ("GET", "/v1/pipelines/{pipeline}"): READERS,
    ("DELETE", "/v1/pipelines/{pipeline}"): WRITERS,
    ("GET", "/v1/pipelines/{pipeline}/explain"): READERS,
    ("POST", "/v1/devices"): OWNERS,
    ("GET", "/v1/devices"): EVERYBODY,
    ("GET", "/v1/devices/{device}"): EVERYBODY,
    ("POST", "/v1/blocks"): OWNERS,
    ("GET", "/v1/blocks"): EVERYBODY,
    ("GET", "/v1/devices/{device}/blocks/{window}"): EVERYBODY,
    ("PATCH", "/v1/devices/{device}/blocks/{window}"): OWNERS,
    ("GET", "/v1/rounds"): READERS,
    ("GET", "/v1/rounds/{number}"): READERS,
    ("POST", "/v1/rounds"): OPERATORS,
    ("POST", "/v1/previews"): SEERS,
    ("GET", "/v1/grants"): READERS,
    ("GET", "/v1/grants/{grant}"): READERS,
    ("GET", "/v1/statements"): EVERYBODY,
    ("GET", "/v1/settings"): SEERS,
    ("PUT", "/v1/settings"): OPERATORS,
    ("POST", "/v1/tokens"): OPERATORS,
    ("GET", "/v1/tokens"): SEERS,
    ("DELETE", "/v1/tokens/{token}"): OPERATORS,
}
"""Every endpoint under /v1 and the roles that may use it. One that is missing here is served to nobody."""

TOKENS_REMEMBERED_S = 1.0
"""So long a token is taken for what it was: a revoked one is refused everywhere after this."""

UNKNOWN_REMEMBERED_S = 10.0
"""So long a token that is unknown is not looked up again: nobody guesses one that will be made."""

TOKENS_REMEMBERED = 10_000
"""So many tokens; more are looked up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose token a request came with."""

    token: str
    role: str
    name: str

    @property
    def analyst(self) -> str | None:
        """The only analyst it may see; None for those who see all."""
        return self.name if self.role == "analyst" else None

    @property
    def contributor(self) -> str | None:
        """The only contributor it may see."""
        return self.name if self.role == "contributor" else None

    @property
    def actor(self) -> str:
        """What the ledger writes down."""
        return f"{self.role}:{self.name}"

    def own_analyst(self, name: str) -> None:
        if self.analyst not in (None, name):
            raise NotFound("there is no such thing, or this token may not see it")


def token_hash(secret: str) -> str:
    """What is kept of a token. It has 256 random bits, so one round of SHA-256 is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _hash_of(authorization: str) -> str:
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthenticated("a token is needed: Authorization: Bearer TOKEN", hint="dpbalance token create")
    return token_hash(secret.strip())


class Door:
    """Lets callers in: by token, by rule, and not too often."""

    def __init__(self, database: Database, clock: Clock, rate: float, burst: float) -> None:
        self._database, self._clock = database, clock
        self._rate, self._burst = rate, burst
        self._known: dict[str, tuple[float, Any]] = {}
        self._unknown: dict[str, tuple[float, Any]] = {}
        self._buckets: dict[str, tuple[float, float]] = {}

    async def __call__(self, request: Request) -> Caller:
        caller = await self._caller(_hash_of(request.headers.get("authorization", "")))
        self._count(caller.token)
        allowed = RULES.get((request.method, request.scope["route"].path), frozenset())
        if caller.role not in allowed:
            raise NotAllowed(f"a token of the role {caller.role!r} may not do this", hint="another token")
        request.state.caller = caller
        return caller

    def knows(self, authorization: str) -> bool:
        """Whether this token was found good lately; it is looked up again in time."""
        try:
            return _hash_of(authorization) in self._known
        except Unauthenticated:
            return False

    async def opens(self, authorization: str) -> bool:
        """Whether this is a token that is known, not revoked and not over."""
        try:
            await self._caller(_hash_of(authorization))
        except Unauthenticated:
            return False
        return True

    def forget(self) -> None:
        """Look every token up again: one was revoked here."""
        self._known.clear()

    async def _caller(self, hashed: str) -> Caller:
        moment = stopwatch()
        until, row = self._known.get(hashed) or self._unknown.get(hashed) or (0.0, None)
        if moment >= until:
            row = await asyncio.to_thread(self._look_up, hashed)
            found, seconds = (
                (self._unknown, UNKNOWN_REMEMBERED_S) if row is None else (self._known, TOKENS_REMEMBERED_S)
            )
            if len(found) >= TOKENS_REMEMBERED:
                found.clear()
            found[hashed] = (moment + seconds, row)
        if row is None or row.revoked is not None or (row.expires is not None and row.expires <= self._clock.now()):
            raise Unauthenticated("this token is unknown, revoked or over", hint="dpbalance token create")
        return Caller(token=row.id, role=row.role, name=row.name)

    def _look_up(self, hashed: str) -> Any:
        with self._database.reading() as connection:
            return connection.execute(sa.select(token).where(token.c.hash == hashed)).one_or_none()

    def _count(self, name: str) -> None:
        """A bucket that fills at `rate`, up to `burst`; each request takes one out."""
        moment = stopwatch()
        level, before = self._buckets.get(name, (self._burst, moment))
        level = min(self._burst, level + (moment - before) * self._rate)
        if level < 1:
            raise TooMany(f"this token may ask {self._rate:g} times a second", hint="the same again in a second")
        self._buckets[name] = (level - 1, moment)
