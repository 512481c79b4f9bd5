"""Can an attacker tell whether one record took part better than was promised? Measured, not computed.

The attacker runs the platform: it chooses the model of every round, knows every other record, and sees every answer. It
guesses from the answers' component along the canary's gradient. With 1,000 runs with and 1,000 without the canary, the
95% bounds of Clopper and Pearson on its hits and false alarms give an epsilon that is certainly not less than lost.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from dpbalance.accounting import ALPHAS, Gaussian, SubsampledGaussian, cost, epsilon
from dpbalance.clock import FakeClock, Secrets, SystemSecrets
from dpbalance.execution import Agent, Granted, ModelSpec, TrainingSpec, device_plans, plan_signer, write_block
from dpbalance.execution.agent import STATE
from dpbalance.execution.form import canonical
from dpbalance.execution.models import Floats, made
from dpbalance.execution.replies import Reply

RUNS, DELTA, ROUNDS = 1000, 0.05, 3
THRESHOLDS = np.linspace(-0.6, 2.6, 9)
"""Set beforehand, in standard deviations of the promised noise; each is paid for in confidence."""
SURE = 0.05 / (2 * len(THRESHOLDS))

MODEL = ModelSpec(kind="softmax", features=2, classes=2)
OTHERS = np.array([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]])
CANARY = np.array([[50.0, 50.0]])


class HalfTheNoise(SystemSecrets):
    """What a broken agent would draw."""

    def normal(self, shape: tuple[int, ...]) -> Floats:
        return super().normal(shape) / 2


def scores(place: Path, canary: bool, secrets: Secrets, rate: float, charged: tuple[int, ...]) -> Floats:
    """How much of the canary's direction was in the answers of each run, in standard deviations of promised noise."""
    signer = plan_signer(None)
    x, y = (np.vstack([OTHERS, CANARY]), [0, 1, 1, 0]) if canary else (OTHERS, [0, 1, 1])
    write_block(place, "d/w", x, np.array(y))
    Agent.enrol(place, "d", signer.public, cap=1000.0, orders=ALPHAS)
    (plan,) = device_plans(
        Granted(grant=1, pipeline="p", analyst="a", orders=ALPHAS, charged={"d/w": charged}),
        MODEL,
        TrainingSpec(rounds=ROUNDS, sampling_rate=rate),
        sizes={"d/w": 3},
        device_of={"d/w": "d"},
        now=1.0,
    )
    envelope = signer.sign(canonical(plan))
    model = made(MODEL)
    direction = model.clipped_sum(np.zeros(6), CANARY, np.array([0]), 1.0)
    found = []
    for _ in range(RUNS):
        device = Agent(place, clock=FakeClock(2.0), secrets=secrets)
        device.accept(envelope)
        moved = sum(Reply.decoded(device.answer(plan.run, at, np.zeros(6))).values for at in range(ROUNDS))
        found.append(float(-moved @ direction) * plan.records_expected / (plan.noise * math.sqrt(ROUNDS)))
        (place / STATE / "spend.jsonl").write_bytes(b"")  # as if it had never run
        (place / STATE / f"{plan.run}.replies").unlink()
    return np.array(found)


def certain_epsilon(with_canary: Floats, without: Floats) -> float:
    """The largest epsilon that the attacker's success proves, at 95% confidence for all thresholds together."""
    best = 0.0
    for threshold in THRESHOLDS:
        hits, alarms = int((with_canary > threshold).sum()), int((without > threshold).sum())
        hit = float(beta.ppf(SURE, hits, RUNS - hits + 1)) if hits else 0.0
        alarm = float(beta.ppf(1 - SURE, alarms + 1, RUNS - alarms)) if alarms < RUNS else 1.0
        if hit > DELTA:
            best = max(best, math.log((hit - DELTA) / alarm))
    return best


def attacked(place: Path, secrets: Secrets, rate: float, noise: float) -> tuple[float, float]:
    """The epsilon that is certainly lost, and the one that was promised."""
    recipe = SubsampledGaussian(noise_multiplier=noise, sampling_rate=rate, steps=ROUNDS) if rate < 1 else None
    charged = tuple(cost(recipe or Gaussian(noise_multiplier=noise), ALPHAS).tolist())
    found = [scores(place / str(canary), canary, secrets, rate, charged) for canary in (True, False)]
    return certain_epsilon(*found), epsilon(charged, ALPHAS, DELTA)


@pytest.mark.parametrize(("rate", "noise"), [(1.0, 1.0), (0.5, 0.9)])
def test_nobody_learns_more_of_a_record_than_was_promised(tmp_path: Path, rate: float, noise: float) -> None:
    certain, promised = attacked(tmp_path, SystemSecrets(), rate, noise)
    assert 0 < certain <= promised


def test_an_agent_with_half_the_noise_is_caught(tmp_path: Path) -> None:
    certain, promised = attacked(tmp_path, HalfTheNoise(), 1.0, 1.0)
    assert certain > promised
