"""How does a test make devices with data, a ledger with grants, and an engine? All real, all small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpbalance.clock import Clock, chance
from dpbalance.execution import Agent, Desk, Job, LocalRunner, ModelSpec, TrainingSpec, plan_signer, write_block
from dpbalance.execution.models import Floats, Labels
from dpbalance.execution.signature import PlanSigner
from dpbalance.ledger import Ask, Decision, Ledger, create_ledger
from dpbalance.market import Block

FEATURES, CLASSES = 6, 3
SOFTMAX = ModelSpec(kind="softmax", features=FEATURES, classes=CLASSES)


def records(count: int, seed: int) -> tuple[Floats, Labels]:
    """Three clouds of points that a straight line tells apart."""
    random = chance(seed)
    y = random.integers(0, CLASSES, size=count)
    x = random.normal(size=(count, FEATURES)) * 0.3
    x[np.arange(count), y] += 1.0
    return x, y


@dataclass(kw_only=True)
class Fleet:
    """Devices in folders under one place, a ledger that knows their blocks, and whom they trust."""

    place: Path
    devices: int = 3
    blocks: int = 2
    size: int = 40
    cap: float = 100.0
    url: str | None = None
    signer: PlanSigner = field(default_factory=lambda: plan_signer(None))
    folders: dict[str, Path] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(self.devices):
            device = f"d{number}"
            folder = self.place / "devices" / device
            self.folders[device] = folder
            for window in range(self.blocks):
                name = f"{device}/w{window}"
                if not folder.exists() or len(list(folder.glob("*.npz"))) < self.blocks:
                    write_block(folder, name, *records(self.size, number * 100 + window))
                self.sizes[name] = self.size
            if not (folder / ".dpbalance").exists():
                Agent.enrol(folder, device, self.signer.public, cap=self.cap)

    def ledger(self) -> Ledger:
        ledger = create_ledger(self.url or f"sqlite:///{self.place / 'ledger.db'}")
        ledger.register_devices(dict.fromkeys(self.folders, ""))
        ledger.register_blocks([Block(id=name, capacity=self.cap) for name in self.sizes])
        return ledger

    def desk(self, training: TrainingSpec | None = None, *, clock: Clock | None = None, **more: float) -> Desk:
        job = Job(model=SOFTMAX, training=training or TrainingSpec(rounds=4, learning_rate=4.0))
        return Desk(
            plans=self.place / "plans",
            signer=self.signer,
            jobs=lambda pipeline: None if pipeline == "unknown" else job,
            sizes=self.sizes,
            clock=clock,
            **more,
        )

    def runner(self, **more: float) -> LocalRunner:
        public = self.place / "public.npz"
        if not public.exists():
            x, y = records(200, 12345)
            np.savez(public, x=x, y=y)
        return LocalRunner(self.place / "runs", self.folders, public=public, **more)  # type: ignore[arg-type]

    def decision(self, count: int = 1, cost: float = 1.0, names: tuple[str, ...] = ()) -> Decision:
        named = names or tuple(f"p{at}" for at in range(count))
        each: Mapping[str, float] = dict.fromkeys(self.sizes, cost)
        return Decision.build([Ask(pipeline=name, analyst="ana", cost=each) for name in named])
