"""Do the clients and the commands do what the API does, and say what it says?"""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, free_port
from typer.testing import CliRunner

from dpbalance.cli.app import app
from dpbalance.client import AsyncClient, Client, Pipeline
from dpbalance.errors import InputError, NotFound, Unauthenticated, Unreachable
from dpbalance.service import models

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("client"))
    with made.client() as client:
        client.enrol({"phone-1": "maria", "phone-2": None})
        client.add_blocks([("phone-1", "mon", 1.0), ("phone-2", "mon", 1.0)])
        client.create_token("analyst", "ana")
        settings, etag = client.settings()
        client.put_settings({**settings, "every": 1e6}, etag)
    yield made
    made.stop()


@pytest.fixture
def command(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPBALANCE_SERVER", served.url)
    monkeypatch.setenv("DPBALANCE_TOKEN", served.token)

    def run(*words: str, form: str = "json") -> Any:
        ended = CliRunner().invoke(app, [*words, "--format", form], catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout) if form == "json" else ended.stdout

    return run


def test_every_command_that_asks_a_server_is_answered(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "asks.json"
    file.write_text(json.dumps([{"blocks": {"phone-1/mon": 0.2}}, {"blocks": {"phone-2/mon": 3.0}}]))
    small, large = command("submit", "--file", str(file), "--analyst", "ana")["ids"]
    assert "of ana is pending" in command("status", small, form="table")
    assert command("round", "preview", "--scheduler", "fcfs")["preview"]["metrics"]["pipelines"] == 1
    assert command("round", "run")["done"]
    assert "times its demand" in command("status", small, form="table")
    assert command("status", large)["denial"]["reason"] == "exceeds-left"
    assert "pipeline explain" in command("status", large, form="table")
    assert command("pipeline", "explain", large)["sentence"].startswith(f"{large} is denied")
    assert large in command("list", "--state", "pending", form="table")
    assert command("cancel", large)["state"] == "cancelled"
    assert len(command("round", "list")["rounds"]) == 1
    assert "granted" in command("round", "show", "1", form="table")
    assert command("device", "change", "phone-1", "mon", "--state", "frozen")["state"] == "frozen"
    assert "frozen" in command("device", "list", form="table")
    made = command("token", "create", "auditor", "eva", "--seconds", "100")
    assert made["id"] in command("token", "list", form="table")
    assert command("token", "revoke", made["id"])["revoked"] is not None


def test_the_doctor_finds_all_well_and_init_writes_a_file(served: Served, command: Command) -> None:
    import os

    os.environ["DPBALANCE_LEDGER_KEY"] = str(served.folder / "ledger.key")
    try:
        checks = command("doctor", "--database", served.database)["checks"]
    finally:
        del os.environ["DPBALANCE_LEDGER_KEY"]
    assert [each["check"] for each in checks] == [
        "configuration", "TLS", "ledger", "database", "clock", "lease", "kernels",
    ]  # fmt: skip
    assert all(each["ok"] for each in checks)
    assert command("init")["file"] == "dpbalance.toml"
    assert "# port = 8787" in Path("dpbalance.toml").read_text()


def test_the_asynchronous_client_does_the_same(served: Served) -> None:
    async def work() -> None:
        async with AsyncClient(served.url, served.token) as client:
            ask = {"analyst": "ana", "devices": {"named": ["phone-2"]}, "windows": {"latest": 1}, "cost": 0.1}
            one = await client.submit(key="async", **ask)
            assert await client.submit(key="async", **ask) == one
            ids = await client.submit_many([ask, ask])
            found = {each["id"] async for each in client.pages("/v1/pipelines", limit=1)}
            assert found >= {one["id"], *ids}
            assert (await client.cancel(ids[0]))["state"] == "cancelled"
            assert (await client.pipeline(ids[0]))["state"] == "cancelled"
            assert "is cancelled" in (await client.explain(ids[0]))["sentence"]
            assert isinstance(await client.statement(analyst="ana"), list)

    asyncio.run(work())


def test_what_the_server_refuses_is_raised_as_the_error_it_is_there(served: Served) -> None:
    client = served.client()
    with pytest.raises(NotFound):
        client.pipeline("p999999")
    with pytest.raises(InputError, match="no analyst"):
        client.submit(analyst="nobody", devices="all", windows={"latest": 1}, cost=0.1)
    with pytest.raises(Unauthenticated):
        served.client(token="wrong").grant(1)
    with Client(f"http://127.0.0.1:{free_port()}", "none", retries=1) as nowhere, pytest.raises(Unreachable):
        nowhere.pipeline("p1")


def test_what_the_client_calls_a_pipeline_is_what_the_server_answers() -> None:
    """The client cannot import the server's models, so it says the fields again: the same ones."""
    assert set(Pipeline.__annotations__) == set(models.Pipeline.model_fields)
