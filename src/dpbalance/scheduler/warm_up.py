"""How are all kernels compiled ahead of the first user? By deciding small rounds with everything there is."""

from __future__ import annotations

import sys

from dpbalance.clock import stopwatch
from dpbalance.demand import Pipeline
from dpbalance.market import Block, Round, worked_example
from dpbalance.scheduler.registry import scheduler


def warm_up() -> float:
    """Compile (or load) every kernel; returns the seconds it took."""
    from dpbalance.scheduler import alpha_fair, packing

    began = stopwatch()
    several = Round.build(
        [Block(id="B", capacity=(1.0, 1.0))],
        [
            Pipeline(id="P", analyst="a", demand={"B": (0.5, 0.6)}, weight=2.0),
            Pipeline(id="Q", analyst="b", demand={"B": (0.6, 0.5)}),
        ],
        orders=(2.0, 8.0),
    )
    for round_ in (worked_example(), several):
        for name in ("dpf", "dpk", "fcfs", "round-robin"):
            scheduler(name).decide(round_)
        for beta in (0.0, 2.2, float("inf")):
            scheduler("dpbalance", beta=beta, leftover="refill").decide(round_)
    alpha_fair.solve([[0.5, 0.4], [0.3, 0.3]], [1.0, 1.0], [1.0, 1.0], 0.5, lam=0.5)
    packing.solve([[0.5, 0.4], [0.3, 0.3]], [0.9, 0.9], [0.5, 0.4])
    return stopwatch() - began


if __name__ == "__main__":
    print(f"dpbalance: kernels ready in {warm_up():.1f} s", file=sys.stderr)
