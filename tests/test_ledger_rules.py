"""Do leases, batches, names and refusals hold where somebody does what nobody should? One test for each way."""

from __future__ import annotations

import linecache
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from ledgers import Place, asking, spend, spent, stocked

import dpbalance
from dpbalance.clock import FakeClock
from dpbalance.demand import Pipeline
from dpbalance.errors import (
    BudgetExceeded,
    DPBalanceError,
    Fenced,
    InputError,
    LedgerDamaged,
    LedgerUnavailable,
    NotAllowed,
    NotInLedger,
)
from dpbalance.ledger import Ask, Decision, create_ledger
from dpbalance.ledger.book import TOKENS_APART
from dpbalance.ledger.copies import restore
from dpbalance.ledger.requests import Charge, Move, Stage
from dpbalance.market import Block, round_to_json
from dpbalance.market.files import round_from_json

# Leases


def test_every_step_of_a_grant_goes_through_the_fence(place: Place) -> None:
    clock = FakeClock(0.0)
    ledger = place.create(clock=clock)
    a, *_ = stocked(ledger)
    old = ledger.acquire("one", 1.0)
    clock.sleep(2.0)
    new = ledger.acquire("two", 100.0)
    grants = list(ledger.charge(Decision.build([Ask(pipeline=f"p{at}", analyst="x", cost={a: 0.1}) for at in range(5)]),
                                token=new).grants)  # fmt: skip
    before = ledger.head().seq
    for write in (ledger.dispatch, ledger.void, ledger.complete, ledger.fail):
        with pytest.raises(Fenced, match="succeeded"):
            write(grants[:1], token=old)
    with pytest.raises(Fenced):
        ledger.settle(grants[0], "error", token=old)
    assert ledger.head().seq == before
    ledger.void(grants[:1], token=new)
    ledger.dispatch(grants[1:2], token=new)
    ledger.dispatch(grants[2:])  # whoever carries out decides nothing, and needs no lease
    ledger.complete(grants[1:2])
    ledger.fail(grants[2:3], token=new)
    ledger.settle(grants[3], "lost")
    ledger.settle(grants[4], "completed", token=new)
    assert spent(ledger, a) == [400_000_000]


def test_a_name_alone_inherits_no_lease(place: Place) -> None:
    clock = FakeClock(0.0)
    ledger = place.create(clock=clock)
    a, *_ = stocked(ledger)
    first = ledger.acquire("scheduler", 100.0)
    assert ledger.acquire("scheduler", 100.0, token=first) == first
    second = ledger.acquire("scheduler", 100.0)
    assert second > first
    with pytest.raises(Fenced, match="lost the lease"):
        ledger.acquire("scheduler", 100.0, token=first)
    with pytest.raises(Fenced):
        spend(ledger, {a: 0.1}, token=first)
    with pytest.raises(Fenced):
        ledger.release("scheduler", token=first)
    with pytest.raises(Fenced, match="'scheduler' holds the lease"):
        ledger.acquire("other", 1.0)
    ledger.release("scheduler", token=second)
    with pytest.raises(Fenced, match="lost the lease"):
        ledger.acquire("scheduler", 100.0, token=second)


def test_a_lease_that_passed_on_is_not_given_again_under_its_key(place: Place) -> None:
    clock = FakeClock(0.0)
    ledger = place.create(clock=clock)
    token = ledger.acquire("one", 1.0, key="k")
    assert ledger.acquire("one", 1.0, key="k") == token
    clock.sleep(5.0)
    ledger.acquire("two", 100.0)
    with pytest.raises(Fenced, match="has passed on"):
        ledger.acquire("one", 1.0, key="k")


