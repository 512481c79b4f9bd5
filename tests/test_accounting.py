"""Costs are checked by a second route: closed forms, sums and integrals in 40 digits, and dp-accounting itself."""

import doctest
import math
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbalance.accounting import (
    ALPHA,
    ALPHAS,
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
from dpbalance.errors import RecipeError

UNITS = 10**9
WHOLE_ORDERS = [order for order in ALPHAS if order == int(order)]
ONCE = Gaussian(noise_multiplier=2.0)

mpmath.mp.dps = 40


def gaussian_truth(noise, order):
    return mpmath.mpf(order) / (2 * mpmath.mpf(noise) ** 2)


def laplace_truth(noise, order):
    pure, a = 1 / mpmath.mpf(noise), mpmath.mpf(order)
    return mpmath.log(a / (2 * a - 1) * mpmath.exp((a - 1) * pure) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * pure)) / (
        a - 1
    )


def sampled_truth_at_whole_order(rate, noise, order):
    """The binomial sum as the paper writes it, with digits enough that nothing cancels."""
    q, z, a = mpmath.mpf(rate), mpmath.mpf(noise), int(order)
    terms = (
        math.comb(a, i) * q**i * (1 - q) ** (a - i) * mpmath.exp(mpmath.mpf(i * i - i) / (2 * z * z))
        for i in range(a + 1)
    )
    return mpmath.log(mpmath.fsum(terms)) / (a - 1)


def sampled_truth_at_any_order(rate, noise, order):
    """The expectation as the paper writes it, integrated in pieces around its two bells and the bend between them."""
    q, z, a = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)

    def integrand(x):
        return mpmath.npdf(x, 0, z) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))) ** a

    bend = z * z * mpmath.log(1 / q - 1) + mpmath.mpf(1) / 2
    edges = {centre + width * z for centre in (0, a) for width in (-14, -7, -3, 0, 3, 7, 14)} | {bend}
    return mpmath.log(mpmath.quad(integrand, sorted(edges))) / (a - 1)


def assert_just_above(units, truth):
    """Never below the truth, and within a millionth and two units of it."""
    truth = truth * UNITS
    assert units >= truth, (units, truth)
    assert units <= truth * (1 + mpmath.mpf("1e-6")) + 2, (units, truth)


def log_uniform(chance, low, high):
    return math.exp(chance.uniform(math.log(low), math.log(high)))


# Costs


def test_a_thousand_random_gaussian_and_laplace_releases_cost_their_closed_forms():
    chance = random.Random(1)
    for _ in range(500):
        noise, order = log_uniform(chance, 0.01, 1e4), chance.choice(ALPHAS)
        assert_just_above(cost(Gaussian(noise_multiplier=noise), [order])[0], gaussian_truth(noise, order))
        assert_just_above(cost(Laplace(noise_multiplier=noise), [order])[0], laplace_truth(noise, order))


def test_seven_hundred_random_training_runs_cost_the_binomial_sum_at_whole_orders():
    chance = random.Random(2)
    for _ in range(700):
        rate, noise = log_uniform(chance, 1e-5, 1), log_uniform(chance, 0.2, 100)
        order, steps = chance.choice(WHOLE_ORDERS), int(log_uniform(chance, 1, 1e6))
        truth = steps * sampled_truth_at_whole_order(rate, noise, order)
        recipe = SubsampledGaussian(noise_multiplier=noise, sampling_rate=rate, steps=steps)
        if truth < 1e6:
            assert_just_above(cost(recipe, [order])[0], truth)


