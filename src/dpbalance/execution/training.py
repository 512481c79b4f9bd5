"""What happens to records in one step? Sampled by coin tosses, clipped one by one, summed, and noised once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbalance.clock import WORDS, Secrets
from dpbalance.execution.models import PARAMETER_MAX, Floats, Labels, Model, capped, losses
from dpbalance.execution.plan import BlockPlan, DevicePlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """The records of one block, on the device."""

    plan: BlockPlan
    x: Floats
    y: Labels


def noised_gradient(
    plan: DevicePlan, model: Model, parameters: Floats, records: Sequence[Records], secrets: Secrets
) -> Floats:
    """One step: the sum of clipped records of all blocks plus one draw N(0, S^2), over the declared number."""
    total = np.zeros(model.size)
    for each in records:
        taking_part = secrets.words(len(each.y)) < threshold(each.plan.sampling_rate)
        if taking_part.any():
            total += model.clipped_sum(parameters, each.x[taking_part], each.y[taking_part], each.plan.clip)
    total += plan.noise * secrets.normal((model.size,))
    return total / plan.records_expected


def threshold(rate: float) -> np.uint64:
    """Whole numbers of 53 bits below this are as many as the rate says, or one fewer: never more."""
    return np.uint64(math.floor(rate * WORDS))


def local_update(
    plan: DevicePlan, model: Model, parameters: Floats, records: Sequence[Records], secrets: Secrets
) -> Floats:
    """What one round changes: so many steps on this device, each with noise of its own.

    A step beyond the bound of parameters is drawn back to it, which is done to numbers that have their noise already;
    to refuse the round here would be to let it be asked again, with noise that is drawn anew.
    """
    moved = parameters.copy()
    for _ in range(plan.training.local_steps):
        moved -= plan.training.learning_rate * noised_gradient(plan, model, moved, records, secrets)
        moved = np.clip(moved, -PARAMETER_MAX, PARAMETER_MAX)
    return moved - parameters


def noised_loss(
    plan: DevicePlan, model: Model, parameters: Floats, records: Sequence[Records], secrets: Secrets
) -> float:
    """The mean loss, each record's drawn back to its block's cap, with the noise that the grant's share paid for."""
    total = plan.loss_noise * float(secrets.normal((1,))[0])
    for each in records:
        if len(each.y):
            total += float(capped(losses(model.logits(parameters, each.x), each.y), each.plan.loss_cap).sum())
    return total / sum(each.plan.size for each in records)
