"""Is nothing lost and nothing granted twice, whatever is killed and whenever?"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from served import Served, until
from servers import PostgresServer

from dpbalance.client import Client
from dpbalance.errors import DPBalanceError
from dpbalance.ledger import open_ledger

KILLS = int(os.environ.get("DPB_SERVICE_KILLS", "4"))
"""Of each process; `make soak` kills fifty."""

EVERY = {"every": 0.05, "lease": 1.0}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


def stock(client: Client, devices: int = 10, budget: float = 1_000.0) -> None:
    client.enrol({f"phone-{at}": "maria" for at in range(devices)})
    client.add_blocks([(f"phone-{at}", "mon", budget) for at in range(devices)])
    client.create_token("analyst", "ana")
    settings, etag = client.settings()
    client.put_settings({**settings, **EVERY}, etag)


class Load:
    """Submits until it is stopped, and remembers what was acknowledged."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self.acknowledged: list[str] = []
        self._make, self._stop = make, Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client = self._make()
        at = 0
        while not self._stop.is_set():
            ask = {"analyst": "ana", "devices": "all", "windows": {"latest": 1}, "cost": 0.01, "max_multiple": 1.0}
            try:
                made = client.submit(key=f"load-{at}", **ask)
            except DPBalanceError:  # the same key again: whether it was taken in is not known
                time.sleep(0.05)
                continue
            self.acknowledged.append(made["id"])
            at += 1

    def end(self) -> list[str]:
        self._stop.set()
        self._thread.join(30)
        return self.acknowledged


def check(served: Served, acknowledged: list[str]) -> None:
    """Every acknowledged pipeline is there once, granted once and charged once."""
    with served.client() as client:
        client.run_round()
        client.run_round()  # the first may have been the last of a leader that is gone
        listed = [dict(each) for each in client.pipelines()]
    ids = [each["id"] for each in listed]
    assert len(set(ids)) == len(ids)
    assert set(acknowledged) <= set(ids)
    assert len(set(acknowledged)) == len(acknowledged)
    assert len(ids) - len(acknowledged) <= 1  # the one that was under way at the end
    states = {each["state"] for each in listed}
    assert states == {"granted"}
    with open_ledger(served.database, key_file=served.folder / "ledger.key") as ledger:
        assert ledger.verify().demand().clean
        with ledger.store.reading() as reader:
            claims = [name for name, stage in reader.rows("claim", ["pipeline", "stage"]) if stage == 1]
        assert sorted(claims) == sorted(ids)
        assert {int(each.spent[0]) for each in ledger.balances()} == {10_000_000 * len(ids)}


def test_kills_of_the_round_process_lose_nothing_and_grant_nothing_twice(tmp_path: Path, database: str) -> None:
    served = Served(tmp_path, database)
    try:
        stock(served.client())
        load = Load(served.client)
        for at in range(KILLS):
            until(15, lambda at=at: len(served.events("rounds ready")) == at + 1)
            ready = served.rounds_pid
            until(15, lambda: served.events("rounds lead") != [])
            time.sleep(0.15 + 0.07 * (at % 5))
            os.kill(ready, signal.SIGKILL)
        until(15, lambda: len(served.events("rounds ready")) == KILLS + 1)
        time.sleep(0.5)
        check(served, load.end())
    finally:
        assert served.stop() == 0


