"""Can one record move what a device computes by more than its clip, whatever model it is sent?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fleets import SOFTMAX, Fleet
from test_agent import START, planned, signed

from dpbalance.clock import FakeClock, SeededSecrets, SystemSecrets, Words, chance
from dpbalance.errors import InputError, PlanRefused
from dpbalance.execution import Agent, Granted, ModelSpec, TrainingSpec, device_plans
from dpbalance.execution.models import FEATURE_MAX, PARAMETER_MAX, Floats, capped, losses, made, usable
from dpbalance.execution.plan import RATE_MIN
from dpbalance.execution.training import Records, local_update, noised_gradient, noised_loss, threshold

SPECS = [
    ModelSpec(kind=kind, features=features, classes=classes, hidden=9 if kind == "mlp" else 0)
    for kind in ("softmax", "mlp")
    for classes in (2, 10)
    for features in (5, 64)
]


def adversarial(size: int, seed: int) -> Iterator[Floats]:
    """Parameters inside the bound: large, cancelling, equal, on a few coordinates only."""
    random = chance(seed)
    for scale in (1.0, 1e2, PARAMETER_MAX):
        drawn = np.clip(random.standard_normal(size) * scale, -PARAMETER_MAX, PARAMETER_MAX)
        yield drawn
        yield np.sign(drawn) * scale
        yield np.where(random.random(size) < 0.1, drawn, 0.0)


@pytest.mark.parametrize("spec", SPECS, ids=lambda each: f"{each.kind}-{each.features}-{each.classes}")
def test_one_record_more_moves_the_sum_by_no_more_than_its_clip(spec: ModelSpec) -> None:
    model, random = made(spec), chance(5)
    for seed in range(8):
        for parameters in adversarial(model.size, seed):
            count = int(random.integers(1, 71))
            scale = float(random.choice([1.0, 1e3, FEATURE_MAX]))
            x = np.repeat(random.standard_normal((1, spec.features)), count, axis=0) * scale
            if seed % 2:
                x = random.standard_normal((count, spec.features)) * scale
            x, y = usable(spec, x, random.integers(0, spec.classes, count))
            place, clip = int(random.integers(0, count)), float(10 ** random.uniform(-2, 2))
            rest = np.arange(count) != place
            whole = model.clipped_sum(parameters, x, y, clip)
            moved = np.linalg.norm(whole - model.clipped_sum(parameters, x[rest], y[rest], clip))
            assert moved <= clip * (1 + 1e-9)


@pytest.mark.parametrize("spec", SPECS, ids=lambda each: f"{each.kind}-{each.features}-{each.classes}")
def test_the_logits_of_a_record_are_the_same_to_the_last_digit_however_many_others_there_are(spec: ModelSpec) -> None:
    model, random = made(spec), chance(6)
    for parameters in (*adversarial(model.size, 7), random.standard_normal(model.size) * 1e14):
        x = random.standard_normal((70, spec.features)) * 1e3
        whole = model.logits(parameters, x)
        for count in (1, 2, 3, 7, 17, 69):
            at = random.permutation(70)[:count]
            assert np.array_equal(model.logits(parameters, x[at]), whole[at])


@pytest.mark.parametrize("size", [1e14, 1e308])
@pytest.mark.parametrize("spec", SPECS, ids=lambda each: f"{each.kind}-{each.features}-{each.classes}")
def test_parameters_at_the_end_of_doubles_make_no_number_that_is_none(spec: ModelSpec, size: float) -> None:
    model, random = made(spec), chance(8)
    parameters = random.choice([-size, size, 0.0], size=model.size)
    x, y = random.standard_normal((30, spec.features)) * 50, random.integers(0, spec.classes, 30)
    with np.errstate(all="ignore"):
        logits = model.logits(parameters, x)
    whole, without = (model.clipped_sum(parameters, x[:n], y[:n], 1.0) for n in (30, 29))
    assert np.isfinite(whole).all()
    assert np.linalg.norm(whole - without) <= 1 + 1e-9
    told = capped(losses(logits, y), 4.0)
    assert ((told >= 0) & (told <= 4)).all()


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[4]], ids=["softmax", "mlp"])
def test_a_record_with_a_number_that_is_none_counts_exactly_zero(spec: ModelSpec) -> None:
    model = made(spec)
    x, y = np.array([[1.0] * 5, [np.inf] * 5, [np.nan] * 5]), np.array([0, 1, 1])
    parameters = np.full(model.size, 0.1)
    alone = model.clipped_sum(parameters, x[:1], y[:1], 0.3)
    np.testing.assert_allclose(model.clipped_sum(parameters, x, y, 0.3), alone, atol=1e-15)


@pytest.mark.parametrize("size", [1e308, 1e14, 1.01 * PARAMETER_MAX, np.nan, np.inf])
def test_a_device_takes_no_model_beyond_the_bound(tmp_path: Path, size: float) -> None:
    fleet = Fleet(place=tmp_path, devices=1)
    device = Agent(fleet.folders["d0"], clock=FakeClock(200.0))
    device.accept(signed(fleet, planned(fleet, training=TrainingSpec(loss_share=0.1), units=10**10)))
    wild = START.copy()
    wild[0] = size
    for ask in (lambda: device.answer("run-000001", 0, wild), lambda: device.loss("run-000001", wild)):
        with pytest.raises(PlanRefused, match="at most 10000"):
            ask()


def test_a_step_beyond_the_bound_is_drawn_back_to_it(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path, devices=1)
    plan = planned(fleet, training=TrainingSpec(local_steps=3, learning_rate=1e6))
    none = [Records(plan=plan.blocks[0], x=np.zeros((0, 6)), y=np.zeros(0, dtype=np.int64))]
    moved = local_update(plan, made(SOFTMAX), START, none, SeededSecrets(1))
    assert np.abs(moved).max() == PARAMETER_MAX


class Counting(SeededSecrets):
    """Chance that keeps what it said."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.normals: list[Floats] = []
        self.coins: list[int] = []

    def normal(self, shape: tuple[int, ...]) -> Floats:
        drawn = super().normal(shape)
        self.normals.append(drawn)
        return drawn

    def words(self, count: int) -> Words:
        self.coins.append(count)
        return super().words(count)


