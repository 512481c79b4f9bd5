"""What happens on a platform from a demand to a model? Twenty devices, three analysts, twelve pipelines, three rounds.

Everything is real and in one folder: the ledger, the devices with their own records, the training, the settlement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbalance.allocation import Metrics
from dpbalance.amounts import epsilons
from dpbalance.clock import Clock, RealClock, stopwatch
from dpbalance.demand import Pipeline
from dpbalance.execution import Desk, Job, LocalRunner, TrainingSpec, plan_signer
from dpbalance.execution.digits import DIGITS, TOTAL, digit_fleet
from dpbalance.execution.runs import DELTA, provenance
from dpbalance.feedback.losses import Losses
from dpbalance.feedback.settle import Settled, carry_out
from dpbalance.ledger import Ledger, create_ledger
from dpbalance.ledger.statements import people
from dpbalance.market import Block
from dpbalance.scheduler import scheduler

DEVICES, WINDOWS, SIZE, ROUNDS = 20, 3, 24, 3
CAPACITY = 6.0
"""Of each block, at alpha 8; a third of it is unlocked for each round."""

BETA = 2.2
FEW = TrainingSpec(rounds=6, learning_rate=2.0, average=0.5)
MANY = TrainingSpec(rounds=15, learning_rate=6.0, average=0.4)
"""Little budget buys few, careful steps."""

ASKS = {"small": (0.15, 3), "medium": (0.3, 2), "large": (0.4, 3), "huge": (0.8, 3)}
"""What a pipeline asks of each block, and of how many windows."""

PIPELINES = {
    "ana": (("small", 0), ("small", 0), ("medium", 1), ("medium", 2)),
    "ben": (("medium", 0), ("large", 0), ("large", 1), ("small", 2)),
    "eva": (("huge", 0), ("huge", 1), ("large", 2), ("huge", 2)),
}
"""Of each analyst: what it asks, and in which round it comes."""

RUNS_SECONDS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One grant and what came of it."""

    round: int
    run: str
    pipeline: str
    analyst: str
    multiple: float
    loss_before: float
    """l of the pipeline when it was decided."""
    grant: float
    """On each block, in Renyi epsilon."""
    windows: tuple[str, ...]
    records: int
    epsilon: float
    """The same for people, at DELTA."""
    word: str
    accuracy: float | None
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One round."""

    round: int
    asked: int
    granted: int
    metrics: Metrics
    seconds: float
    training_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything that happened."""

    place: Path
    decided: tuple[Decided, ...]
    trained: tuple[Trained, ...]
    waiting: tuple[str, ...]
    spent: tuple[tuple[str, float, float], ...]
    """Each window with what is spent of its blocks on average, and at most, in Renyi epsilon."""
    owned: int
    """Records that devices hold."""
    judged_on: int
    """Records nobody holds, by which models are judged."""
    worst_epsilon: float
    """Of any block, for people."""
    journal_rows: int
    seconds: float


def tell(place: Path, say: Callable[[str], None] = lambda line: None, clock: Clock | None = None) -> Story:
    """Play the story in this folder."""
    watch, begun = clock or RealClock(), stopwatch()
    signer = plan_signer(place / "plan.key")
    devices = [f"dev-{at:02d}" for at in range(DEVICES)]
    folders, sizes, public = digit_fleet(place, devices, WINDOWS, SIZE, trusted=signer.public, cap=CAPACITY)
    desk = Desk(plans=place / "plans", signer=signer, jobs=_job, sizes=sizes)
    runner = LocalRunner(place / "runs", folders, public=public)
    losses = Losses(place / "losses.json")
    decided, trained, pending = [], list[Trained](), dict[str, Pipeline]()
    with create_ledger(f"sqlite:///{place / 'ledger.db'}") as ledger:
        ledger.register_devices({device: f"owner of {device}" for device in devices})
        ledger.register_blocks([Block(id=each, capacity=CAPACITY, unlocked=0.0) for each in sizes])
        for number in range(ROUNDS):
            pending |= {each.id: each for each in _arriving(number, devices)}
            made, results = _round(number, ledger, desk, runner, losses, list(pending.values()), watch)
            decided.append(made)
            trained += results
            for each in results:
                del pending[each.pipeline]
            say(f"Round {number + 1}: {made.granted} of {made.asked} granted and trained.")
        ledger.verify().demand()
        return Story(
            place=place,
            decided=tuple(decided),
            trained=tuple(trained),
            waiting=tuple(pending),
            spent=tuple(_spent(ledger)),
            owned=sum(sizes.values()),
            judged_on=TOTAL - sum(sizes.values()),
            worst_epsilon=max(people(ledger, each, DELTA) for each in sizes),
            journal_rows=ledger.head().seq,
            seconds=stopwatch() - begun,
        )


