"""What exactly may each device do for a grant? Steps, sampling, clipping and one scale of noise, all paid for.

A device trains a run over all its granted blocks and adds one draw N(0, S^2) to the sum of its clipped records in each
step. To a record of block b that is a Poisson(q_b)-sampled Gaussian of noise ratio z_b = S / C_b, whatever the other
blocks are. So the accountant's inverse gives z_b from what block b was granted, and the block is clipped at C_b.

Laws for future editors:
1. Nothing here may depend on the data: sizes are declared, rates and weights are public.
2. The cost of what is planned, in whole units, is within the grant on every block at every order, as computed from the
   very doubles S and C_b that the plan holds.
3. A plan that is made again is another plan; one that is sent again is the same bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dpbalance.accounting.noise import noise_multiplier
from dpbalance.accounting.orders import checked_orders
from dpbalance.accounting.recipes import Composition, Gaussian, Recipe, SubsampledGaussian
from dpbalance.accounting.renyi import cost
from dpbalance.amounts import MAX_UNITS, epsilons
from dpbalance.clock import Clock, RealClock, secret_name
from dpbalance.errors import InputError, OptionError
from dpbalance.execution.form import canonical
from dpbalance.execution.models import ModelSpec
from dpbalance.execution.signature import Envelope, PlanSigner

ADJACENCY = "add-or-remove-one"
PRIVACY_UNIT = "record within a block"
"""What every amount here speaks of; stored with every plan and checked by every agent."""

EXPIRES_AFTER_SECONDS = 3600.0

MARGIN = 1e-11
"""So much more noise than the least is planned: the last digits of a division can then cost no unit."""

RATE_MIN = 1e-6
"""No record is sampled more seldom: the coin has 53 bits, and is a rate to ten digits from here on."""

ROUNDS_MAX, LOCAL_STEPS_MAX, BLOCKS_MAX, SIZE_MAX = 10_000, 1_000, 10_000, 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """How an analyst wants its model to be trained; everything here is public."""

    rounds: int = 10
    local_steps: int = 1
    sampling_rate: float = 1.0
    """Chance of each record to take part in a step."""
    clip: float = 1.0
    """The largest norm a record's gradient may have, on the block whose grant buys the least noise."""
    learning_rate: float = 1.0
    momentum: float = 0.0
    """Of the server, between rounds."""
    average: float = 0.0
    """Share of the last rounds whose models are averaged in the end; 0 takes the last one."""
    loss_share: float = 0.0
    """Share of the grant that pays for the release of a noised training loss; 0 where public data tells."""
    loss_cap: float = 4.0
    """No record counts more than this in the noised loss, in nats."""
    quorum: float = 0.5
    """Share of the devices whose answers make a run a success."""

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "rounds": (1, ROUNDS_MAX),
            "local_steps": (1, LOCAL_STEPS_MAX),
            "sampling_rate": (RATE_MIN, 1.0),
            "clip": (1e-6, 1e6),
            "learning_rate": (1e-9, 1e6),
            "momentum": (0.0, 0.999),
            "average": (0.0, 1.0),
            "loss_share": (0.0, 0.9),
            "loss_cap": (1e-3, 1e3),
            "quorum": (1e-9, 1.0),
        }
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise OptionError(f"{name} must be from {least:g} to {most:g}, not {getattr(self, name)!r}")

    @property
    def steps(self) -> int:
        return self.rounds * self.local_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """What may be done with one block."""

    block: str
    grant: tuple[int, ...]
    """Whole units at each order: what was charged."""
    size: int
    """How many records the contributor declared; the real count stays on the device."""
    sampling_rate: float
    clip: float
    loss_cap: float
    """0 where no loss is released."""

    def __post_init__(self) -> None:
        if not (
            RATE_MIN <= self.sampling_rate <= 1 and self.clip > 0 and self.loss_cap >= 0 and 1 <= self.size <= SIZE_MAX
        ):
            raise InputError(f"block {self.block!r} is planned with numbers that cannot be: {str(self)[:200]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """Everything one device must know, and all it will do. Complete without any other document."""

    run: str
    grant: int
    device: str
    nonce: str
    issued: float
    expires: float
    orders: tuple[float, ...]
    adjacency: str
    privacy_unit: str
    model: ModelSpec
    training: TrainingSpec
    noise: float
    """S: standard deviation of the one draw that is added to the sum of each step."""
    loss_noise: float
    """The same for the sum of losses; 0 where none is released."""
    blocks: tuple[BlockPlan, ...]

    def __post_init__(self) -> None:
        if not (self.noise > 0 and self.loss_noise >= 0 and self.issued < self.expires):
            raise InputError(f"{self.run} is planned with numbers that cannot be")
        for each in self.blocks:
            if (each.loss_cap > 0) != (self.loss_noise > 0):
                raise InputError(f"block {each.block!r}: the release of its loss is not paid for")

    @property
    def records_expected(self) -> float:
        """How many declared records take part in a step: the public normaliser, and the weight of this device."""
        return math.fsum(each.sampling_rate * each.size for each in self.blocks)

    def recipe(self, block: BlockPlan) -> Recipe:
        """What a record of this block goes through, as the accountant knows it."""
        steps = SubsampledGaussian(
            noise_multiplier=self.noise / block.clip, sampling_rate=block.sampling_rate, steps=self.training.steps
        )
        if not self.loss_noise:
            return steps
        return Composition(parts=(steps, Gaussian(noise_multiplier=self.loss_noise / block.loss_cap)))

    def spend(self, block: BlockPlan) -> tuple[int, ...]:
        """What this plan costs a record of the block, in whole units at each order."""
        return _cost(self.recipe(block), self.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A grant as the ledger charged it: whole units on each block, at each order."""

    grant: int
    pipeline: str
    analyst: str
    orders: tuple[float, ...] | None
    charged: Mapping[str, tuple[int, ...]]
    multiple: float = 1.0
    ledger: str = ""
    """Public key of the ledger that charged it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A whole run, one signed plan for each device: what an engine is handed, and what is kept with the charge."""

    run: str
    grant: int
    ledger: str
    """Public key of the ledger that charged the grant: the same number in another ledger is another grant."""
    pipeline: str
    analyst: str
    multiple: float
    orders: tuple[float, ...]
    model: ModelSpec
    training: TrainingSpec
    expires: float
    devices: tuple[str, ...]
    plans: tuple[Envelope, ...] = field(repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the whole plan."""
        return hashlib.sha256(canonical(self)).hexdigest()

    @property
    def quorum(self) -> int:
        """How many devices must have answered for the run to be a success."""
        return max(1, math.ceil(self.training.quorum * len(self.devices)))


def run_name(grant: int) -> str:
    """The name of the run of a grant; the same after every restart.

    >>> run_name(7)
    'run-000007'
    """
    return f"run-{grant:06d}"


def device_plans(
    granted: Granted,
    model: ModelSpec,
    training: TrainingSpec,
    *,
    sizes: Mapping[str, int],
    device_of: Mapping[str, str],
    rates: Mapping[str, float] | None = None,
    now: float = 0.0,
    expires_after: float = EXPIRES_AFTER_SECONDS,
) -> tuple[DevicePlan, ...]:
    """The plan of each device, in the order of their names, unsigned."""
    if not granted.charged or len(granted.charged) > BLOCKS_MAX:
        raise InputError(f"grant {granted.grant} must be of 1 to {BLOCKS_MAX} blocks, not {len(granted.charged)}")
    orders = tuple(checked_orders(granted.orders).tolist())
    mine: dict[str, list[str]] = {}
    for block in sorted(granted.charged):
        if not 1 <= sizes.get(block, 0) <= SIZE_MAX:
            raise InputError(f"block {block!r} has no declared size from 1 to {SIZE_MAX}", hint="declaring its size")
        if block not in device_of:
            raise InputError(f"block {block!r} is on no device that is known")
        mine.setdefault(device_of[block], []).append(block)
    made = []
    for device, blocks in sorted(mine.items()):
        parts = [_rationed(granted.charged[each], (rates or {}).get(each), orders, training) for each in blocks]
        noise = training.clip * min(each[1] for each in parts)
        loss_noise = training.loss_cap * min(each[2] for each in parts)
        plan = DevicePlan(
            run=run_name(granted.grant),
            grant=granted.grant,
            device=device,
            nonce=secret_name(),
            issued=now,
            expires=now + expires_after,
            orders=orders,
            adjacency=ADJACENCY,
            privacy_unit=PRIVACY_UNIT,
            model=model,
            training=training,
            noise=noise,
            loss_noise=loss_noise,
            blocks=tuple(
                BlockPlan(
                    block=block,
                    grant=granted.charged[block],
                    size=sizes[block],
                    sampling_rate=rate,
                    clip=_clip(noise, z),
                    loss_cap=_clip(loss_noise, z_loss) if loss_noise else 0.0,
                )
                for block, (rate, z, z_loss) in zip(blocks, parts, strict=True)
            ),
        )
        check_spend(plan)
        made.append(plan)
    return tuple(made)


def plan_run(
    granted: Granted,
    model: ModelSpec,
    training: TrainingSpec,
    signer: PlanSigner,
    *,
    sizes: Mapping[str, int],
    device_of: Mapping[str, str],
    rates: Mapping[str, float] | None = None,
    clock: Clock | None = None,
    expires_after: float = EXPIRES_AFTER_SECONDS,
) -> RunPlan:
    """The signed plans of a grant."""
    plans = device_plans(
        granted,
        model,
        training,
        sizes=sizes,
        device_of=device_of,
        rates=rates,
        now=(clock or RealClock()).now(),
        expires_after=expires_after,
    )
    return RunPlan(
        run=plans[0].run,
        grant=granted.grant,
        ledger=granted.ledger,
        pipeline=granted.pipeline,
        analyst=granted.analyst,
        multiple=granted.multiple,
        orders=plans[0].orders,
        model=model,
        training=training,
        expires=plans[0].expires,
        devices=tuple(each.device for each in plans),
        plans=tuple(signer.sign(canonical(each)) for each in plans),
    )


def check_spend(plan: DevicePlan) -> None:
    """Refuse a plan that costs more than was granted, on any block at any order."""
    for each in plan.blocks:
        spend = plan.spend(each)
        if len(each.grant) != len(spend) or any(asked > paid for asked, paid in zip(spend, each.grant, strict=True)):
            raise InputError(f"block {each.block!r} is granted {each.grant} units, the plan spends {spend}")


def _rationed(
    units: tuple[int, ...], rate: float | None, orders: tuple[float, ...], training: TrainingSpec
) -> tuple[float, float, float]:
    """Sampling rate, noise ratio of the steps and noise ratio of the loss that these units buy."""
    q = training.sampling_rate if rate is None else rate
    if not RATE_MIN <= q <= 1:
        raise InputError(f"a sampling rate must be from {RATE_MIN:g} to 1, not {q!r}")
    whole = tuple(min(each, MAX_UNITS) for each in units)
    for_loss = tuple(math.floor(training.loss_share * each) for each in whole)
    # parts round up one by one when they are counted together, so a unit is kept aside where there are two
    for_steps = tuple(each - loss - (1 if loss else 0) for each, loss in zip(whole, for_loss, strict=True))
    z = _noise(for_steps, orders, q, training.steps)
    return q, z, _noise(for_loss, orders, 1.0, 1) if training.loss_share else 0.0


def _clip(noise: float, z: float) -> float:
    """The largest double C with noise / C of at least z: a division that rounded the wrong way is taken back."""
    clip = noise / z
    while noise / clip < z:
        clip = math.nextafter(clip, 0.0)
    return clip


@lru_cache(maxsize=4096)
def _noise(units: tuple[int, ...], orders: tuple[float, ...], rate: float, steps: int) -> float:
    least = noise_multiplier(epsilons(np.array(units)).tolist(), orders, sampling_rate=rate, steps=steps)
    return least * (1 + MARGIN)


@lru_cache(maxsize=4096)
def _cost(recipe: Recipe, orders: Sequence[float]) -> tuple[int, ...]:
    return tuple(cost(recipe, orders).tolist())
