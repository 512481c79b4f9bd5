"""How fast is the ledger, beside a plain design, and at a million blocks? `python -m benchmarks.ledger`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np

from benchmarks.measure import Result
from benchmarks.peak import peak_kib
from dpbalance.allocation import Allocation
from dpbalance.clock import stopwatch
from dpbalance.errors import LedgerUnavailable
from dpbalance.ledger import Ask, Decision, create_ledger, open_ledger
from dpbalance.market import Block, Round
from dpbalance.market.workloads import grid_names, numbered

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from ledger_clients import BLOCKS, block_name, make_plain
from racing import Attempt, race
from servers import PostgresServer

SECONDS = 6.0
CLIENTS = 64
DEVICES, WINDOWS = 1_000, 1_000
GRANTS = 20
FEW = ("d000/w007", "d000/w008", "d000/w009")


def ledger() -> Iterator[Result]:
    """Guarded charges at 64 clients, then everything at a million blocks, on PostgreSQL and on SQLite."""
    server = PostgresServer("shared_buffers=512MB", "wal_compression=on")
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield from _charges(server, Path(folder))
            yield from _million("postgresql", server.database(), Path(folder), server)
            yield from _million("sqlite", f"sqlite:///{folder}/million.db", Path(folder), None)
    finally:
        server.stop()


def _charges(server: PostgresServer, folder: Path) -> Iterator[Result]:
    """Three of twenty blocks for each claim; `for-update` locks in order and adds, one transaction for each."""
    found: dict[str, list[Attempt]] = {}
    for design in ("for-update", "ledger", "for-update", "ledger"):  # twice, in turn: the machine is shared
        url, key = server.database(), folder / f"key-{len(found)}-{stopwatch()}"
        make_plain(url, 10**15)
        with create_ledger(url, key_file=key) as made:
            made.register_devices({"d": ""})
            made.register_blocks([Block(id=block_name(at), capacity=1e6) for at in range(BLOCKS)])
        config = {"design": design, "seconds": SECONDS, "scale": 1.0, "url": url, "key_file": str(key)}
        found.setdefault(design, []).extend(race(folder, config, clients=CLIENTS))
        with open_ledger(url, key_file=key) as made:
            made.verify().demand()
    rate = {design: len(attempts) / (2 * SECONDS) for design, attempts in found.items()}
    waits = {design: [(each.end - each.begin) * 1e3 for each in attempts] for design, attempts in found.items()}
    p99 = {design: float(np.percentile(each, 99)) for design, each in waits.items()}
    phases = {f"{design} p50": statistics.median(each) for design, each in waits.items()}
    case = f"3 of {BLOCKS} blocks, {CLIENTS} clients"
    yield Result(
        family="ledger",
        case=f"{case}, against FOR UPDATE in order",
        phases_ms=phases,
        figure=rate["ledger"] / rate["for-update"],
        unit="times the charges",
        bar=1.5,
        notes={"charges_per_s": rate},
    )
    yield Result(
        family="ledger",
        case=f"{case}, p99",
        phases_ms={f"{design} p99": each for design, each in p99.items()},
        figure=p99["ledger"],
        unit="ms",
        bar=300.0,
        at_least=False,
    )


def _million(kind: str, url: str, folder: Path, server: PostgresServer | None) -> Iterator[Result]:
    key = folder / f"{kind}.key"
    blocks = grid_names(DEVICES, WINDOWS)
    with create_ledger(url, key_file=key) as made:
        devices = numbered("d", DEVICES)
        made.register_devices(dict.fromkeys(devices, ""))
        made.register_arrays(blocks, [name.partition("/")[0] for name in blocks], np.full((len(blocks), 1), 10**9))
    with open_ledger(url, key_file=key) as made:
        cold, snapshot = _timed(lambda: made.snapshot(now=0.0))
        warm, _ = _timed(lambda: made.snapshot(now=0.0))
        case = f"{len(blocks):,} blocks, {kind}"
        yield _seconds(f"snapshot of {case}", {"first": cold, "again": warm}, cold, 3.0)
        taken, peaks = [], []
        for _ in range(3):
            seconds, _ = _timed(lambda: made.charge(_everything(snapshot.round), seen=snapshot.seq))
            taken.append(seconds)
            peaks.append(peak_kib() // 1024)
        bar = 15.0 if kind == "postgresql" else 6.0
        phases = dict(zip(("first", "second", "third"), taken, strict=True))
        yield _seconds(f"one allocation on {case}", phases, max(taken), bar, peak_mib=peaks)
    for amid, bar_ in (("ordinary charges", 5.0), ("a charge of everything", None)):
        ready = _ready_after_kill(url, key, server, amid)
        yield _seconds(f"ready after a kill amid {amid}, {case}", {}, ready, bar_)
    with open_ledger(url, key_file=key) as made:
        checked, verdict = _timed(made.verify)
        verdict.demand()
        yield _seconds(f"verify {verdict.entries:,} charges on {case}", {}, checked, None)


def _everything(round_: Round) -> Allocation:
    """Twenty grants that share all blocks of a round among them."""
    each = len(round_.blocks) // GRANTS
    given = Round.of_arrays(
        orders=None,
        now=0.0,
        blocks=round_.blocks,
        capacity=round_.capacity,
        spent=round_.spent,
        unlocked=round_.unlocked,
        analysts=("ana",),
        pipelines=numbered("p", GRANTS),
        owner=np.zeros(GRANTS, dtype=np.int64),
        submitted=np.zeros(GRANTS),
        weight=np.ones(GRANTS),
        loss=np.ones(GRANTS),
        max_multiple=np.full(GRANTS, np.inf),
        unrounded=np.full(GRANTS, 0.1),
        start=np.arange(GRANTS + 1) * each,
        block=np.arange(GRANTS * each, dtype=np.int32),
        cost=np.full((GRANTS * each, 1), 10**8),
    )
    return Allocation(round=given, scheduler="everything", multiple=np.ones(GRANTS))


def _ready_after_kill(url: str, key: Path, server: PostgresServer | None, amid: str) -> float:
    """Seconds from the kill of whoever was writing to the next acknowledged charge."""
    if server is None:
        command = [sys.executable, "-m", "benchmarks.ledger", "write", url, str(key), amid]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(2.0)
        writer.kill()
        writer.wait()
        writer.stdout.close()
        return _timed(lambda: _next_charge(url, key, "next"))[0]
    writing = Thread(target=_write, args=(url, key, amid))
    writing.start()
    time.sleep(4.0)
    server.crash()
    writing.join()

    def again() -> None:
        server.start()
        _next_charge(url, key, "next")

    return _timed(again)[0]


def _write(url: str, key: Path, amid: str) -> None:
    """Charge until the store is gone, or this process."""
    with suppress(LedgerUnavailable), open_ledger(url, key_file=key) as made:
        seen = made.snapshot(now=0.0)
        print("now", flush=True)
        while amid == "ordinary charges":
            made.charge(_one("ordinary"))
        made.charge(_everything(seen.round))


def _next_charge(url: str, key: Path, name: str) -> None:
    with open_ledger(url, key_file=key) as made:
        made.charge(_one(name))


def _one(name: str) -> Decision:
    cost = dict.fromkeys(FEW, 1e-6)
    return Decision.build([Ask(pipeline=name, analyst="x", cost=cost)])


def _timed(action):  # type: ignore[no-untyped-def]
    began = stopwatch()
    made = action()
    return stopwatch() - began, made


def _seconds(case: str, phases: dict[str, float], figure: float, bar: float | None, **notes: object) -> Result:
    told = {name: seconds * 1e3 for name, seconds in phases.items()}
    return Result(
        family="ledger", case=case, phases_ms=told, figure=figure, unit="s", bar=bar, at_least=False, notes=notes
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        _write(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
        sys.exit()
    from benchmarks.__main__ import main

    sys.exit(main(["ledger", *sys.argv[1:]]))
