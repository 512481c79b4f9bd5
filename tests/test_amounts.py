"""Is every rounding of an amount exact and on the safe side?"""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbalance.amounts import (
    MAX_EPSILON,
    MAX_UNITS,
    UNITS_PER_EPSILON,
    capacity_units,
    cost_units,
    epsilons,
    multiplied,
    multiplied_exactly,
)
from dpbalance.errors import AmountError

amounts = st.floats(min_value=0.0, max_value=float(MAX_EPSILON), allow_subnormal=True)
small_decimals = st.decimals(min_value=0, max_value=10, places=9)


def as_written(value: float) -> Fraction:
    """The decimal a person reads when the double is shown."""
    return Fraction(Decimal(repr(value)))


@given(amounts)
def test_a_cost_is_the_written_decimal_rounded_up(value: float) -> None:
    exact = as_written(value) * UNITS_PER_EPSILON
    units = int(cost_units(value))
    assert units >= exact - slack(value)
    assert units == math.ceil(exact) or names_the_same(units, value)


@given(amounts)
def test_a_capacity_is_the_written_decimal_rounded_down(value: float) -> None:
    exact = as_written(value) * UNITS_PER_EPSILON
    units = int(capacity_units(value))
    assert units <= exact + slack(value)
    assert units == math.floor(exact) or names_the_same(units, value)


def names_the_same(units: int, value: float) -> bool:
    """Doubles of a million epsilon lie 1e-10 apart: there a whole unit and a longer decimal are the same double."""
    return units / UNITS_PER_EPSILON == value


def slack(value: float) -> Fraction:
    """Half the distance between neighbouring doubles, in units: all that a double can say."""
    return Fraction(math.ulp(value)) * UNITS_PER_EPSILON / 2


@given(small_decimals)
def test_decimals_of_nine_places_are_exact_both_ways(decimal: Decimal) -> None:
    exact = int(decimal * UNITS_PER_EPSILON)
    assert int(cost_units(float(decimal))) == int(capacity_units(float(decimal))) == exact


@given(st.integers(min_value=0, max_value=MAX_UNITS))
def test_units_survive_being_written_and_read(units: int) -> None:
    shown = epsilons(units)
    assert int(cost_units(shown)) == int(capacity_units(shown)) == units


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.floats(min_value=1.0, max_value=1e3)), min_size=1, max_size=20),
)
def test_multiplying_is_exact(pairs: list[tuple[int, float]]) -> None:
    units = np.array([each for each, _ in pairs])
    multiple = np.array([each for _, each in pairs])
    expected = [
        math.ceil(Fraction(each) * times) for times, each in zip(units.tolist(), multiple.tolist(), strict=True)
    ]
    assert multiplied(units, multiple).tolist() == expected
    assert [multiplied_exactly(times, each) for times, each in pairs] == expected


def test_multiplying_by_hardly_more_than_one_costs_a_whole_unit() -> None:
    almost_one = np.array([1.0 + 2.0**-52])
    assert multiplied(np.array([3]), almost_one).tolist() == [4]


def test_a_product_above_every_capacity_is_charged_just_above_it() -> None:
    for units, multiple in ((MAX_UNITS, 2.0), (10**12, 1e9), (5, float(MAX_UNITS))):
        assert multiplied(np.array([units]), np.array([multiple])).tolist() == [MAX_UNITS + 1]
        assert multiplied_exactly(units, multiple) == MAX_UNITS + 1


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, -1e-12, 1e300, MAX_EPSILON * 1.01, "much", None, [1, "a"]]
)
def test_what_is_no_amount_is_refused(bad: object) -> None:
    for convert in (cost_units, capacity_units):
        with pytest.raises(AmountError, match="DPB-102"):
            convert(bad)
