"""Do the bounds of the ledger hold, and is what happens there the same as below them?"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from ledgers import Place, asking, spend, spent, stocked
from servers import PostgresServer

import dpbalance.ledger.ledger
import dpbalance.ledger.names
import dpbalance.ledger.postgres
import dpbalance.ledger.sqlite
import dpbalance.ledger.store
from dpbalance.errors import DPBalanceError, InputError, LedgerDamaged, LedgerUnavailable
from dpbalance.ledger import Ask, Decision, Ledger, create_ledger
from dpbalance.ledger.commit import GroupCommit
from dpbalance.ledger.copies import restore
from dpbalance.ledger.requests import Charge, SetBudget
from dpbalance.ledger.tables import ORDERS_MAX, checks, tables


def test_many_rows_go_other_ways_and_come_to_the_same(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above `CHUNK` rows, stores copy, scan and update whole tables: here that begins at three."""
    for module in ("ledger", "names", "postgres", "sqlite", "store"):
        monkeypatch.setattr(getattr(dpbalance.ledger, module), "CHUNK", 2)
    ledger = place.create(orders=[2, 8])
    names = stocked(ledger, 11, capacity=(1.0, 2.0))
    everything = dict.fromkeys(names, (0.3, 0.2))
    some = dict.fromkeys(names[2:9], (0.3, 0.2))
    asks = [Ask(pipeline=f"p{at}", analyst="x", cost=cost) for at, cost in enumerate((everything, some))]
    grants = ledger.charge(Decision.build(asks, orders=[2, 8])).grants
    with pytest.raises(DPBalanceError, match="short by"):
        spend(ledger, dict.fromkeys(names, (0.5, 1.7)))
    ledger.set_budget(names[0], (0.9, 1.9))
    on = ledger._on(names[:3])  # a batch that both charges and changes terms of many blocks
    together = [
        SetBudget(**on, capacity=np.full((3, 2), 8 * 10**8)),
        ledger_charge(ledger, dict.fromkeys(names[4:8], (0.1, 0.1))),
    ]
    for each in ledger._run([(each, each.digest()) for each in together]):
        assert not isinstance(each, BaseException), each
    ledger.void([ledger.head().claims])
    ledger.freeze(names[3:9])
    ledger.thaw(names[4:9:2], actor="contributor:ann")
    ledger.unlock(dict.fromkeys(names[3:9], (1.0, 2.0)))
    ledger.void(grants[1:])
    ledger.dispatch(grants[:1])
    assert [spent(ledger, name) for name in names] == [[300_000_000, 200_000_000]] * 11
    assert len(ledger.statement()) == 11 + 7 + 1 + 4
    assert ledger.snapshot(now=0.0).round.spent.sum() == 11 * 500_000_000
    assert ledger.verify().demand().clean
    ledger.backup(tmp_path / "copy.db")
    assert restore(tmp_path / "copy.db", f"sqlite:///{tmp_path / 'back.db'}") == ledger.head().seq


def ledger_charge(ledger: Ledger, cost: dict[str, tuple[float, ...]]) -> Charge:
    decision = asking(cost, orders=ledger.orders)
    ids, known = ledger.names.ids(ledger.store, decision.blocks)
    return Charge(ids=ids, names=decision.blocks, decision=decision, known=known)


def test_blocks_that_are_not_remembered_are_looked_up_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpbalance.ledger.names, "NAMES_MAX", 2)
    ledger = place.create()
    names = stocked(ledger, 6)
    for name in (*names, *names):
        spend(ledger, {name: 0.1})
    spend(ledger, dict.fromkeys(names, 0.1))
    assert len(ledger.names.known.numbers) <= 6
    assert [spent(ledger, name) for name in names] == [[300_000_000]] * 6


def test_more_writes_than_may_wait_are_refused_at_once() -> None:
    begun, go = Event(), Event()
    sizes = []

    def run(batch: list[int]) -> list[int]:
        begun.set()
        go.wait()
        sizes.append(len(batch))
        return batch

    commit: GroupCommit[int, int] = GroupCommit(run, batch_max=2, queue_max=3)
    threads = [Thread(target=commit, args=(at,)) for at in range(4)]
    threads[0].start()
    begun.wait()
    for each in threads[1:]:
        each.start()
    while len(commit._waiting) < 3:
        pass
    with pytest.raises(LedgerUnavailable, match="3 writes are waiting"):
        commit(9)
    go.set()
    for each in threads:
        each.join()
    assert sizes == [1, 2, 1]


def test_whoever_is_interrupted_while_waiting_leaves_the_others_in_peace() -> None:
    begun, go = Event(), Event()

    def run(batch: list[int]) -> list[int]:
        begun.set()
        go.wait()
        return batch

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    commit: GroupCommit[int, int] = GroupCommit(run)
    thread = Thread(target=commit, args=(1,))
    thread.start()
    begun.wait()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            commit(2)
    finally:
        signal.signal(signal.SIGALRM, before)
    go.set()
    thread.join()
    assert commit(3) == 3


