"""What survives a killed writer, a cut log, a server that stops at once? Everything that was acknowledged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import ledger_kills
import numpy as np
import pytest
from ledger_clients import BLOCKS, block_name
from ledger_kills import decision
from ledgers import Place, made_place, spend
from racing import overspent, race, replayed
from servers import PostgresServer

from dpbalance.errors import DPBalanceError, LedgerDamaged, LedgerUnavailable
from dpbalance.ledger import Ledger, create_ledger, open_ledger
from dpbalance.market import Block

KILLS = int(os.environ.get("DPB_KILLS", "100"))
CUTS = int(os.environ.get("DPB_CUTS", "500"))
RESTARTS = int(os.environ.get("DPB_RESTARTS", "3"))


def blocks_of(ledger: Ledger, count: int, capacity: float) -> None:
    ledger.register_devices({"d": ""})
    ledger.register_blocks([Block(id=f"d/w{at}", capacity=capacity) for at in range(count)])


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", KILLS), ("postgres", KILLS // 4)])
def test_a_killed_writer_loses_nothing_it_was_answered_and_charges_nothing_twice(
    kind: str, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with made_place(kind, tmp_path, lambda: request.getfixturevalue("postgres")) as place:
        ledger = place.create()
        blocks_of(ledger, ledger_kills.BLOCKS, 1000.0)
        config = {"url": place.url, "key_file": str(place.key_file), "kills": kills, "seed": 1, "longest_s": 0.02}
        (tmp_path / "config.json").write_text(json.dumps(config))
        command = [sys.executable, ledger_kills.__file__, str(tmp_path / "config.json")]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        told = json.loads(ended.stdout)
        assert told["retried"] == kills - 1
        assert ledger.verify().demand().clean
        with ledger.store.reading() as reader:
            kept = {key: seq for key, seq in reader.rows("journal", ["key", "seq"]) if key}
        acknowledged = {f"k{number}": seq for number, seq in told["acknowledged"].items()}
        assert acknowledged.items() <= kept.items()
        assert set(kept) == {f"k{number}" for number in range(len(kept))}
        units = {f"d/w{at}": 0 for at in range(ledger_kills.BLOCKS)}
        for number in range(len(kept)):
            made = decision(number)
            for block, cost in zip(made.block, made.cost, strict=True):
                units[made.blocks[block]] += int(cost[0])
        assert {each.block: int(each.spent[0]) for each in ledger.balances()} == units


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[tuple[object, ...]]]:
    """A ledger whose last rows are in the log only, and its journal."""
    with create_ledger(f"sqlite:///{tmp_path / 'source.db'}") as ledger:
        blocks_of(ledger, 4, 1.0)
        for at in range(20):
            spend(ledger, {f"d/w{at % 4}": 0.05, f"d/w{(at + 1) % 4}": 0.04}, key=f"k{at}")
        for at in range(5):
            with pytest.raises(DPBalanceError):
                spend(ledger, {"d/w0": 2.0}, key=f"no{at}")
        with ledger.store.reading() as reader:
            journal = list(reader.rows("journal", ["seq", "key", "hash"], order=("seq",)))
        folder = tmp_path / "written"
        folder.mkdir()
        shutil.copy(tmp_path / "source.db", folder / "ledger.db")
        shutil.copy(tmp_path / "source.db-wal", folder / "ledger.db-wal")
    return folder, journal


def damage(random: np.random.Generator, told: bytes) -> bytes:
    """Cut at any byte, or with bits turned over, or with zeros in between."""
    at = int(random.integers(len(told)))
    kind = int(random.integers(3))
    if kind == 0:
        return told[:at]
    made = bytearray(told)
    if kind == 1:
        for place in random.integers(len(told), size=int(random.integers(1, 4))):
            made[place] ^= 1 << int(random.integers(8))
    else:
        made[at : at + 512] = bytes(min(512, len(told) - at))
    return bytes(made)


def looked_at(path: Path, journal: list[tuple[object, ...]]) -> str:
    """`whole`, `prefix` or `damaged`; anything else is a lie, and fails."""
    try:
        with open_ledger(f"sqlite:///{path}") as ledger:
            verdict = ledger.verify()
            if not verdict.clean:
                return "damaged"
            with ledger.store.reading() as reader:
                found = list(reader.rows("journal", ["seq", "key", "hash"], order=("seq",)))
            assert all((each.spent <= each.unlocked).any() for each in ledger.balances())
    except (LedgerDamaged, LedgerUnavailable):
        return "damaged"
    assert found == journal[: len(found)]
    return "whole" if len(found) == len(journal) else "prefix"


def test_a_cut_or_damaged_log_leaves_a_true_prefix_or_is_noticed(
    written: tuple[Path, list[tuple[object, ...]]], tmp_path: Path
) -> None:
    folder, journal = written
    random = np.random.default_rng(7)
    log = (folder / "ledger.db-wal").read_bytes()
    file = (folder / "ledger.db").read_bytes()
    path = tmp_path / "cut.db"
    found = {"whole": 0, "prefix": 0, "damaged": 0}
    for _ in range(CUTS):
        path.write_bytes(file)
        (tmp_path / "cut.db-wal").write_bytes(damage(random, log))
        (tmp_path / "cut.db-shm").unlink(missing_ok=True)
        found[looked_at(path, journal)] += 1
    assert found["prefix"] > CUTS // 4
    assert sum(found.values()) == CUTS


def test_a_damaged_file_is_noticed_or_tells_the_truth(
    written: tuple[Path, list[tuple[object, ...]]], tmp_path: Path
) -> None:
    folder, journal = written
    with open_ledger(f"sqlite:///{folder / 'ledger.db'}"):
        pass  # the last to close writes the log into the file
    file = (folder / "ledger.db").read_bytes()
    random = np.random.default_rng(8)
    found = {"whole": 0, "prefix": 0, "damaged": 0}
    for _ in range(CUTS // 5):
        (tmp_path / "bad.db").write_bytes(damage(random, file))
        for each in ("bad.db-wal", "bad.db-shm"):
            (tmp_path / each).unlink(missing_ok=True)
        found[looked_at(tmp_path / "bad.db", journal)] += 1
    assert found["prefix"] == 0
    assert found["damaged"] > 0


def test_a_server_that_stops_at_once_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        place = Place(kind="postgres", url=server.database(), key_file=tmp_path / "ledger.key")
        with place.create() as ledger:
            blocks_of(ledger, BLOCKS, 100.0)

        def restarts() -> None:
            time.sleep(0.5)
            server.kill_a_backend()
            for _ in range(RESTARTS):
                time.sleep(0.8)
                server.crash()
                server.start()

        config = {"design": "ledger", "seconds": 2.0 * RESTARTS + 2, "scale": 1.0, "key_file": str(place.key_file)}
        attempts = race(tmp_path, {**config, "url": place.url}, clients=16, meanwhile=restarts)
        assert overspent(attempts, 1.0, 100 * 10**9) == []
        assert len(attempts) > 100
        with place.open() as ledger:
            assert block_name(0) == ledger.balances()[0].block
            assert ledger.verify().demand().clean
            replayed(ledger, attempts, 1.0, 100 * 10**9)
    finally:
        server.stop()
