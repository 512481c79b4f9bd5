"""Does every store keep the same promises? One suite for memory, SQLite and PostgreSQL in both isolations."""

from __future__ import annotations

from threading import Barrier, Thread

import numpy as np
import pytest
from ledgers import Place, asking, spend, spent, stocked

import dpbalance
from dpbalance.clock import FakeClock
from dpbalance.demand import Pipeline
from dpbalance.errors import (
    AlreadyRegistered,
    AmountError,
    BlockClosed,
    BudgetExceeded,
    DPBalanceError,
    Fenced,
    InputError,
    KeyReused,
    NotAllowed,
    NotInLedger,
    OptionError,
    WrongStage,
)
from dpbalance.ledger import Ask, Decision, State
from dpbalance.ledger.book import SETTLED
from dpbalance.ledger.page import CEILING
from dpbalance.ledger.store import WallHeld
from dpbalance.market import Block


def test_a_charge_is_taken_from_every_block_it_names(place: Place) -> None:
    ledger = place.create()
    a, b, c = stocked(ledger)
    receipt = spend(ledger, {a: 0.25, b: 0.5})
    assert (receipt.seq, list(receipt.grants)) == (4, [1])
    assert [spent(ledger, name) for name in (a, b, c)] == [[250_000_000], [500_000_000], [0]]
    assert ledger.verify().clean