def test_whoever_is_interrupted_while_writing_for_all_says_that_nothing_is_known() -> None:
    begun, go, told = Event(), Event(), []

    def run(batch: list[int]) -> list[int]:
        if 1 in batch:
            begun.set()
            go.wait()
        if 2 in batch:
            raise KeyboardInterrupt
        return batch

    commit: GroupCommit[int, int] = GroupCommit(run)

    def ask(number: int) -> None:
        try:
            told.append(commit(number))
        except BaseException as problem:
            told.append(type(problem))

    first = Thread(target=ask, args=(1,))
    first.start()
    begun.wait()
    others = [Thread(target=ask, args=(number,)) for number in (2, 3)]
    for at, each in enumerate(others, start=1):
        each.start()
        while len(commit._waiting) < at:
            pass
    go.set()
    for each in (first, *others):
        each.join()
    assert sorted(map(str, told)) == sorted(map(str, [1, KeyboardInterrupt, LedgerUnavailable]))
    assert commit(4) == 4


def test_a_writer_waits_for_another_process_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpbalance.ledger.sqlite, "BUSY_S", 0.1)
    with create_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        a, *_ = stocked(ledger)
        other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="locked"):
            spend(ledger, {a: 0.1}, key="k")
        other.execute("ROLLBACK")
        other.close()
        assert spend(ledger, {a: 0.1}, key="k").seq == 4


def test_a_writer_of_postgres_waits_only_so_long(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setattr(dpbalance.ledger.postgres, "LOCK_TIMEOUT_MS", 100)
    url = postgres.database()
    for isolation in ("locks", "serializable"):
        url = postgres.database()
        with create_ledger(url, key_file=tmp_path / isolation, isolation=isolation) as ledger:
            a, *_ = stocked(ledger)
            with psycopg.connect(url) as other:
                other.execute("SELECT * FROM head FOR UPDATE")
                with pytest.raises(LedgerUnavailable, match="lock timeout"):
                    spend(ledger, {a: 0.1}, key="k")
            assert spend(ledger, {a: 0.1}, key="k").seq == 4


def test_the_migrations_make_the_tables_that_every_store_has(postgres: PostgresServer, tmp_path: Path) -> None:
    import sqlalchemy

    url = postgres.database()
    create_ledger(url, orders=[2, 8, 32], key_file=tmp_path / "key").close()
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    found = sqlalchemy.inspect(engine)
    for table, columns in tables(3).items():
        assert {each["name"] for each in found.get_columns(table)} == set(columns)
    assert {each["name"] for each in found.get_check_constraints("balance")} == set(checks(3))
    with engine.connect() as connection:
        versions = connection.execute(sqlalchemy.text("SELECT version_num FROM alembic_version")).scalars().all()
    assert versions == ["0001"]
    engine.dispose()


def test_a_transaction_that_cannot_be_ordered_is_tried_so_often(postgres: PostgresServer, tmp_path: Path) -> None:
    with create_ledger(postgres.database(), key_file=tmp_path / "key") as ledger:
        tried = []

        def never() -> None:
            tried.append(1)
            raise dpbalance.ledger.postgres._NotInOrder

        with pytest.raises(LedgerUnavailable, match="50 attempts"):
            ledger.store.retrying(never)
        assert len(tried) == dpbalance.ledger.postgres.RETRIES_MAX


def test_a_ledger_counts_at_so_many_orders_at_most(tmp_path: Path) -> None:
    orders = [2.0 + at for at in range(ORDERS_MAX)]
    with create_ledger("memory:", orders=orders) as ledger:
        a, *_ = stocked(ledger, capacity=(1.0,) * ORDERS_MAX)
        spend(ledger, {a: (0.1,) * ORDERS_MAX})
        assert ledger.verify().clean
    with pytest.raises(InputError, match="64 orders at most"):
        create_ledger("memory:", orders=[*orders, 100.0])


def test_a_database_that_refuses_one_write_of_a_batch_takes_the_others(tmp_path: Path) -> None:
    """Rows that another program put where the next one belongs: the store refuses, and nothing is half written."""
    with create_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        a, *_ = stocked(ledger)
        spend(ledger, {a: 0.1})
        with sqlite3.connect(tmp_path / "ledger.db") as other:
            other.execute("INSERT INTO claim VALUES (2, 9, 'p', 'x', 1.0, 1, '')")
        other.close()
        with pytest.raises(LedgerDamaged, match="the database refused what the rules allow"):
            spend(ledger, {a: 0.1})
        ledger.freeze([a])
        assert spent(ledger, a) == [100_000_000]
        assert not ledger.verify().clean


def test_what_cannot_be_written_down_is_refused() -> None:
    with create_ledger("memory:") as ledger:
        a, *_ = stocked(ledger)
        (grant,) = spend(ledger, {a: 0.1}).grants
        with pytest.raises(InputError, match="JSON"):
            ledger.void([grant], note="\ud800")
        for wrong in ("", "a\nb", "\x00", "x" * 257):
            with pytest.raises(InputError, match="printable"):
                asking({a: 0.1}, pipeline=wrong)
        with pytest.raises(InputError, match="analyst and a multiple"):
            Decision(
                orders=None,
                scheduler="x",
                pipelines=("p",),
                analysts=(),
                multiples=(),
                blocks=(),
                owner=np.zeros(0, dtype=np.int64),
                block=np.zeros(0, dtype=np.int64),
                cost=np.zeros((0, 1), dtype=np.int64),
            )


def test_without_the_extra_postgres_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "from dpbalance.ledger import create_ledger, open_ledger\n"
        "create_ledger('memory:').close()\n"
        "try: open_ledger('postgresql:///x')\n"
        "except Exception as problem: print(problem)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.startswith("DPB-104 OptionError: a ledger in PostgreSQL needs the package")
    assert "pip install 'dpbalance[postgres]'" in told