def _arriving(number: int, devices: list[str]) -> list[Pipeline]:
    made = []
    for analyst, asks in PIPELINES.items():
        for at, (ask, arrives) in enumerate(asks):
            if arrives == number:
                cost, windows = ASKS[ask]
                demand = {f"{device}/w{window}": cost for device in devices for window in range(windows)}
                made.append(Pipeline(id=f"{analyst}-{ask}-{at + 1}", analyst=analyst, demand=demand, max_multiple=4.0))
    return made


def _job(pipeline: str) -> Job:
    return Job(model=DIGITS, training=FEW if "-small-" in pipeline else MANY)


def _family(pipeline: str) -> str:
    """Pipelines of one analyst and size continue each other."""
    return pipeline.rpartition("-")[0]


def _round(
    number: int,
    ledger: Ledger,
    desk: Desk,
    runner: LocalRunner,
    losses: Losses,
    pending: list[Pipeline],
    watch: Clock,
) -> tuple[Decided, list[Trained]]:
    """Unlock, decide, charge, train, settle, and learn the losses."""
    ledger.unlock(dict.fromkeys(desk.sizes, CAPACITY * (number + 1) / ROUNDS))
    asked = losses.put_into(pending, _family, watch.now())
    snapshot = ledger.snapshot(asked)
    begun = stopwatch()
    allocation = scheduler("dpbalance", beta=BETA).decide(snapshot.round)
    allocation.check()
    seconds = stopwatch() - begun
    ledger.charge(allocation, seen=snapshot.seq)
    begun = stopwatch()
    settled = carry_out(ledger, desk, runner, seconds=RUNS_SECONDS)
    training_seconds = stopwatch() - begun
    before = {each.id: each.loss for each in asked}
    for each in settled:
        losses.record(_family(each.outcome.plan.pipeline), each.outcome, watch.now())
    made = Decided(
        round=number,
        asked=len(asked),
        granted=len(allocation.grants),
        metrics=allocation.metrics,
        seconds=seconds,
        training_seconds=training_seconds,
    )
    return made, [_trained(number, each, before[each.outcome.plan.pipeline], desk) for each in settled]


def _trained(number: int, settled: Settled, before: float, desk: Desk) -> Trained:
    plan, result = settled.outcome.plan, settled.outcome.result
    told = provenance(settled.outcome)
    return Trained(
        round=number,
        run=plan.run,
        pipeline=plan.pipeline,
        analyst=plan.analyst,
        multiple=plan.multiple,
        loss_before=before,
        grant=max(each["granted_units"][0] for each in told["blocks"]) / 1e9,
        windows=tuple(sorted({each["block"].rpartition("/")[2] for each in told["blocks"]})),
        records=sum(desk.sizes[each["block"]] for each in told["blocks"]),
        epsilon=told["epsilon"],
        word=settled.word,
        accuracy=result.accuracy if result else None,
        loss=result.loss if result else None,
    )


def _spent(ledger: Ledger) -> list[tuple[str, float, float]]:
    balances = ledger.balances()
    rows = []
    for window in range(WINDOWS):
        mine = [float(epsilons(each.spent)[0]) for each in balances if each.block.endswith(f"/w{window}")]
        rows.append((f"window {window}", float(np.mean(mine)), max(mine)))
    return rows
