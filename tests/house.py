"""What does a test of the service work with? A whole server in this process, on a fake clock, with a token a role."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from dpbalance.clock import FakeClock
from dpbalance.service.app import make_app, make_desk
from dpbalance.service.config import Config
from dpbalance.service.keeping import read_settings
from dpbalance.service.models import NewToken
from dpbalance.service.rounds import Rounds
from dpbalance.service.routes_house import make_token
from dpbalance.service.worker import Loop

ROLES = ("analyst", "contributor", "operator", "auditor")
START = 1_000_000.0
KEYS = count()


class House:
    """A server without its round process: a test runs the rounds itself."""

    def __init__(self, database: str, folder: Path, **settings: Any) -> None:
        self.clock = FakeClock(START)
        self.config = Config(database=database, log="none", ledger_key=folder / "ledger.key", **settings)
        self.desk = make_desk(self.config, self.clock)
        self.database, self.ledger = self.desk.database, self.desk.ledger
        self.app = make_app(self.desk, rounds=False)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://house")
        self.runner = asyncio.Runner()
        self.tokens = {role: self.token(role, "ana" if role == "analyst" else "maria") for role in ROLES}
        self.events: list[dict[str, Any]] = []

    def token(self, role: str, name: str, **more: Any) -> str:
        with self.database.writing() as connection:
            new = NewToken(role=role, name=name, **more)
            return str(make_token(connection, new, self.clock.now())["secret"])

    def ask(
        self, method: str, path: str, *, role: str = "operator", token: str = "", key: str = "", **more: Any
    ) -> Any:
        headers = {"Authorization": f"Bearer {token or self.tokens[role]}", **more.pop("headers", {})}
        if method == "POST":
            headers["Idempotency-Key"] = key or f"key-{next(KEYS)}"
        return self.runner.run(self.http.request(method, path, headers=headers, **more))

    def made(self, method: str, path: str, **more: Any) -> Any:
        """What came of a request that must succeed."""
        answer = self.ask(method, path, **more)
        assert answer.is_success, answer.text
        return answer.json()

    def market(self, devices: int = 4, windows: tuple[str, ...] = ("mon", "tue"), budget: float = 1.0) -> None:
        names = [f"phone-{at}" for at in range(devices)]
        self.made("POST", "/v1/devices", json={"devices": [{"name": e, "contributor": "maria"} for e in names]})
        blocks = [{"device": e, "window": each, "budget": budget} for e in names for each in windows]
        self.made("POST", "/v1/blocks", json={"blocks": blocks})

    def submit(self, cost: Any = 0.1, *, role: str = "analyst", token: str = "", **more: Any) -> str:
        ask = {"devices": "all", "windows": {"latest": 1}, "cost": cost, **more}
        return str(self.made("POST", "/v1/pipelines", role=role, token=token, json=ask)["id"])

    def set(self, **changed: Any) -> None:
        now = self.ask("GET", "/v1/settings")
        self.made("PUT", "/v1/settings", json={**now.json(), **changed}, headers={"If-Match": now.headers["etag"]})

    def leader(self, holder: str = "test") -> Rounds:
        rounds = Rounds(self.database, self.ledger, self.clock, self.ledger.acquire(holder, 1e6))
        rounds.heal()
        return rounds

    def round(self, rounds: Rounds | None = None) -> dict[str, Any] | None:
        with self.database.reading() as connection:
            settings, _ = read_settings(connection)
        return (rounds or self.leader()).run(settings)

    def loop(self, holder: str = "loop") -> Loop:
        return Loop(self.database, self.ledger, self.clock, holder, self.events.append)

    def close(self) -> None:
        self.runner.run(self.http.aclose())
        self.runner.close()
        self.desk.submits.close()
        self.desk.reads.close()
        self.database.close()
        self.ledger.close()


@contextmanager
def house(folder: Path, database: str = "", **settings: Any) -> Iterator[House]:
    made = House(database or f"sqlite:///{folder / 'budget.db'}", folder, **settings)
    try:
        yield made
    finally:
        made.close()
