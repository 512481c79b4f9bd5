"""What is a grant worth? Accuracy of digits trained on five devices, by Renyi budget, and how long ten runs take."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Result
from dpbalance.clock import SeededSecrets, stopwatch
from dpbalance.execution import Granted, TrainingSpec, device_plans
from dpbalance.execution.digits import DIGITS, digits
from dpbalance.execution.models import accuracy, made
from dpbalance.execution.training import Records, local_update

DEVICES, BLOCKS, SIZE, SEEDS = 5, 4, 72, 8
WORTH = {0.015: 0.26, 0.1: 0.59, 0.3: 0.74, 1.0: 0.86, 1.5: 0.88, 5.0: 0.91}
"""Accuracy that is expected of softmax regression at alpha 8."""
TOLERANCE = 0.03
RECIPE = TrainingSpec(rounds=20, learning_rate=8.0, average=0.5)


def trained(budget: float, seed: int, training: TrainingSpec = RECIPE) -> float:
    """Accuracy on the digits nobody holds, after a grant of this much on every block; the noise is seeded."""
    x, y = digits(seed)
    names = [f"d{device}/w{block}" for device in range(DEVICES) for block in range(BLOCKS)]
    held = {name: slice(at * SIZE, (at + 1) * SIZE) for at, name in enumerate(names)}
    plans = device_plans(
        Granted(
            grant=1, pipeline="p", analyst="a", orders=None, charged=dict.fromkeys(names, (round(budget * 10**9),))
        ),
        DIGITS,
        training,
        sizes=dict.fromkeys(names, SIZE),
        device_of={name: name.partition("/")[0] for name in names},
    )
    records = [[Records(plan=each, x=x[held[each.block]], y=y[held[each.block]]) for each in p.blocks] for p in plans]
    model, secrets = made(DIGITS), SeededSecrets(seed)
    parameters, mean = model.initial(), np.zeros(model.size)
    kept = round(training.average * training.rounds) or 1
    for number in range(training.rounds):
        updates = [
            local_update(plan, model, parameters, mine, secrets) for plan, mine in zip(plans, records, strict=True)
        ]
        parameters = parameters + np.mean(updates, axis=0)
        if number >= training.rounds - kept:
            mean += parameters / kept
    rest = len(names) * SIZE
    return accuracy(model.logits(mean, x[rest:]), y[rest:])


def grants() -> Iterator[Result]:
    """Accuracy by budget; then ten pipelines over fifty devices, from the ledger's outbox to their settlement."""
    for budget, expected in WORTH.items():
        began = stopwatch()
        found = [trained(budget, seed) for seed in range(SEEDS)]
        yield Result(
            family="grants",
            case=f"digits, {DEVICES} x {BLOCKS} x {SIZE}, Renyi budget {budget:g} at alpha 8",
            phases_ms={"one training": (stopwatch() - began) * 1e3 / SEEDS},
            figure=float(np.mean(found)),
            unit="accuracy",
            bar=expected - TOLERANCE,
            notes={"expected": expected, "sd": float(np.std(found))},
        )
    with tempfile.TemporaryDirectory() as folder:
        yield _end_to_end(Path(folder))


def _end_to_end(place: Path) -> Result:
    from fleets import Fleet

    from dpbalance.feedback.settle import carry_out

    fleet = Fleet(place=place, devices=50, blocks=2, size=50)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(10))
        began = stopwatch()
        settled = carry_out(ledger, fleet.desk(TrainingSpec(rounds=10)), fleet.runner(), seconds=120)
        seconds = stopwatch() - began
    assert [each.word for each in settled] == ["completed"] * 10
    return Result(
        family="grants",
        case="10 pipelines x 50 devices x 10 rounds, outbox to settlement, 2 processes",
        phases_ms={},
        figure=seconds,
        unit="s",
        bar=60.0,
        at_least=False,
    )