@pytest.mark.parametrize("order", [1.1, 1.5, 1.75, 2.5, 7.3, 40.5])
@pytest.mark.parametrize(
    ("rate", "noise", "steps"),
    [(0.01, 1.0, 1000), (1e-4, 0.7, 1), (0.5, 10.0, 50), (0.9, 0.5, 3), (0.02, 0.15, 1), (1e-5, 30.0, 10**6)],
)
def test_training_runs_cost_the_integral_at_fractional_orders(order, rate, noise, steps):
    recipe = SubsampledGaussian(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    assert_just_above(cost(recipe, [order])[0], steps * sampled_truth_at_any_order(rate, noise, order))


def test_three_hundred_random_compositions_cost_the_sum_of_their_parts():
    chance = random.Random(3)
    for _ in range(300):
        noises = [log_uniform(chance, 0.5, 50) for _ in range(3)]
        rate = log_uniform(chance, 1e-3, 1)
        counts = tuple(chance.randint(1, 1000) for _ in noises)
        order = chance.choice(WHOLE_ORDERS)
        parts = (
            Gaussian(noise_multiplier=noises[0]),
            Laplace(noise_multiplier=noises[1]),
            SubsampledGaussian(noise_multiplier=noises[2], sampling_rate=rate),
        )
        truths = (
            gaussian_truth(noises[0], order),
            laplace_truth(noises[1], order),
            sampled_truth_at_whole_order(rate, noises[2], order),
        )
        truth = mpmath.fsum(count * each for count, each in zip(counts, truths, strict=True))
        assert_just_above(cost(Composition(parts=parts, counts=counts), [order])[0], truth)


def test_steps_counts_and_nesting_say_the_same():
    step = SubsampledGaussian(noise_multiplier=1.1, sampling_rate=0.01)
    run = SubsampledGaussian(noise_multiplier=1.1, sampling_rate=0.01, steps=6)
    thrice = Composition(parts=(step,), counts=(3,))
    for same in (Composition(parts=(step,), counts=(6,)), Composition(parts=[thrice, thrice])):
        assert np.abs(cost(same, ALPHAS) - cost(run, ALPHAS)).max() <= 1


def test_sampling_everybody_is_no_sampling():
    everybody = SubsampledGaussian(noise_multiplier=2.0, sampling_rate=1)
    assert cost(everybody, ALPHAS).tolist() == cost(ONCE, ALPHAS).tolist()
    nearly = SubsampledGaussian(noise_multiplier=2.0, sampling_rate=1 - 1e-12)
    assert np.abs(cost(nearly, ALPHAS) - cost(ONCE, ALPHAS)).max() <= 2


def test_a_fractional_order_that_is_too_fine_to_integrate_costs_as_if_not_sampled():
    barely = SubsampledGaussian(noise_multiplier=0.002, sampling_rate=1e-3)
    unsampled = int(cost(Gaussian(noise_multiplier=0.002), [1.5])[0])
    assert unsampled > 100_000 * UNITS
    assert unsampled <= int(cost(barely, [1.5])[0]) <= unsampled * (1 + 2e-11) + 1


def test_a_cost_has_one_number_of_int64_for_each_order():
    assert cost(ONCE).tolist() == cost(ONCE, [ALPHA]).tolist() == [UNITS]
    assert cost(ONCE, ALPHAS).shape == (12,)
    assert cost(ONCE, ALPHAS).dtype == np.int64


def test_the_least_recipe_still_costs_one_unit():
    faint = SubsampledGaussian(noise_multiplier=1e12, sampling_rate=1e-12)
    for recipe in (faint, Gaussian(noise_multiplier=1e12), Laplace(noise_multiplier=1e12)):
        assert cost(recipe, [1.1, *ALPHAS, 1023.5, 1024]).tolist() == [1] * 15


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.03, 1e3),
    st.floats(1e-9, 1),
    st.floats(1.01, 3),
    st.sampled_from([1.1, 1.5, 2, 2.5, 7.9, 8, 64, 64.5]),
)
def test_more_noise_never_costs_more_and_sampling_never_costs_more_than_none(noise, rate, factor, order):
    def sampled(noise):
        return SubsampledGaussian(noise_multiplier=noise, sampling_rate=rate)

    here = int(cost(sampled(noise), [order])[0])
    assert int(cost(sampled(noise * factor), [order])[0]) <= here
    assert here <= int(cost(Gaussian(noise_multiplier=noise), [order])[0]) * (1 + 2e-11) + 1


