"""What does one see first? Two analysts and two blocks, then a round of the paper's size, under every scheduler."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from dpbalance.allocation import Allocation
from dpbalance.cli.deciding import Outcome, decide_all
from dpbalance.cli.tables import comparison_text, number
from dpbalance.market import paper_round, worked_example

WORKED = """Two blocks of budget 1. Alice asks P1 (0.5, 0.3) and P2 (0.3, 0.5); Bob asks P3 (0.4, 0.3) and
P4 (0.3, 0.3). Not everything fits, and a pipeline gets its demand, or a multiple of it, or nothing.
"""

PAPER = """One round of the paper's workload: 6 analysts with 25 pipelines each, 100 devices, 2,000 blocks.
Many small pipelines and few large ones meet in the newest blocks.
"""


def demo_json() -> dict[str, Any]:
    """Both comparisons as rows."""
    rounds = {"worked_example": worked_example(), "paper_round": paper_round()}
    return {
        "format": "dpbalance-demo/1",
        **{name: [each.row() for each in decide_all(round_, None, {})] for name, round_ in rounds.items()},
    }


def demo_text() -> Iterator[str]:
    """The demonstration, part by part as each is ready."""
    yield WORKED
    small = list(decide_all(worked_example(), None, {}))
    yield comparison_text(small, "The worked example")
    yield "\n".join(_served(each.allocation, each.scheduler) for each in small if each.allocation) + "\n"
    yield _shut_out(small) + "\n"
    yield PAPER
    large = list(decide_all(paper_round(), None, {}))
    yield comparison_text(large, "One round of the paper's workload")
    yield _worst_off(large)


def _served(allocation: Allocation, name: str) -> str:
    """Who got what, in one line."""
    grants = [
        f"{each.pipeline} ({each.analyst})" + (f" x {number(each.multiple)}" if each.multiple != 1 else "")
        for each in allocation.grants
    ]
    return f"  {name:12} serves {', '.join(grants) or 'nobody'}"


def _shut_out(outcomes: list[Outcome]) -> str:
    """Which schedulers leave an analyst with nothing."""
    decided = [each for each in outcomes if each.allocation]
    empty = [each.scheduler for each in decided if each.checked.metrics.shut_out]
    kind = [each.scheduler for each in decided if not each.checked.metrics.shut_out]
    return wrapped(
        f"What one sees: an analyst is left with nothing by {', '.join(empty) or 'no scheduler'}; "
        f"both are served by {', '.join(kind) or 'none'}. DPBalance first divides the budget between the analysts "
        "and then lets each of them spend its part on as many pipelines as fit, and on multiples with what remains."
    )


def _worst_off(outcomes: list[Outcome]) -> str:
    """DPBalance's efficiency and worst-off analyst beside the best of the others."""
    decided = {each.scheduler: each.checked.metrics for each in outcomes if each.allocation}
    ours = decided.pop("dpbalance", None)
    if ours is None or not decided:
        return "What one sees: not enough schedulers decided this round to compare them."
    efficient = max(decided, key=lambda name: decided[name].efficiency)
    kind = max(decided, key=lambda name: decided[name].utility_min or 0.0)
    return wrapped(
        f"What one sees: under dpbalance the worst-off analyst has a utility of {number(ours.utility_min)} "
        f"(best of the others: {number(decided[kind].utility_min)}, {kind}), "
        f"and efficiency is {number(ours.efficiency)} "
        f"(best of the others: {number(decided[efficient].efficiency)}, {efficient}). "
        "It may serve fewer pipelines than others, because an analyst may spend its share on multiples."
    )


def wrapped(text: str) -> str:
    return textwrap.fill(text, width=100)
