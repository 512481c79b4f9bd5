"""Can an amount that is no amount get into the ledger? Each of them with its own test, by every way in."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ledgers import asking, spend, spent, stocked

from dpbalance.amounts import MAX_UNITS
from dpbalance.errors import AmountError, BudgetExceeded, DPBalanceError, InputError
from dpbalance.ledger import Ask, Decision, Ledger, create_ledger
from dpbalance.market import Block


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with create_ledger("memory:") as made:
        yield made


def raw(units: int | np.ndarray) -> Decision:
    """A decision of whole units that somebody else made."""
    return Decision(
        orders=None,
        scheduler="x",
        pipelines=("p",),
        analysts=("x",),
        multiples=(1.0,),
        blocks=("d1/w0",),
        owner=np.zeros(1, dtype=np.int64),
        block=np.zeros(1, dtype=np.int64),
        cost=np.array([[units]]) if isinstance(units, int) else units,
    )


@pytest.mark.parametrize("amount", [-10.0, -1e-300, math.nan, math.inf, -math.inf, 1e300, 2.0**63, "0.1", None, [0.1]])
def test_what_is_no_amount_is_refused(ledger: Ledger, amount: object) -> None:
    a, *_ = stocked(ledger)
    for write in (
        lambda: spend(ledger, {a: amount}),
        lambda: ledger.set_budget(a, amount, actor="contributor:ann"),
        lambda: ledger.unlock({a: amount}),
        lambda: ledger.register_blocks([Block(id="d1/new", capacity=amount)]),
    ):
        with pytest.raises(DPBalanceError) as refusal:
            write()
        assert isinstance(refusal.value, AmountError)
    assert (spent(ledger, a), ledger.head().seq) == ([0], 3)


def test_a_negative_charge_cannot_raise_a_budget(ledger: Ledger) -> None:
    a, *_ = stocked(ledger)
    with pytest.raises(AmountError):
        spend(ledger, {a: -10.0})
    with pytest.raises(AmountError, match="above 0"):
        raw(-10)
    with pytest.raises(BudgetExceeded):
        spend(ledger, {a: 1.1})


@pytest.mark.parametrize("nothing", [0.0, -0.0])
def test_a_charge_of_nothing_is_refused(ledger: Ledger, nothing: float) -> None:
    a, *_ = stocked(ledger)
    with pytest.raises(AmountError, match="above 0"):
        spend(ledger, {a: nothing})
    assert ledger.head().seq == 3


def test_a_subnormal_charge_costs_a_unit_and_is_not_lost_after_exhaustion(ledger: Ledger) -> None:
    a, *_ = stocked(ledger)
    spend(ledger, {a: 5e-324})
    assert spent(ledger, a) == [1]
    spend(ledger, {a: 0.999999999})
    with pytest.raises(BudgetExceeded):
        spend(ledger, {a: 5e-324})
    assert spent(ledger, a) == [10**9]


@pytest.mark.parametrize("units", [2**63 - 1, MAX_UNITS + 2, 0])
def test_whole_units_out_of_range_are_refused(units: int) -> None:
    with pytest.raises(AmountError, match="in range"):
        raw(units)


@pytest.mark.parametrize("wrong", [np.array([[2**63]], dtype=np.uint64), np.array([[0.5]]), np.array([[True]])])
def test_units_of_another_type_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(AmountError, match="64 bits"):
        raw(wrong)


def test_the_largest_amount_leaves_nothing_but_does_not_wrap(ledger: Ledger) -> None:
    ledger.register_devices({"d1": ""})
    ledger.register_blocks([Block(id="d1/w0", capacity=1e6)])
    ledger.charge(raw(MAX_UNITS))
    for _ in range(3):
        with pytest.raises(BudgetExceeded, match="has 0 left"):
            ledger.charge(raw(MAX_UNITS + 1))
    assert ledger.verify().clean


def test_a_block_twice_in_one_claim_is_refused() -> None:
    with pytest.raises(InputError, match="charged twice on block 'b'"):
        Decision(
            orders=None,
            scheduler="x",
            pipelines=("p",),
            analysts=("x",),
            multiples=(1.0,),
            blocks=("a", "b"),
            owner=np.zeros(3, dtype=np.int64),
            block=np.array([1, 0, 1]),
            cost=np.ones((3, 1), dtype=np.int64),
        )


def test_a_block_that_is_named_twice_cannot_be_spent_twice(ledger: Ledger) -> None:
    a, *_ = stocked(ledger)
    decision = Decision(
        orders=None,
        scheduler="x",
        pipelines=("p", "q"),
        analysts=("x", "x"),
        multiples=(1.0, 1.0),
        blocks=(a, a),
        owner=np.arange(2),
        block=np.arange(2),
        cost=np.full((2, 1), 9 * 10**8),
    )
    with pytest.raises(InputError, match="twice"):
        ledger.charge(decision)
    assert spent(ledger, a) == [0]


@pytest.mark.parametrize("wrong", [np.array([-1]), np.array([1]), np.array([0.0])])
def test_an_index_that_is_none_is_refused(wrong: np.ndarray) -> None:
    for name in ("owner", "block"):
        with pytest.raises(InputError, match="indices that exist"):
            replace(raw(1), **{name: wrong})


def test_budgets_of_many_blocks_are_whole_units(ledger: Ledger) -> None:
    ledger.register_devices({"d": ""})
    for wrong in (np.array([[1.5]]), np.array([[-1]]), np.array([[MAX_UNITS + 1]]), np.array([1])):
        with pytest.raises(AmountError):
            ledger.register_arrays(("d/w",), ["d"], wrong)
    with pytest.raises(InputError, match="printable"):
        ledger.register_arrays(("d/\n",), ["d"], np.array([[1]]))


def test_a_claim_on_no_blocks_is_refused() -> None:
    with pytest.raises(InputError, match="pipeline 'p' is charged on no block"):
        Decision.build([Ask(pipeline="p", analyst="x", cost={})])


def test_one_amount_where_there_are_several_orders_is_refused(tmp_path: Path) -> None:
    with create_ledger("memory:", orders=[2, 8]) as ledger:
        ledger.register_devices({"d": ""})
        for wrong in (1.0, (1.0,), (1.0, 2.0, 3.0)):
            with pytest.raises(AmountError):
                ledger.register_blocks([Block(id="d/w", capacity=wrong)])
            with pytest.raises(AmountError):
                asking({"d/w": wrong}, orders=[2, 8])


def test_a_time_that_no_lease_can_have_is_refused(ledger: Ledger) -> None:
    for seconds in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError):
            ledger.acquire("one", seconds)


def test_what_others_write_past_the_rules_is_stopped_by_the_file_itself(tmp_path: Path) -> None:
    with create_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        stocked(ledger)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        for put in ("spent_0 = 2000000000", "spent_0 = -1", "unlocked_0 = 2000000000", "spent_0 = 'none'"):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(f"UPDATE balance SET {put}")
    connection.close()