def test_a_backup_brings_no_lease_back_and_no_token_twice(lasting_place: Place, tmp_path: Path) -> None:
    clock = FakeClock(1000.0)
    with create_ledger(f"sqlite:///{tmp_path / 'source.db'}", clock=clock) as source:
        a, *_ = stocked(source)
        before = source.acquire("one", 1e6)
        source.backup(tmp_path / "copy.db")
        source.release("one")
        after = [source.acquire(f"later {at}", 0.0) for at in range(9)]
    (tmp_path / "source.db.key").rename(lasting_place.key_file)
    restore(tmp_path / "copy.db", lasting_place.url)
    ledger = lasting_place.open(clock=clock)
    assert ledger.verify().demand().clean
    with pytest.raises(Fenced):
        spend(ledger, {a: 0.1}, token=before)  # whose lease the backup still tells of
    with ledger.store.reading() as reader:
        last = list(reader.rows("journal", ["kind"], order=("seq",)))[-1]
    assert (last, ledger.head().holder) == (("restored",), "")
    new = ledger.acquire("three", 100.0)
    assert new > TOKENS_APART > max(after)
    for token in (before, *after):
        with pytest.raises(Fenced):
            spend(ledger, {a: 0.1}, token=token)
    spend(ledger, {a: 0.1}, token=new)
    assert ledger.verify().demand().clean


# Batches