def test_kills_of_the_whole_server_lose_nothing_that_was_acknowledged(tmp_path: Path, database: str) -> None:
    served = Served(tmp_path, database)
    try:
        stock(served.client())
        load = Load(lambda: served.client(retries=0))
        for at in range(max(1, KILLS // 2)):
            time.sleep(0.3 + 0.1 * at)
            served.kill()
            served.start()
        time.sleep(0.3)
        check(served, load.end())
    finally:
        served.stop()


def test_kills_of_whichever_leads_of_two_leave_a_new_leader_and_every_pipeline(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    database = postgres.database()
    both = [Served(tmp_path, database), Served(tmp_path, database)]
    took = []

    def leads() -> list[tuple[str, int]]:
        return sorted(
            (each["timestamp"], at) for at, served in enumerate(both) for each in served.events("rounds lead")
        )

    try:
        stock(both[0].client())
        load = Load(lambda: both[1].client())
        for at in range(KILLS):
            until(15, lambda at=at: len(leads()) > at)
            leader = both[leads()[-1][1]]
            time.sleep(0.1 + 0.037 * (at % 11))  # rounds follow each other, so most of these stop one
            os.kill(leader.rounds_pid, signal.SIGKILL)
            took.append(until(10, lambda at=at: len(leads()) > at + 1))
        check(both[0], load.end())
    finally:
        for each in both:
            each.stop()
    print(f"new leader after {max(took):.2f} s at most, {sum(took) / len(took):.2f} s on average, {KILLS} kills")


def test_when_the_leading_replica_is_killed_the_other_leads_within_the_lease(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    database = postgres.database()
    one, two = Served(tmp_path, database), Served(tmp_path, database)
    took = []
    try:
        stock(one.client())
        load = Load(lambda: two.client())
        until(10, lambda: bool(one.events("rounds lead")) and bool(one.events("round")))
        assert not two.events("rounds lead")
        for _ in range(max(1, KILLS // 4)):
            leads = len(two.events("rounds lead"))
            os.kill(one.rounds_pid, signal.SIGKILL)
            one.kill()
            took.append(until(10, lambda leads=leads: len(two.events("rounds lead")) > leads))
            one.start()
            os.kill(two.rounds_pid, signal.SIGSTOP)  # it hangs: its lease ends, and it may not charge any more
            stopped = two.rounds_pid
            before = len(one.events("rounds lead"))
            took.append(until(10, lambda before=before: len(one.events("rounds lead")) > before))
            os.kill(stopped, signal.SIGCONT)
        time.sleep(0.5)
        check(one, load.end())
        assert max(took) <= 10
    finally:
        one.stop()
        two.stop()


def test_replicas_that_start_at_once_on_an_empty_database_share_what_one_of_them_makes(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    database = postgres.database()
    with ThreadPoolExecutor(3) as threads:
        replicas = list(threads.map(lambda _: Served(tmp_path, database), range(3)))
    try:
        told = [each.client().call(_whoami()) for each in replicas]
        assert told == [{"role": "operator", "name": "operator"}] * 3
    finally:
        for each in replicas:
            each.stop()


def test_a_server_that_is_asked_to_end_ends_in_order_and_gives_the_lease_back(tmp_path: Path) -> None:
    served = Served(tmp_path)
    stock(served.client())
    until(10, lambda: bool(served.events("rounds lead")))
    pid = served.rounds_pid
    assert served.stop() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with open_ledger(served.database, key_file=tmp_path / "ledger.key") as ledger:
        assert ledger.head().holder == ""
    assert (tmp_path / "operator.token").stat().st_mode & 0o777 == 0o600


def test_a_round_that_outlives_its_limit_is_abandoned_and_another_scheduler_decides(tmp_path: Path) -> None:
    served = Served(tmp_path)
    try:
        with served.client() as client:
            stock(client, devices=100, budget=1.0)
            client.add_blocks([(f"phone-{at}", "tue", 1.0) for at in range(100)])
            settings, etag = client.settings()
            client.put_settings({**settings, "scheduler": "optimal", "round_limit": 2.0}, etag)  # exact, and slow
            ask = {"devices": {"sample": 5}, "windows": {"latest": 2}, "cost": 0.01}
            for analyst in range(20):
                client.create_token("analyst", f"a{analyst}")
            client.submit_many([{**ask, "analyst": f"a{at % 20}"} for at in range(5_000)])
            until(30, lambda: bool(served.events("round abandoned")))
            until(30, lambda: any("fallback" in str(each["notes"]) for each in served.events("round")))
            assert next(iter(client.pages("/v1/grants")))["state"] == "granted"
    finally:
        served.stop()


PRINTS = """
import os, sys, threading
if any("worker" in each for each in sys.orig_argv):
    def shout():
        os.write(1, b"a scheduler prints, and not JSON\\n")
        print("and again", flush=True)
    threading.Timer(0.1, shout).start()
    threading.Timer(3.0, shout).start()
"""


def test_what_a_scheduler_prints_disturbs_nothing_and_files_are_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(PRINTS)
    monkeypatch.setenv("PYTHONPATH", str(site))
    served = Served(tmp_path)
    try:
        with served.client() as client:
            stock(client)
            until(15, lambda: "and again" in served.log.read_text())
            pid = served.rounds_pid
            ask = {"analyst": "ana", "devices": "all", "windows": {"latest": 1}, "cost": 0.01}
            id_ = client.submit(**ask)["id"]
            until(10, lambda: client.pipeline(id_)["state"] == "granted")
            other = client.submit(**{**ask, "cost": 1_000.0})["id"]
            assert client.explain(other)["sentence"]
        assert served.rounds_pid == pid
        assert served.is_ready()
        assert {each.stat().st_mode & 0o077 for each in tmp_path.glob("budget*")} == {0}
    finally:
        assert served.stop() == 0


def test_ready_means_that_a_round_process_runs(tmp_path: Path) -> None:
    served = Served(tmp_path)
    try:
        until(10, lambda: bool(served.events("rounds lead")))
        os.kill(served.rounds_pid, signal.SIGKILL)
        until(5, lambda: not served.is_ready())
        until(15, served.is_ready)
    finally:
        assert served.stop() == 0


def test_a_token_of_the_first_operator_is_made_once_and_never_logged(tmp_path: Path) -> None:
    served = Served(tmp_path)
    secret = (tmp_path / "operator.token").read_text().strip()
    served.client().call(_whoami())
    served.stop()
    served.start()
    served.stop()
    assert (tmp_path / "operator.token").read_text().strip() == secret
    logged = [line for line in served.log.read_text().splitlines() if line.startswith("{")]
    assert logged
    assert secret not in "".join(logged)


def _whoami() -> Any:
    from dpbalance.client import CALLS

    return CALLS.get("/v1/whoami")


def test_postgres_that_goes_away_for_a_while_stops_nothing_for_good(tmp_path: Path) -> None:
    server = PostgresServer()
    served = Served(tmp_path, server.database())
    try:
        stock(served.client())
        load = Load(lambda: served.client(retries=0))
        time.sleep(0.5)
        server.crash()
        time.sleep(0.3)
        server.start()
        with psycopg.connect(server.url("postgres")):
            time.sleep(1.0)
        check(served, load.end())
    finally:
        served.stop()
        server.stop()
