"""Can nobody hold what others need? Bodies, places and bytes of whoever has no token, or sends slowly."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from house import house


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