@settings(max_examples=100, deadline=None)
@given(st.floats(0.1, 1e3), st.floats(1e-9, 1), st.integers(2, 80))
def test_cost_grows_with_the_order_across_both_ways_to_compute_it(noise, rate, order):
    recipe = SubsampledGaussian(noise_multiplier=noise, sampling_rate=rate)
    below, here, above = (int(each) for each in cost(recipe, [order - 1e-6, order, order + 1e-6]))
    assert below <= here * (1 + 2e-11) + 1
    assert here <= above * (1 + 2e-11) + 1
    assert above - below <= 1e-4 * here + 2


# dp-accounting


def accountant(event, orders):
    return RdpAccountant(orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event).rdp * UNITS


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.GaussianDpEvent(1.3),
        dp_accounting.LaplaceDpEvent(2.0),
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1)), 1000
        ),
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0), dp_accounting.GaussianDpEvent(3.0)])
        ),
        dp_accounting.ComposedDpEvent([dp_accounting.ZCDpEvent(0.1), dp_accounting.GaussianDpEvent(5.0)]),
        dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(5.0), 10.0, 1.0),
        dp_accounting.NoOpDpEvent(),
    ],
)
def test_events_cost_what_dp_accounting_says_at_whole_orders(event):
    ours, theirs = cost(event, WHOLE_ORDERS), accountant(event, WHOLE_ORDERS)
    assert (ours >= theirs * (1 - 1e-9)).all()
    assert (ours <= theirs * (1 + 1e-9) + 2).all()


def test_an_event_and_the_recipe_it_is_cost_the_same_at_all_orders():
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    recipe = SubsampledGaussian(noise_multiplier=1.1, sampling_rate=0.01)
    assert cost(event, ALPHAS).tolist() == cost(recipe, ALPHAS).tolist()
    both = Composition(parts=(event, recipe))
    assert cost(both, ALPHAS).tolist() == cost(Composition(parts=(recipe,), counts=(2,)), ALPHAS).tolist()


def test_whole_numbers_of_noise_under_sampling_count_like_any_number():
    """dp-accounting 0.6 forgets the other releases of a sample when one has its noise written without a point."""
    costs = [
        cost(
            dp_accounting.PoissonSampledDpEvent(
                0.1,
                dp_accounting.ComposedDpEvent(
                    [dp_accounting.GaussianDpEvent(2.0), dp_accounting.GaussianDpEvent(noise)]
                ),
            )
        ).tolist()
        for noise in (3, 3.0)
    ]
    assert costs[0] == costs[1]


@pytest.mark.parametrize(
    ("event", "culprit"),
    [
        (dp_accounting.UnsupportedDpEvent(), "UnsupportedDpEvent"),
        (dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(1.0)), "REPLACE_ONE"),
        (dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)), "Laplace"),
        (dp_accounting.PoissonSampledDpEvent(1.5, dp_accounting.GaussianDpEvent(1.0)), "sampling_rate"),
        (
            dp_accounting.dp_event.RepeatAndSelectDpEvent(
                dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)), 10.0, 1.0
            ),
            "selected from",
        ),
        (dp_accounting.NonPrivateDpEvent(), "order 8"),
        (dp_accounting.GaussianDpEvent(0), "noise_multiplier"),
        (dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), -3), "counts"),
        (dp_accounting.ZCDpEvent(-1.0), "rho"),
        (dp_accounting.ZCDpEvent(math.nan), "order 8"),
    ],
)
def test_an_event_without_a_cost_is_refused(event, culprit):
    with pytest.raises(RecipeError, match=culprit):
        cost(event)