def test_a_decision_is_charged_in_full_or_not_at_all(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    spend(ledger, {b: 0.9})
    decision = Decision.build(
        [Ask(pipeline="p1", analyst="x", cost={a: 0.1}), Ask(pipeline="p2", analyst="y", cost={a: 0.1, b: 0.2})]
    )
    with pytest.raises(BudgetExceeded, match=rf"block '{b}' has 0.1 left, the decision asks 0.2 \(short by 0.1\)"):
        ledger.charge(decision)
    assert spent(ledger, a) == [0]
    assert ledger.verify().clean


def test_what_is_left_can_be_spent_to_the_last_unit_and_not_one_more(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    spend(ledger, {a: 0.7})
    with pytest.raises(BudgetExceeded, match="short by 1e-09"):
        spend(ledger, {a: 0.300000001})
    spend(ledger, {a: 0.3})
    with pytest.raises(BudgetExceeded):
        spend(ledger, {a: 5e-324})
    assert spent(ledger, a) == [10**9]


def test_grants_of_one_decision_add_up_on_a_block(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    asks = [Ask(pipeline=f"p{at}", analyst="x", cost={a: 0.4}) for at in range(3)]
    with pytest.raises(BudgetExceeded, match=r"asks 1.2 \(short by 0.2\)"):
        ledger.charge(Decision.build(asks))
    assert list(ledger.charge(Decision.build(asks[:2])).grants) == [4, 5]


def test_a_block_with_several_orders_holds_while_one_of_them_does(place: Place) -> None:
    ledger = place.create(orders=[2, 8])
    a, *_ = stocked(ledger, capacity=(1.0, 2.0))
    spend(ledger, {a: (0.8, 0.5)})
    spend(ledger, {a: (0.8, 0.5)})
    assert spent(ledger, a) == [1_600_000_000, 1_000_000_000]
    with pytest.raises(BudgetExceeded, match="at order 8, its best"):
        spend(ledger, {a: (0.1, 1.1)})
    with pytest.raises(InputError, match="orders"):
        ledger.charge(asking({a: 0.1}))
    assert ledger.verify().clean


def test_an_order_that_is_far_overdrawn_never_wraps_around(place: Place) -> None:
    ledger = place.create(orders=[2, 8])
    a, *_ = stocked(ledger, capacity=(1.0, 1e6))
    decision = asking({a: (1e6, 1e-9)}, orders=[2, 8])
    for _ in range(3):
        ledger.charge(decision)
    assert spent(ledger, a)[0] == 3 * 10**15
    many = [Ask(pipeline=f"p{at}", analyst="x", cost={a: (1e6, 1e-9)}) for at in range(2500)]
    first = ledger.charge(Decision.build(many, orders=[2, 8]))
    assert spent(ledger, a) == [CEILING, 2503]
    ledger.void(list(first.grants))
    assert spent(ledger, a) == [CEILING, 3]
    assert ledger.verify().clean


def test_a_refused_charge_is_numbered_and_stays_refused_under_its_key(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    with pytest.raises(BudgetExceeded) as first:
        spend(ledger, {a: 2.0}, key="k")
    assert ledger.head().seq == 4
    ledger.set_budget(a, 5.0, actor="contributor:ann")
    with pytest.raises(BudgetExceeded) as again:
        spend(ledger, {a: 2.0}, key="k")
    assert str(again.value) == str(first.value)
    assert ledger.head().seq == 5
    assert [line.stage for line in ledger.statement(pipeline="p")] == ["denied"]
    spend(ledger, {a: 2.0}, key="another")


def test_denials_are_numbered_beside_grants(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    pipelines = [
        Pipeline(id="p1", analyst="x", demand={a: 0.7}),
        Pipeline(id="p2", analyst="y", demand={a: 0.7, b: 0.1}),
    ]
    snapshot = ledger.snapshot(pipelines, now=0.0)
    receipt = ledger.charge(dpbalance.scheduler("fcfs").decide(snapshot.round), seen=snapshot.seq)
    assert (len(receipt.grants), receipt.told["denied"], ledger.head().claims) == (1, 1, 2)
    (denied,) = ledger.statement(pipeline="p2")
    assert (denied.stage, denied.block, denied.grant) == ("denied", None, 2)
    assert '"left":0.3' in denied.reason


def test_a_decision_that_grants_nothing_is_a_decision(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    round_ = ledger.snapshot([Pipeline(id="p", analyst="x", demand={a: 2.0})], now=0.0).round
    receipt = ledger.charge(dpbalance.scheduler("fcfs").decide(round_), key="k")
    assert (len(receipt.grants), receipt.told["denied"]) == (0, 1)
    assert [line.stage for line in ledger.statement()] == ["denied"]
    assert ledger.verify().clean


def test_every_write_answers_a_retry_as_it_did_the_first_time(place: Place) -> None:
    ledger = place.create(clock=FakeClock(5.0))
    ledger.register_devices({"d": "ann"}, key="1")
    ledger.register_blocks([Block(id="d/w", capacity=2.0, unlocked=0.5)], key="2")
    writes = [
        lambda: ledger.register_devices({"d": "ann"}, key="1"),
        lambda: ledger.register_blocks([Block(id="d/w", capacity=2.0, unlocked=0.5)], key="2"),
        lambda: ledger.unlock({"d/w": 1.5}, key="3"),
        lambda: spend(ledger, {"d/w": 0.1}, key="4"),
        lambda: ledger.void([1], key="5"),
        lambda: spend(ledger, {"d/w": 0.2}, key="6"),
        lambda: ledger.dispatch([2], key="7"),
        lambda: ledger.complete([2], key="8"),
        lambda: ledger.set_budget("d/w", 1.0, key="9"),
        lambda: ledger.freeze(["d/w"], key="10"),
        lambda: ledger.thaw(["d/w"], actor="contributor:ann", key="11"),
        lambda: ledger.acquire("one", 9.0, key="12"),
    ]
    first = [write() for write in writes]
    assert [write() for write in writes] == first
    assert ledger.head().seq == 1 + len(writes)
    assert ledger.verify().clean


def test_a_key_that_comes_again_with_something_else_is_refused(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    spend(ledger, {a: 0.1}, key="k")
    for other in ({a: 0.2}, {b: 0.1}, {a: 0.1, b: 0.1}):
        with pytest.raises(KeyReused, match="row 4"):
            spend(ledger, other, key="k")
    with pytest.raises(KeyReused):
        ledger.freeze([a], key="k")
    for bad in ("", "x" * 201, "a\nb"):
        with pytest.raises(InputError, match="key"):
            spend(ledger, {a: 0.1}, key=bad)
    assert spent(ledger, a) == [100_000_000]


def test_a_refusal_does_not_disturb_those_who_write_at_the_same_time(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    together, problems = Barrier(12), []

    def work(at: int) -> None:
        together.wait()
        try:
            spend(ledger, {a: 0.01} if at % 3 else {b: 3.0}, pipeline=f"p{at}")
        except DPBalanceError as problem:
            problems.append(type(problem))

    threads = [Thread(target=work, args=(at,)) for at in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == [BudgetExceeded] * 4
    assert (spent(ledger, a), spent(ledger, b)) == ([80_000_000], [0])
    assert ledger.verify().clean


def test_a_grant_that_was_never_dispatched_can_be_voided_and_no_other(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    one, two = (spend(ledger, {a: 0.3, b: 0.2}).grants[0] for _ in range(2))
    assert ledger.outbox() == [one, two]
    ledger.dispatch([one])
    with pytest.raises(WrongStage, match=f"grant {one} is dispatched, it cannot become voided"):
        ledger.void([one])
    ledger.void([two], note="the plan could not be made")
    assert (spent(ledger, a), ledger.outbox()) == ([300_000_000], [])
    for again in (ledger.void, ledger.dispatch, ledger.complete, ledger.fail):
        with pytest.raises(WrongStage):
            again([two])
    with pytest.raises(NotInLedger, match="grant 99"):
        ledger.void([99])
    with pytest.raises(InputError, match="distinct"):
        ledger.dispatch([one, one])
    assert ledger.verify().clean


def test_what_was_dispatched_is_charged_whatever_becomes_of_it(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    grants = [spend(ledger, {a: 0.1}).grants[0] for _ in SETTLED]
    begun = [grant for grant, outcome in zip(grants, SETTLED, strict=True) if outcome != "never-dispatched"]
    ledger.dispatch(begun)
    for grant, outcome in zip(grants, SETTLED, strict=True):
        ledger.settle(grant, outcome)
    assert spent(ledger, a) == [len(begun) * 100_000_000]
    with pytest.raises(WrongStage):
        ledger.settle(begun[0], "never-dispatched")
    with pytest.raises(OptionError, match="outcome"):
        ledger.settle(begun[0], "fine")


def test_a_grant_whose_dispatch_is_unknown_is_charged(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    (grant,) = spend(ledger, {a: 0.1}).grants
    ledger.fail([grant], note="the runner died before it told")
    with pytest.raises(WrongStage):
        ledger.void([grant])
    assert spent(ledger, a) == [100_000_000]


def test_a_budget_is_lowered_down_to_what_is_spent_and_raised_by_the_contributor(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    spend(ledger, {a: 0.6})
    with pytest.raises(BudgetExceeded, match=r"has 0.6 spent already"):
        ledger.set_budget(a, 0.599999999)
    ledger.set_budget(a, 0.6)
    for actor in ("operator", "scheduler:x", "contributor:bob"):
        with pytest.raises(NotAllowed, match="only the contributor 'ann' may raise"):
            ledger.set_budget(a, 2.0, actor=actor)
    ledger.set_budget(a, 2.0, actor="contributor:ann")
    spend(ledger, {a: 1.4})
    assert ledger.balances([a])[0].unlocked.tolist() == [2 * 10**9]
    assert ledger.verify().clean


def test_a_budget_of_several_orders_is_lowered_while_one_of_them_holds(place: Place) -> None:
    ledger = place.create(orders=[2, 8])
    a, *_ = stocked(ledger, capacity=(1.0, 2.0))
    spend(ledger, {a: (0.5, 0.5)})
    ledger.set_budget(a, (0.1, 0.5))
    with pytest.raises(BudgetExceeded):
        ledger.set_budget(a, (0.1, 0.4))
    assert ledger.verify().clean


def test_unlocking_only_ever_opens_more(place: Place) -> None:
    ledger = place.create()
    ledger.register_devices({"d": ""})
    ledger.register_blocks([Block(id="d/w", capacity=1.0, unlocked=0.25)])
    with pytest.raises(BudgetExceeded, match=r"has 0\.25 left"):
        spend(ledger, {"d/w": 0.5})
    ledger.unlock({"d/w": 0.5})
    ledger.unlock({"d/w": 0.1})
    spend(ledger, {"d/w": 0.5})
    with pytest.raises(AmountError, match="more than its capacity"):
        ledger.unlock({"d/w": 1.5})
    assert ledger.verify().clean


def test_a_freeze_between_decision_and_charge_takes_effect(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    snapshot = ledger.snapshot([Pipeline(id="p", analyst="x", demand={a: 0.1, b: 0.1})], now=0.0)
    decision = dpbalance.scheduler("fcfs").decide(snapshot.round)
    ledger.freeze([a], actor="contributor:ann")
    with pytest.raises(BlockClosed, match=f"block '{a}' is frozen"):
        ledger.charge(decision, seen=snapshot.seq)
    assert (spent(ledger, a), spent(ledger, b)) == ([0], [0])
    with pytest.raises(NotAllowed, match="thaw"):
        ledger.thaw([a], actor="contributor:bob")
    ledger.thaw([a], actor="contributor:ann")
    ledger.charge(decision, seen=snapshot.seq)
    assert ledger.verify().clean


def test_a_block_that_was_retired_between_decision_and_charge_is_never_spent_again(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    decision = asking({a: 0.1})
    (grant,) = ledger.charge(decision).grants
    ledger.retire([a])
    with pytest.raises(BlockClosed, match="retired"):
        ledger.charge(decision)
    for write in (ledger.freeze, ledger.retire, lambda blocks: ledger.thaw(blocks, actor="contributor:ann")):
        with pytest.raises(BlockClosed, match="cannot be undone"):
            write([a])
    with pytest.raises(BlockClosed):
        ledger.set_budget(a, 0.5)
    ledger.void([grant])
    assert spent(ledger, a) == [0]
    assert ledger.verify().clean


def test_of_two_leaders_only_the_one_with_the_newer_token_can_charge(place: Place) -> None:
    clock = FakeClock(100.0)
    ledger = place.create(clock=clock)
    a, *_ = stocked(ledger)
    old = ledger.acquire("one", 10.0)
    assert ledger.acquire("one", 10.0, token=old) == old
    with pytest.raises(Fenced, match="'one' holds the lease"):
        ledger.acquire("two", 10.0)
    spend(ledger, {a: 0.1}, token=old)
    clock.sleep(11.0)
    new = ledger.acquire("two", 10.0)
    assert new > old
    before = ledger.head().seq
    with pytest.raises(Fenced, match=f"token {old} has been succeeded"):
        spend(ledger, {a: 0.1}, token=old)
    with pytest.raises(Fenced, match="needs its token"):
        spend(ledger, {a: 0.1})
    assert ledger.head().seq == before
    spend(ledger, {a: 0.1}, token=new)
    with pytest.raises(Fenced):
        ledger.release("one")
    ledger.release("two")
    with pytest.raises(Fenced):
        spend(ledger, {a: 0.1}, token=new)
    spend(ledger, {a: 0.1})
    assert spent(ledger, a) == [300_000_000]
    assert ledger.verify().clean


def test_spending_after_a_lease_ended_is_safe_until_somebody_else_takes_it(place: Place) -> None:
    clock = FakeClock(0.0)
    ledger = place.create(clock=clock)
    a, *_ = stocked(ledger)
    token = ledger.acquire("one", 1.0)
    clock.sleep(1000.0)
    spend(ledger, {a: 0.1}, token=token)
    assert ledger.acquire("one", 1.0) == token + 1
    with pytest.raises(Fenced):
        spend(ledger, {a: 0.1}, token=token)


def test_a_clock_that_goes_backwards_changes_nothing_but_the_times(place: Place) -> None:
    moments = iter([60.0, 50.0, 40.0, 30.0, 20.0, 10.0, -5.0])

    class Backwards(FakeClock):
        def now(self) -> float:
            return next(moments)

    ledger = place.create(clock=Backwards())
    a, *_ = stocked(ledger)
    spend(ledger, {a: 0.5})
    spend(ledger, {a: 0.5})
    with pytest.raises(BudgetExceeded):
        spend(ledger, {a: 0.1})
    assert [line.time for line in ledger.statement()] == [30.0, 20.0, 10.0]
    assert ledger.verify().clean


def test_a_decision_on_an_old_snapshot_is_refused_only_where_a_block_no_longer_holds_it(place: Place) -> None:
    ledger = place.create()
    a, b, _ = stocked(ledger)
    pipelines = [Pipeline(id="p", analyst="x", demand={a: 0.4, b: 0.4})]
    snapshot = ledger.snapshot(pipelines, now=0.0)
    decision = dpbalance.scheduler("fcfs").decide(snapshot.round)
    spend(ledger, {b: 0.6})
    ledger.charge(decision, seen=snapshot.seq)
    with pytest.raises(BudgetExceeded, match=f"block '{b}' has 0 left since the snapshot at {snapshot.seq}"):
        ledger.charge(decision, seen=snapshot.seq)
    assert (spent(ledger, a), spent(ledger, b)) == ([400_000_000], [10**9])


def test_an_allocation_that_overspends_its_own_round_never_reaches_the_store(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    round_ = ledger.snapshot([Pipeline(id="p", analyst="x", demand={a: 0.7})], now=0.0).round
    wrong = dpbalance.Allocation(round=round_, scheduler="liar", multiple=np.array([2.0]))
    before = ledger.head().seq
    with pytest.raises(BudgetExceeded, match=r"over by 0\.4"):
        ledger.charge(wrong)
    assert ledger.head().seq == before


def test_names_are_registered_once_and_only_on_devices_that_are_there(place: Place) -> None:
    ledger = place.create()
    a, *_ = stocked(ledger)
    with pytest.raises(AlreadyRegistered, match="device 'd1'"):
        ledger.register_devices({"d1": ""})
    with pytest.raises(AlreadyRegistered, match=f"block '{a}'"):
        ledger.register_blocks([Block(id="d1/new", capacity=1.0), Block(id=a, capacity=1.0)])
    with pytest.raises(NotInLedger, match="device 'd9'"):
        ledger.register_blocks([Block(id="d9/w", capacity=1.0)])
    with pytest.raises(InputError, match="twice"):
        ledger.register_blocks([Block(id="d1/x", capacity=1.0)] * 2)
    with pytest.raises(InputError, match="printable"):
        ledger.register_blocks([Block(id="d1/\n", capacity=1.0)])
    with pytest.raises(AmountError, match="spent"):
        ledger.register_blocks([Block(id="d1/x", capacity=1.0, spent=0.5)])
    ledger.register_blocks([Block(id="other", capacity=1.0)], devices={"other": "d2"})
    with pytest.raises(NotInLedger, match="d1/new"):
        spend(ledger, {"d1/new": 0.1})
    assert ledger.verify().clean


def test_names_may_have_any_letters(place: Place) -> None:
    ledger = place.create()
    device = "gerät 'x'\\\";--"
    ledger.register_devices({device: "zoë"})
    block = f"{device}/𝄞 {{}}%s:name"
    ledger.register_blocks([Block(id=block, capacity=1.0)])
    spend(ledger, {block: 0.5}, pipeline="p:\\N", analyst="a\\tb", key="k'\"")
    (line,) = ledger.statement(block=block)
    assert (line.block, line.pipeline, line.analyst) == (block, "p:\\N", "a\\tb")
    assert ledger.verify().clean


def test_the_database_itself_refuses_what_would_overspend(place: Place) -> None:
    ledger = place.create(orders=[2, 8])
    stocked(ledger, capacity=(1.0, 2.0))
    one, opened = np.array([1]), np.array([State.OPEN])
    with ledger.store.writing() as writer:
        assert writer.spend(one, opened, np.array([[2 * 10**9, 3 * 10**9]])) == 0
        assert writer.spend(one, np.array([State.FROZEN]), np.array([[1, 1]])) == 0
    overspent = np.array([[0, 2 * 10**9, 3 * 10**9, 10**9, 2 * 10**9, 10**9, 2 * 10**9]])
    unlocked = np.array([[0, 0, 0, 10**9, 3 * 10**9, 10**9, 2 * 10**9]])
    negative = np.array([[0, -1, 0, 10**9, 2 * 10**9, 10**9, 2 * 10**9]])
    for row in (overspent, unlocked, negative):
        with pytest.raises(WallHeld), ledger.store.writing() as writer:
            writer.set_balances(one, np.array([[0, 0]]), row)
    assert ledger.verify().clean
