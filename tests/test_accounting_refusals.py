"""Whatever cannot be is refused, and the refusal names the culprit."""

import math

import pytest

from dpbalance.accounting import (
    Composition,
    Gaussian,
    Laplace,
    SubsampledGaussian,
    best_order,
    capacity,
    cost,
    epsilon,
    noise_multiplier,
)
from dpbalance.errors import AmountError, InputError, OptionError, RecipeError

ONCE = Gaussian(noise_multiplier=2.0)
NUMBERS = [math.nan, math.inf, -math.inf, 0, -1.0, "1", None, True]


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_a_noise_multiplier_that_is_no_positive_number_is_refused(kind, value):
    with pytest.raises(RecipeError, match=rf"{kind.__name__}: noise_multiplier .* from 1e-06 to 1e\+12, not '{value}'"):
        kind(noise_multiplier=value)


@pytest.mark.parametrize(
    ("field", "values", "allowed"),
    [
        ("noise_multiplier", NUMBERS, "from 1e-06 to"),
        ("sampling_rate", [*NUMBERS, 1.0000001], "from 1e-12 to 1,"),
        ("steps", [*NUMBERS, 1.5, 10.0, 10**13], "whole number from 1 to"),
    ],
)
def test_a_field_of_a_training_run_that_cannot_be_is_refused(field, values, allowed):
    good = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10}
    for value in values:
        if field == "sampling_rate" and value is True:
            continue
        with pytest.raises(RecipeError, match=rf"SubsampledGaussian: {field} must be .*{allowed}.*not '{value}'"):
            SubsampledGaussian(**{**good, field: value})


@pytest.mark.parametrize(
    ("parts", "counts", "culprit"),
    [
        ((), None, "at least one"),
        (ONCE, None, "parts must be a tuple"),
        (("ONCE",), None, "ONCE"),
        ((ONCE,), (1, 2), r"1 numbers.*\(1, 2\)"),
        ((ONCE,), 3, "counts must be a tuple, not '3'"),
        ((ONCE,), (0,), "counts .*'0'"),
        ((ONCE,), (1.5,), r"counts .*'1\.5'"),
        ((ONCE,), (True,), "counts .*'True'"),
    ],
)
def test_a_composition_that_cannot_be_is_refused(parts, counts, culprit):
    with pytest.raises(RecipeError, match=culprit):
        Composition(parts=parts, counts=counts)


def test_what_is_no_recipe_is_refused():
    with pytest.raises(RecipeError, match="not '7'"):
        cost(7)


@pytest.mark.parametrize("order", [1.5, 8, 64])
def test_a_cost_beyond_every_block_names_the_order(order):
    for recipe in (
        Gaussian(noise_multiplier=1e-6),
        SubsampledGaussian(noise_multiplier=1e-6, sampling_rate=0.1),
        Composition(parts=(ONCE,), counts=(10**12,)),
    ):
        with pytest.raises(RecipeError, match=rf"at order {order:g}, but"):
            cost(recipe, [order])


@pytest.mark.parametrize("orders", [[], [1], [1.0999], [8, 8], [math.nan], [math.inf], [2000], ["8"], [True], [None]])
def test_orders_that_cannot_be_are_refused_everywhere(orders):
    for ask in (
        lambda: cost(ONCE, orders),
        lambda: noise_multiplier(1.0, orders),
        lambda: epsilon([1], orders, 1e-5),
        lambda: best_order([1], orders, 1e-5),
        lambda: capacity(1.0, 1e-5, orders),
    ):
        with pytest.raises(OptionError, match="orders must be"):
            ask()


@pytest.mark.parametrize("delta", [0, 1, -0.1, math.nan, math.inf, "1e-5", None])
def test_a_delta_that_cannot_be_is_refused(delta):
    for ask in (lambda: epsilon([1], None, delta), lambda: capacity(1.0, delta)):
        with pytest.raises(OptionError, match=f"delta .*'{delta}'"):
            ask()


@pytest.mark.parametrize("wrong", [math.nan, -1, math.inf, 1e7, "1", None])
def test_an_epsilon_that_cannot_be_is_refused(wrong):
    with pytest.raises(OptionError, match=f"epsilon .*'{wrong}'"):
        capacity(wrong, 1e-5)


@pytest.mark.parametrize("spent", [[-1], [0.5], [1, 2], [], "all", [None]])
def test_spend_that_cannot_be_is_refused(spent):
    with pytest.raises(OptionError, match="spent must be 1 whole units"):
        epsilon(spent, None, 1e-5)


@pytest.mark.parametrize(
    ("ask", "error", "culprit"),
    [
        ({"budget": 0}, RecipeError, "budget of 0 at order 8"),
        ({"budget": [1, 1e-10], "orders": [8, 16]}, RecipeError, "budget of 0 at order 16"),
        ({"budget": [1, 1]}, OptionError, "budget must be 1 numbers"),
        ({"budget": 1.0, "orders": [8, 16]}, OptionError, "budget must be 2 numbers"),
        ({"budget": math.nan}, AmountError, "nan"),
        ({"budget": -1}, AmountError, "-1"),
        ({"budget": 1, "sampling_rate": 0}, RecipeError, "sampling_rate"),
        ({"budget": 1, "steps": 0}, RecipeError, "steps"),
    ],
)
def test_a_budget_that_buys_nothing_is_refused(ask, error, culprit):
    with pytest.raises(error, match=culprit) as caught:
        noise_multiplier(**ask)
    assert isinstance(caught.value, InputError)
