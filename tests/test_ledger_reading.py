"""Do snapshots, statements, exports and backups tell what is charged, in every store?"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import polars
import pytest
from ledgers import Place, spend, spent, stocked

import dpbalance
from dpbalance.clock import FakeClock
from dpbalance.demand import Pipeline
from dpbalance.errors import (
    AlreadyRegistered,
    LedgerDamaged,
    NotInLedger,
    OptionError,
)
from dpbalance.ledger import create_ledger, open_ledger
from dpbalance.ledger.copies import restore
from dpbalance.market import Block


def test_a_snapshot_is_a_round_in_its_own_order_of_what_is_left(place: Place) -> None:
    ledger = place.create()
    ledger.register_devices({"d": "ann"})
    names = ["d/w10", "d/w9", "d/w1", "d/w100"]
    ledger.register_blocks([Block(id=name, capacity=1.0, unlocked=0.5) for name in names])
    spend(ledger, {"d/w9": 0.25})
    pipeline = Pipeline(id="p", analyst="x", demand={"d/w100": 0.1, "d/w9": 0.2})
    snapshot = ledger.snapshot([pipeline], now=3.0, priorities={"x": 2.0})
    expected = dpbalance.Round.build(
        [Block(id=name, capacity=1.0, unlocked=0.5, spent=0.25 if name == "d/w9" else 0.0) for name in names],
        [pipeline],
        now=3.0,
        priorities={"x": 2.0},
    )
    for each in dpbalance.Round.__dataclass_fields__:
        assert np.array_equal(getattr(snapshot.round, each), getattr(expected, each)), each
    assert snapshot.seq == 4
    with pytest.raises(NotInLedger, match="d/w77"):
        ledger.snapshot([Pipeline(id="p", analyst="x", demand={"d/w77": 0.1})])


def test_of_closed_blocks_a_snapshot_offers_nothing_and_can_still_explain_it(place: Place) -> None:
    ledger = place.create()
    a, b, c = stocked(ledger)
    ledger.freeze([a])
    ledger.retire([b, c])
    round_ = ledger.snapshot([Pipeline(id="p", analyst="x", demand={b: 0.2})], now=0.0).round
    assert round_.blocks == (a, b)
    assert round_.available.max() <= 0
    (denied,) = dpbalance.scheduler("fcfs").decide(round_).denied
    assert (denied.reason, denied.shortages[0].block) == ("exceeds-left", b)
    assert ledger.snapshot(now=0.0).round.blocks == (a,)


def test_a_statement_tells_who_spent_what_on_whose_decision(place: Place) -> None:
    ledger = place.create(clock=FakeClock(7.0))
    a, b, _ = stocked(ledger)
    spend(ledger, {a: 0.5, b: 0.25}, pipeline="p1", analyst="x", actor="scheduler:main")
    spend(ledger, {b: 0.25}, pipeline="p2", analyst="y")
    ledger.dispatch([1])
    line = ledger.statement(block=a)[0]
    assert (line.pipeline, line.analyst, line.stage, line.actor) == ("p1", "x", "dispatched", "scheduler:main")
    assert (line.block, line.cost, line.time, line.order, line.scheduler) == (a, 0.5, 7.0, 8.0, "by hand")
    assert line.epsilon == pytest.approx(1.7141, abs=1e-3)
    assert [each.cost for each in ledger.statement(device="d2")] == [0.25, 0.25]
    assert [each.block for each in ledger.statement(pipeline="p1")] == [a, b]
    assert [each.grant for each in ledger.statement(analyst="y")] == [2]
    assert len(ledger.statement()) == 3
    assert ledger.statement(analyst="nobody") == []
    with pytest.raises(NotInLedger):
        ledger.statement(block="d9/w9")
    with pytest.raises(OptionError):
        ledger.statement(colour="red")


def test_an_export_has_every_row(place: Place, tmp_path: Path) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    spend(ledger, {a: 0.5, b: 0.25})
    ledger.export(tmp_path / "csv")
    with (tmp_path / "csv" / "entry.csv").open() as file:
        assert [row["cost_0"] for row in csv.DictReader(file)] == ["500000000", "250000000"]
    ledger.export(tmp_path / "parquet", format="parquet")
    assert polars.read_parquet(tmp_path / "parquet" / "balance.parquet")["spent_0"].sum() == 750_000_000
    assert polars.read_parquet(tmp_path / "parquet" / "journal.parquet")["seq"].to_list() == [1, 2, 3, 4]
    with pytest.raises(OptionError, match="csv or parquet"):
        ledger.export(tmp_path, format="xml")


def test_a_backup_comes_back_as_it_was_and_one_that_is_too_old_is_refused(place: Place, tmp_path: Path) -> None:
    ledger = place.create(orders=[2, 8])
    a, *_ = stocked(ledger, capacity=(1.0, 2.0))
    spend(ledger, {a: (0.5, 0.25)}, key="k")
    assert ledger.backup(tmp_path / "copy.db") == 4
    acknowledged = spend(ledger, {a: (0.5, 0.25)}).seq
    back = f"sqlite:///{tmp_path / 'back.db'}"
    with pytest.raises(LedgerDamaged, match=f"ends at row 4, but row {acknowledged} was acknowledged"):
        restore(tmp_path / "copy.db", back, at_least_seq=acknowledged)
    assert not (tmp_path / "back.db").exists()
    assert restore(tmp_path / "copy.db", back, at_least_seq=4) == 4
    with open_ledger(back, key_file=place.key_file if place.kind != "memory" else None) as restored:
        assert spent(restored, a) == [500_000_000, 250_000_000]
        assert restored.verify().clean
    with pytest.raises(LedgerDamaged):
        open_ledger(back, at_least_seq=5)
    with pytest.raises(AlreadyRegistered):
        ledger.backup(tmp_path / "copy.db")


def test_a_restored_ledger_goes_on_where_the_backup_ended(lasting_place: Place, tmp_path: Path) -> None:
    with create_ledger(f"sqlite:///{tmp_path / 'source.db'}") as source:
        a, *_ = stocked(source)
        spend(source, {a: 0.5}, key="k")
        source.backup(tmp_path / "copy.db")
    (tmp_path / "source.db.key").rename(lasting_place.key_file)
    if lasting_place.kind == "sqlite":
        Path(lasting_place.url.removeprefix("sqlite:///")).unlink(missing_ok=True)
    restore(tmp_path / "copy.db", lasting_place.url, isolation=lasting_place.isolation)
    ledger = lasting_place.open()
    assert spend(ledger, {a: 0.5}, key="k").seq == 4
    assert spend(ledger, {a: 0.5}).seq == 6  # after the row that says what happened
    assert ledger.verify().clean


def test_a_ledger_is_the_same_after_it_was_closed(lasting_place: Place) -> None:
    ledger = lasting_place.create(orders=[2, 8])
    a, *_ = stocked(ledger, capacity=(1.0, 2.0))
    first = spend(ledger, {a: (0.5, 0.25)}, key="k")
    ledger.close()
    again = lasting_place.open(at_least_seq=first.seq)
    assert again.orders == (2.0, 8.0)
    assert spend(again, {a: (0.5, 0.25)}, key="k") == first
    assert spent(again, a) == [500_000_000, 250_000_000]
    assert lasting_place.key_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(AlreadyRegistered):
        lasting_place.create()