def test_a_request_that_cannot_be_written_disturbs_no_other_of_its_batch(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    decision = asking({a: 0.1})
    ids, known = ledger.names.ids(ledger.store, decision.blocks)

    def charge(**more: Any) -> Charge:
        return Charge(ids=ids, names=decision.blocks, decision=decision, known=known, **more)

    batch: list[Any] = [
        charge(key="1"),
        charge(key="2", seen=np.int64(3)),  # no JSON
        charge(key="3", actor=5),  # no text
        Move(grants=(2**70,), stage=Stage.VOIDED),  # no number of any database
        charge(key="4"),
    ]
    answers = ledger._run([(each, "digest") for each in batch])
    assert [isinstance(each, BaseException) for each in answers] in ([False, True, True, True, False],
                                                                     [False, True, False, True, False])  # fmt: skip
    assert spent(ledger, a)[0] >= 200_000_000


def test_numbers_that_are_none_are_refused_before_they_are_asked(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    spend(ledger, {a: 0.1}, seen=np.int64(3), token=None)
    for write in (
        lambda: spend(ledger, {a: 0.1}, token="x"),
        lambda: spend(ledger, {a: 0.1}, seen=-1),
        lambda: ledger.void([2**70]),
        lambda: ledger.dispatch([-1]),
        lambda: ledger.fail([1.5]),
        lambda: ledger.acquire("one", 1.0, token=True),
    ):
        with pytest.raises(InputError, match="whole number"):
            write()
    assert ledger.verify().clean


def decided(**other: Any) -> Decision:
    """Two pipelines on one block, made by hand."""
    given: dict[str, Any] = {
        "multiples": (1.0, 1.0), "owner": np.array([0, 1]), "block": np.array([0, 0]), "denied": (), **other
    }  # fmt: skip
    cost = np.full((2, 1), 100)
    return Decision(
        orders=None, scheduler="x", pipelines=("p", "q"), analysts=("a", "a"), blocks=("d1/w0",), cost=cost, **given
    )


def test_a_decision_has_one_type_for_each_thing(place: Place) -> None:
    ledger = place.create()
    stocked(ledger)
    descending = np.array([1, 0], dtype=np.uint64)
    for decision in (
        decided(multiples=(1, np.float32(1))),
        decided(owner=descending, block=np.zeros(2, dtype=np.uint8)),
        decided(denied=({"pipeline": "r", "analyst": "a", "reason": "no"},)),
    ):
        assert {type(each) for each in decision.multiples} == {float}
        assert decision.owner.dtype == decision.block.dtype == np.int64
        ledger.charge(decision)
    assert ledger.verify().demand().clean
    for wrong in (
        {"multiples": (1.0, float("nan"))},
        {"multiples": (1.0, "much")},
        {"denied": ({"pipeline": 5, "analyst": "a"},)},
        {"denied": ({"analyst": "a"},)},
        {"denied": ({"pipeline": "a\nb\0", "analyst": "a"},)},
        {"denied": ({"pipeline": "r", "analyst": "a", "reason": {1, 2}},)},
        {"options": {"x": object()}},
    ):
        with pytest.raises(InputError):
            decided(**wrong)


def test_a_clock_that_counts_whole_seconds_is_no_damage() -> None:
    class Whole(FakeClock):
        def now(self) -> float:
            return 5

    with create_ledger("memory:", clock=Whole()) as ledger:
        stocked(ledger)
        assert ledger.verify().demand().clean


# Names


def test_names_of_another_history_are_not_charged(lasting_place: Place, tmp_path: Path) -> None:
    """A process that goes on while somebody puts an older ledger in the place of its own."""
    ledger = lasting_place.create()
    stocked(ledger)
    ledger.backup(tmp_path / "old.db")
    ledger.register_blocks([Block(id="d1/x", capacity=1.0)])
    spend(ledger, {"d1/x": 0.1})
    ledger.snapshot(now=0.0)
    if lasting_place.kind == "sqlite":
        path = Path(lasting_place.url.removeprefix("sqlite:///"))
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()
    else:
        import psycopg

        with psycopg.connect(lasting_place.url) as connection:
            for table in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
                connection.execute(f"DROP TABLE {table[0]}")
    restore(tmp_path / "old.db", lasting_place.url)
    other = lasting_place.open()
    other.register_blocks([Block(id="d1/other", capacity=1.0)])
    with pytest.raises(LedgerUnavailable, match="replaced"):
        spend(ledger, {"d1/x": 0.1})
    with pytest.raises(NotInLedger if lasting_place.kind != "sqlite" else DPBalanceError):
        spend(ledger, {"d1/x": 0.1})
    assert ledger.snapshot(now=0.0).round.blocks == other.snapshot(now=0.0).round.blocks
    assert spent(other, "d1/other") == [0]
    assert other.verify().demand().clean


def test_a_name_is_written_in_one_way_only(place: Place) -> None:
    ledger = place.create()
    ledger.register_devices({"d": "", "d/caf\u00e9": ""})
    for write in (
        lambda: ledger.register_devices({"cafe\u0301": ""}),
        lambda: ledger.register_devices({"e": "zoe\u0308"}),
        lambda: ledger.register_blocks([Block(id="d/cafe\u0301", capacity=1.0)]),
    ):
        with pytest.raises(InputError, match="normal form C"):
            write()
    ledger.register_blocks([Block(id="d/caf\u00e9", capacity=1.0)])


# Contributors, refusals, snapshots


def test_where_nobody_is_the_contributor_nobody_may_raise_or_thaw(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    ledger.freeze([a, b])
    for actor in ("contributor", "contributor:", "contributor:mallory", "operator"):
        for write in (
            lambda name, actor=actor: ledger.set_budget(name, 2.0, actor=actor),
            lambda name, actor=actor: ledger.thaw([name], actor=actor),
        ):
            with pytest.raises(NotAllowed, match="without one"):
                write(b)
            with pytest.raises(NotAllowed, match="only the contributor 'ann'"):
                write(a)


def test_a_refused_decision_says_why_beside_the_denials_of_the_scheduler(place: Place) -> None:
    ledger = place.create()
    a, b, c = stocked(ledger)
    pipelines = [Pipeline(id="p1", analyst="x", demand={a: 0.7}), Pipeline(id="p2", analyst="y", demand={b: 1.7})]
    decision = dpbalance.scheduler("fcfs").decide(ledger.snapshot(pipelines, now=0.0).round)
    spend(ledger, {a: 0.5}, pipeline="before")
    with pytest.raises(BudgetExceeded):
        ledger.charge(decision)
    (mine,) = ledger.statement(pipeline="p1")
    (own,) = ledger.statement(pipeline="p2")
    assert (mine.stage, mine.reason) == ("denied", f'{{"asked":0.7,"block":"{a}","left":0.5,"reason":"refused"}}')
    assert (own.stage, f'"block":"{b}"' in own.reason) == ("denied", True)
    assert [line.pipeline for line in ledger.statement(block=a)] == ["before", "p1"]
    assert [line.pipeline for line in ledger.statement(device="d2")] == ["p2"]
    ledger.freeze([c])
    with pytest.raises(DPBalanceError):
        spend(ledger, {c: 0.1}, pipeline="late")
    assert '"state":"frozen"' in ledger.statement(pipeline="late")[0].reason
    assert ledger.verify().demand().clean


def test_a_snapshot_of_an_order_far_overdrawn_can_be_read_again(place: Place) -> None:
    ledger = place.create(orders=[2, 8])
    a, *_ = stocked(ledger, capacity=(1.0, 1.0))
    asks = [Ask(pipeline=f"p{at}", analyst="x", cost={a: (1e6, 1e-9)}) for at in range(2)]
    ledger.charge(Decision.build(asks, orders=[2, 8]))
    round_ = ledger.snapshot(now=0.0).round
    assert np.array_equal(round_from_json(round_to_json(round_)).available, round_.available)


# What the stores promise


def test_every_commit_is_on_the_disk(lasting_place: Place) -> None:
    ledger = lasting_place.create()
    with ledger.store.writing() as writer:
        if lasting_place.kind == "sqlite":
            assert writer._connection.execute("PRAGMA synchronous").fetchone() == (2,)
            assert writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        else:
            assert writer._raw.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.mark.parametrize("count", ["spend", "set_balances", "set_stages", "set_head"])
def test_a_row_that_is_missing_takes_everything_back(place: Place, count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database says that it changed a row less than it was told to."""
    ledger = place.create()
    a, *_ = stocked(ledger)
    (grant,) = spend(ledger, {a: 0.1}).grants
    before, balances = ledger.head(), spent(ledger, a)
    with ledger.store.writing() as writer:
        kind = type(writer)
    own = getattr(kind, count)
    monkeypatch.setattr(kind, count, lambda *given: own(*given) - 1)
    write = {"set_balances": lambda: ledger.freeze([a]), "set_stages": lambda: ledger.dispatch([grant])}
    with pytest.raises(LedgerDamaged, match="nothing was written"):
        write.get(count, lambda: spend(ledger, {a: 0.1}))()
    assert (ledger.head(), spent(ledger, a), ledger.outbox()) == (before, balances, [grant])
    monkeypatch.undo()
    assert ledger.verify().demand().clean


def test_a_head_that_moved_is_not_replaced(place: Place) -> None:
    ledger = place.create()
    head = ledger.head()
    for stale in (replace(head, seq=head.seq + 1), replace(head, hash="0" * 64)):
        with ledger.store.writing() as writer:
            assert writer.set_head(stale, replace(head, seq=99)) == 0
    assert ledger.head() == head


def test_a_key_belongs_to_whoever_used_it(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    ledger.freeze([a], actor="operator", key="k")
    with pytest.raises(DPBalanceError, match="was used for something else"):
        ledger.freeze([a], actor="contributor:ann", key="k")


def test_a_blocks_terms_are_guarded_by_what_was_spent(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    spend(ledger, {a: 0.1})
    row = np.array([[0, 0, 10**9, 10**9]])
    with ledger.store.writing() as writer:
        assert writer.set_balances(np.array([1]), np.array([[0]]), row) == 0
        assert writer.set_stages([(1, int(Stage.DISPATCHED), int(Stage.COMPLETED))]) == 0


def test_an_interrupted_leader_or_waiter_leaves_nobody_hanging() -> None:
    """An interrupt at every line of the queue, one after the other."""
    from dpbalance.ledger import commit

    for line in range(60):
        queue: commit.GroupCommit[int, int] = commit.GroupCommit(lambda batch: list(batch))
        left = [line]

        def interrupt(frame: Any, event: str, _: Any, left: list[int] = left) -> Any:
            if frame.f_code.co_filename != commit.__file__ or frame.f_code.co_name == "_leave":
                return None
            entering = linecache.getline(commit.__file__, frame.f_lineno).strip().startswith("with ")
            if event == "line" and not entering:  # Python lets no interrupt in between a lock and its release
                left[0] -= 1
                if left[0] == -1:
                    raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            queue(1)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        told: list[int] = []
        thread = Thread(target=lambda queue=queue, told=told: told.append(queue(2)), daemon=True)
        thread.start()
        thread.join(5.0)
        assert told == [2], line
