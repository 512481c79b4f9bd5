"""Can nobody hold what others need? Bodies, places and bytes of whoever has no token, or sends slowly."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from house import house

from dpbalance.errors import InputError, LedgerUnavailable
from dpbalance.market import Block
from dpbalance.service.catalogue import Catalogue


def raw(body: list[Any], **headers: str) -> tuple[Any, list[Any], Any]:
    """A request as the server has it from the network, where each part comes when it comes."""
    sent: list[Any] = []
    parts = iter(body)

    async def receive() -> Any:
        part = next(parts, None)
        if part is None:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    listed = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    path = "/v1/pipelines"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": listed}
    return {**scope, "query_string": b"", "root_path": "", "http_version": "1.1", "state": {}}, sent, (receive, send)


def test_a_body_that_does_not_come_is_408_and_health_is_told_meanwhile(tmp_path: Path) -> None:
    with house(tmp_path, body_limit=0.3, connections_max=1) as home:
        home.ask("GET", "/v1/whoami")
        scope, sent, (receive, send) = raw(
            [b"{"], authorization=f"Bearer {home.tokens['operator']}", content_length="99", idempotency_key="k"
        )

        async def both() -> list[int]:
            slow = asyncio.create_task(home.app(scope, receive, send))
            await asyncio.sleep(0.1)
            health = (await home.http.get("/healthz")).status_code
            again = await home.http.get("/v1/whoami", headers={"Authorization": f"Bearer {home.tokens['operator']}"})
            await slow
            return [health, again.status_code]

        assert home.runner.run(both()) == [200, 503]
        assert sent[0]["status"] == 408
        assert (b"connection", b"close") in sent[0]["headers"]
        assert json.loads(sent[1]["body"])["code"] == "DPB-408"
        assert home.ask("GET", "/v1/whoami").status_code == 200


def test_nobody_brings_a_byte_without_a_token_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with house(tmp_path) as home:
        looked: list[str] = []
        own = home.desk.door._look_up
        monkeypatch.setattr(home.desk.door, "_look_up", lambda hashed: looked.append(hashed) or own(hashed))
        for token in ("", "Bearer unknown", "Bearer unknown"):
            scope, sent, (_, send) = raw([], authorization=token, content_length="99", idempotency_key="k")

            async def never() -> Any:
                raise AssertionError("the body was asked for")

            home.runner.run(home.app(scope, never, send))
            assert sent[0]["status"] == 401
        assert len(looked) == 1


def test_bodies_together_and_strangers_apart_are_bounded(tmp_path: Path) -> None:
    with house(tmp_path, bodies_max=2048, strangers_max=1) as home:
        answer = home.ask("POST", "/v1/pipelines", content=b" " * 3000)
        assert (answer.status_code, answer.json()["code"]) == (503, "DPB-503")
        assert home.ask("GET", "/v1/whoami").status_code == 200

        async def strangers() -> list[int]:
            headers = [{"Authorization": f"Bearer stranger-{at}"} for at in range(5)]
            asked = [home.http.get("/v1/whoami", headers=each) for each in headers]
            return [each.status_code for each in await asyncio.gather(*asked)]

        assert sorted(home.runner.run(strangers())) == [401, 503, 503, 503, 503]
        assert home.ask("GET", "/v1/whoami").status_code == 200


def test_what_is_asked_is_counted_before_it_is_written_out(tmp_path: Path) -> None:
    with house(tmp_path, blocks_max=4, demands_max=8, pending_max=3) as home:
        home.market(devices=4)
        ask = {"devices": "all", "windows": {"latest": 1}, "cost": 0.1}
        two = {**ask, "windows": {"first": "mon", "last": "tue"}}

        def said(path: str, body: Any) -> int:
            return int(home.ask("POST", path, role="analyst", json=body).status_code)

        assert said("/v1/pipelines", two) == 413
        assert said("/v1/pipelines", {**two, "windows": {"first": "tue", "last": "tue"}}) == 201
        assert said("/v1/batches", {"pipelines": [ask] * 3}) == 413
        assert said("/v1/batches", {"pipelines": [ask] * 2}) == 201
        assert said("/v1/pipelines", ask) == 429
        assert said("/v1/pipelines", {**ask, "deadline": home.clock.now() - 1}) == 429
        home.made("DELETE", "/v1/pipelines/p1")
        assert said("/v1/pipelines", {**ask, "deadline": home.clock.now() - 1}) == 422
        assert said("/v1/pipelines", ask) == 201


def test_a_submit_that_breaks_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with house(tmp_path) as home:
        home.market()
        own = Catalogue.demand

        def breaking(self: Catalogue, ask: Any, *given: Any) -> Any:
            if ask.label == "broken":
                raise RuntimeError(ask.label)
            return own(self, ask, *given)

        monkeypatch.setattr(Catalogue, "demand", breaking)
        header = {"Authorization": f"Bearer {home.tokens['analyst']}"}

        async def all_at_once() -> list[int]:
            asked = [
                home.http.post(
                    "/v1/pipelines",
                    headers={**header, "Idempotency-Key": f"k{at}"},
                    json={"blocks": {"phone-0/mon": 0.1 + at / 10}, "label": "broken" if at == 2 else ""},
                )
                for at in range(5)
            ]
            return [each.status_code for each in await asyncio.gather(*asked)]

        assert home.runner.run(all_at_once()) == [201, 201, 500, 201, 201]


def test_the_last_token_of_an_operator_stays(tmp_path: Path) -> None:
    with house(tmp_path) as home:
        mine = home.made("GET", "/v1/tokens")["items"]
        last = next(each["id"] for each in mine if each["role"] == "operator")
        assert home.ask("DELETE", f"/v1/tokens/{last}").status_code == 409
        home.token("operator", "another", seconds=10.0)
        home.clock.sleep(11)
        assert home.ask("DELETE", f"/v1/tokens/{last}").status_code == 409
        home.token("operator", "another")
        assert home.ask("DELETE", f"/v1/tokens/{last}").status_code == 200


def test_blocks_the_ledger_took_in_are_known_from_the_next_round_on(tmp_path: Path) -> None:
    with house(tmp_path) as home:
        home.market()
        leader = home.leader()
        home.ledger.register_blocks([Block(id="phone-0/wed", capacity=1.0)])
        home.round(leader)
        assert "phone-0/wed" in [each["id"] for each in home.made("GET", "/v1/blocks")["items"]]


def test_a_refusal_repeats_no_long_name_and_tells_nothing_of_the_database(tmp_path: Path) -> None:
    with house(tmp_path) as home:
        told = home.ask("POST", "/v1/pipelines", json={"x" * 5_000: 1}).json()
        assert max(len(each["at"]) for each in told["errors"]) <= 100
        for kind, error in ((sa.exc.TimeoutError("secret"), LedgerUnavailable), (_data_error(), InputError)):
            with pytest.raises(error) as found, home.database.reading():
                raise kind
            assert "secret" not in str(found.value)


def _data_error() -> sa.exc.DataError:
    return sa.exc.DataError("secret", {}, ValueError("secret"))
