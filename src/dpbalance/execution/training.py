"""What happens to records in one step? Sampled by coin tosses, clipped one by one, summed, and noised once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbalance.clock import Secrets
from dpbalance.execution.models import Floats, Labels, Model, losses
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
        taking_part = secrets.uniform(len(each.y)) < each.plan.sampling_rate
        if taking_part.any():
            total += model.clipped_sum(parameters, each.x[taking_part], each.y[taking_part], each.plan.clip)
    total += plan.noise * secrets.normal((model.size,))
    return total / plan.records_expected


def local_update(
    plan: DevicePlan, model: Model, parameters: Floats, records: Sequence[Records], secrets: Secrets
) -> Floats:
    """What one round changes: so many steps on this device, each with noise of its own."""
    moved = parameters.copy()
    for _ in range(plan.training.local_steps):
        moved -= plan.training.learning_rate * noised_gradient(plan, model, moved, records, secrets)
    return moved - parameters


def noised_loss(
    plan: DevicePlan, model: Model, parameters: Floats, records: Sequence[Records], secrets: Secrets
) -> float:
    """The mean loss, each record's drawn back to its block's cap, with the noise that the grant's share paid for."""
    total = plan.loss_noise * float(secrets.normal((1,))[0])
    for each in records:
        if len(each.y):
            total += float(np.minimum(losses(model.logits(parameters, each.x), each.y), each.plan.loss_cap).sum())
    return total / sum(each.plan.size for each in records)