@pytest.mark.parametrize("blocks", [1, 2])
def test_each_step_has_one_draw_of_its_own_and_one_coin_for_each_record(tmp_path: Path, blocks: int) -> None:
    fleet = Fleet(place=tmp_path, devices=1, blocks=blocks)
    training = TrainingSpec(rounds=4, local_steps=3, sampling_rate=0.5)
    granted = Granted(grant=1, pipeline="p", analyst="a", orders=None, charged=dict.fromkeys(fleet.sizes, (10**9,)))
    (plan,) = device_plans(
        granted, SOFTMAX, training, sizes=fleet.sizes, device_of=dict.fromkeys(fleet.sizes, "d0"), now=100.0
    )
    secrets = Counting(1)
    device = Agent(fleet.folders["d0"], clock=FakeClock(200.0), secrets=secrets)
    device.accept(signed(fleet, plan))
    for number in range(training.rounds):
        device.answer(plan.run, number, START)
        device.answer(plan.run, number, START)
    assert [each.shape for each in secrets.normals] == [START.shape] * training.steps
    assert len({each.tobytes() for each in secrets.normals}) == training.steps
    assert secrets.coins == [fleet.size] * training.steps * blocks


def test_a_noised_loss_takes_one_draw_and_a_loss_that_is_none_counts_as_the_cap(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path, devices=1)
    plan = planned(fleet, training=TrainingSpec(loss_share=0.1, loss_cap=2.0), units=10**10)
    held = Records(plan=plan.blocks[0], x=np.full((40, 6), 50.0), y=np.zeros(40, dtype=np.int64))
    secrets = Counting(1)
    with np.errstate(all="ignore"):
        told = noised_loss(plan, made(SOFTMAX), np.full(START.size, 1e308), [held], secrets)
    (drawn,) = secrets.normals
    assert told == pytest.approx((40 * plan.blocks[0].loss_cap + plan.loss_noise * float(drawn[0])) / 40)


@pytest.mark.parametrize("rate", [0.003, 0.02])
def test_seldom_sampled_records_are_taken_as_seldom_as_planned(tmp_path: Path, rate: float) -> None:
    fleet = Fleet(place=tmp_path, devices=1)
    plan = planned(fleet, training=TrainingSpec(rounds=1, sampling_rate=rate))
    count, model = 100_000, made(SOFTMAX)
    held = Records(plan=plan.blocks[0], x=np.zeros((count, 6)), y=np.zeros(count, dtype=np.int64))
    each = model.clipped_sum(START, held.x[:1], held.y[:1], plan.blocks[0].clip)

    class Quiet(SystemSecrets):
        def normal(self, shape: tuple[int, ...]) -> Floats:
            return np.zeros(shape)

    taken = noised_gradient(plan, model, START, [held], Quiet()) * plan.records_expected @ each / (each @ each)
    assert taken == pytest.approx(rate * count, abs=6 * np.sqrt(rate * count))


def test_the_coin_is_never_kinder_to_a_rate_than_the_accountant() -> None:
    for rate in (RATE_MIN, 1e-5, 0.1, 1 / 3, 0.5, 1.0):
        assert int(threshold(rate)) / 2**53 <= rate <= (int(threshold(rate)) + 1) / 2**53
    assert (SystemSecrets().words(1000) < threshold(1.0)).all()


def test_no_rate_is_below_the_one_the_coin_can_tell() -> None:
    granted = Granted(grant=1, pipeline="p", analyst="a", orders=None, charged={"d/w": (10**9,)})
    for rate in (1e-7, 0.0, 1.5):
        with pytest.raises(InputError, match="sampling rate"):
            device_plans(
                granted, SOFTMAX, TrainingSpec(), sizes={"d/w": 9}, device_of={"d/w": "d"}, rates={"d/w": rate}
            )