def test_the_room_opens_without_dp_accounting_or_scipy():
    script = (
        "import sys, dpbalance.accounting as a;"
        "a.cost(a.SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.1, steps=9), a.ALPHAS);"
        "sys.exit(bool({'dp_accounting', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# Noise for a grant


def test_noise_stays_within_the_budget_and_hardly_less_would_not():
    chance = random.Random(4)
    for case in range(300):
        orders = [chance.choice(ALPHAS)] if case % 10 else list(ALPHAS)
        budget = [log_uniform(chance, 1e-3, 20) for _ in orders]
        rate = 1.0 if case % 3 == 0 else log_uniform(chance, 1e-3, 1)
        steps = int(log_uniform(chance, 1, 3000))
        noise = noise_multiplier(budget, orders, sampling_rate=rate, steps=steps)
        allowed = [math.floor(Fraction(repr(each)) * UNITS) for each in budget]
        spent = cost(SubsampledGaussian(noise_multiplier=noise, sampling_rate=rate, steps=steps), orders)
        assert (spent <= allowed).all()
        less = SubsampledGaussian(noise_multiplier=noise * (1 - 1e-6), sampling_rate=rate, steps=steps)
        assert (cost(less, orders) > allowed).any()


def test_noise_without_sampling_is_the_closed_form():
    assert noise_multiplier(1.0) == pytest.approx(2.0, rel=1e-11)
    assert noise_multiplier([1.0], [8], steps=100) == pytest.approx(20.0, rel=1e-11)


def test_a_larger_grant_buys_less_noise():
    noises = [noise_multiplier(0.1 * multiple, sampling_rate=0.05, steps=100) for multiple in (1, 1.5, 3)]
    assert noises == sorted(noises, reverse=True)


def test_the_smallest_and_the_largest_grant_buy_noise_too():
    assert cost(Gaussian(noise_multiplier=noise_multiplier(1e-9, [64])), [64]).tolist() == [1]
    for rate in (1.0, 1e-12):
        noise = noise_multiplier([1e6] * 12, ALPHAS, sampling_rate=rate)
        assert (cost(SubsampledGaussian(noise_multiplier=noise, sampling_rate=rate), ALPHAS) <= 10**15).all()


# People


def test_epsilon_is_the_sharper_conversion_at_one_order():
    for units in (10**6, 10**8, 10**9, 125 * 10**7):
        renyi = mpmath.mpf(units) / UNITS
        truth = renyi + mpmath.log(mpmath.mpf(7) / 8) - mpmath.log(mpmath.mpf(1e-5) * 8) / 7
        assert truth <= epsilon([units], [8], 1e-5) <= truth * (1 + mpmath.mpf("1e-9"))
    assert epsilon([1_250_000_000], None, 1e-5) == pytest.approx(2.46, abs=0.01)


def test_epsilon_is_the_least_over_the_orders_and_best_order_says_which():
    run = SubsampledGaussian(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
    spent = cost(run, ALPHAS)
    alone = {order: epsilon([units], [order], 1e-5) for order, units in zip(ALPHAS, spent.tolist(), strict=True)}
    assert epsilon(spent, ALPHAS, 1e-5) == min(alone.values())
    assert best_order(spent, ALPHAS, 1e-5) == min(alone, key=alone.get)


def test_nothing_spent_is_epsilon_nought():
    assert epsilon([0], None, 1e-9) == 0
    assert epsilon([0] * 12, ALPHAS, 1e-9) == 0


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1e4), st.floats(1e-12, 0.5), st.sampled_from([*ALPHAS, 1.1, 1024]))
def test_a_capacity_is_the_truth_rounded_down_and_full_blocks_keep_their_promise(promised, delta, order):
    (units,) = capacity(promised, delta, [order]).tolist()
    truth = (promised + mpmath.log(mpmath.mpf(delta)) / (mpmath.mpf(order) - 1)) * UNITS
    assert units <= max(0, truth)
    assert units == 0 or units >= truth * (1 - mpmath.mpf("1e-9")) - 1e-9 * UNITS * abs(math.log(delta)) - 1
    if units:
        assert epsilon([units], [order], delta) <= promised


def test_an_order_that_proves_nothing_holds_nothing():
    assert capacity(3.0, 1e-5, [1.5, 8]).tolist() == [0, 1_355_296_362]
    assert capacity(0, 1e-5, ALPHAS).tolist() == [0] * 12


# The page


def test_the_examples_of_the_page_are_true():
    page = Path(__file__).parent.parent / "docs" / "accounting.md"
    outcome = doctest.testfile(str(page), module_relative=False)
    assert outcome.attempted > 5
    assert outcome.failed == 0
