"""What does one see first? Two analysts and two blocks, a round of the paper's size, and a platform that trains."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from dpbalance.allocation import Allocation
from dpbalance.cli.deciding import Outcome, decide_all
from dpbalance.cli.tables import comparison_text, number, rendered, table
from dpbalance.errors import FileFormatError, OptionError
from dpbalance.execution.runs import DELTA
from dpbalance.feedback.story import CAPACITY, DEVICES, SIZE, WINDOWS, Story
from dpbalance.market import paper_round, worked_example

WORKED = """Two blocks of budget 1. Alice asks P1 (0.5, 0.3) and P2 (0.3, 0.5); Bob asks P3 (0.4, 0.3) and
P4 (0.3, 0.3). Not everything fits, and a pipeline gets its demand, or a multiple of it, or nothing.
"""

PAPER = """One round of the paper's workload: 6 analysts with 25 pipelines each, 100 devices, 2,000 blocks.
Many small pipelines and few large ones meet in the newest blocks.
"""


STORY = """A platform, all of it real and in one folder: {devices} devices hold {owned} handwritten digits in {windows}
windows, and 3 analysts ask for 12 models in 3 rounds. Every grant is charged in a ledger before it is
trained, and trained on the devices under the noise that was paid for.
"""


def demo_json(out: Path) -> dict[str, Any]:
    """Both comparisons as rows, and the story."""
    from dataclasses import asdict

    told = _story(out)
    story = {**asdict(told), "place": str(told.place), "report": [str(each) for each in _report(told, out)]}
    rounds = {"worked_example": worked_example(), "paper_round": paper_round()}
    return {
        "format": "dpbalance-demo/1",
        **{name: [each.row() for each in decide_all(round_, None, {})] for name, round_ in rounds.items()},
        "story": story,
    }


def demo_text(out: Path) -> Iterator[str]:
    """The demonstration, part by part as each is ready."""
    yield WORKED
    small = list(decide_all(worked_example(), None, {}))
    yield comparison_text(small, "The worked example")
    yield "\n".join(_served(each.allocation, each.scheduler) for each in small if each.allocation) + "\n"
    yield _shut_out(small) + "\n"
    yield PAPER
    large = list(decide_all(paper_round(), None, {}))
    yield comparison_text(large, "One round of the paper's workload")
    yield _worst_off(large) + "\n"
    yield STORY.format(devices=DEVICES, windows=WINDOWS, owned=DEVICES * WINDOWS * SIZE)
    told = _story(out)
    yield _rounds(told) + "\n"
    yield _models(told) + "\n"
    yield _budget(told) + "\n"
    files = _report(told, out)
    shown = f"Report: {files[0]}. " if files else "No report was drawn: pip install 'dpbalance[plots]'. "
    yield wrapped(
        f"{shown}The models lie in {told.place / 'runs'}: dpbalance run list --runs {told.place / 'runs'}. "
        f"All of this took {told.seconds:.0f} s."
    )


def _story(out: Path) -> Story:
    """The story, played in a new folder."""
    from dpbalance.feedback.story import tell

    try:
        out.mkdir(parents=True, exist_ok=True)
        place = Path(mkdtemp(prefix="platform-", dir=out))
    except OSError as problem:
        raise FileFormatError(f"cannot write to {out}: {problem.strerror or problem}") from None
    return tell(place, lambda line: print(line, file=sys.stderr, flush=True))


def _report(told: Story, out: Path) -> list[Path]:
    """The report's files; none where charts are not installed."""
    from dpbalance.feedback.report import write
    from dpbalance.feedback.story_report import story_report

    try:
        return write(story_report(told), out)
    except OptionError:
        return []


def _rounds(told: Story) -> str:
    columns = [">round", ">asked", ">granted", ">efficiency", ">jain", ">worst off", ">decided in s", ">trained in s"]
    rows = [
        (
            str(each.round + 1),
            str(each.asked),
            str(each.granted),
            number(each.metrics.efficiency),
            number(each.metrics.jain),
            number(each.metrics.utility_min),
            number(each.seconds, 2),
            number(each.training_seconds, 2),
        )
        for each in told.decided
    ]
    return rendered(table("Three rounds of DPBalance", columns, rows))


def _models(told: Story) -> str:
    columns = [">round", "pipeline", ">l", ">multiple", ">records", ">Renyi budget", ">epsilon", "ended", ">accuracy"]
    rows = [
        (
            str(each.round + 1),
            each.pipeline,
            number(each.loss_before, 2),
            number(each.multiple, 3),
            str(each.records),
            number(each.grant, 3),
            number(each.epsilon, 3),
            each.word,
            number(each.accuracy, 3),
        )
        for each in told.trained
    ]
    waiting = f"Still waiting for budget: {', '.join(told.waiting) or 'nobody'}."
    return rendered(
        table(f"What was trained, judged on {told.judged_on} digits nobody holds", columns, rows),
        f"{waiting} l is the released loss of the same analyst's last model of that size: 1 when nothing is known.",
    )


def _budget(told: Story) -> str:
    rows = [(name, number(mean), number(most), number(CAPACITY)) for name, mean, most in told.spent]
    columns = ["blocks of", ">spent on average", ">at most", ">capacity"]
    return rendered(
        table("Spend against budget, in Renyi epsilon at alpha 8", columns, rows),
        f"No record of any device loses more than ({number(told.worst_epsilon, 3)}, {DELTA:g}). The ledger's "
        f"{told.journal_rows} rows and every balance were verified.",
    )


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
