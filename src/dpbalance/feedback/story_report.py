"""What did the platform of the demonstration do, in pictures? Accuracy for budget, and who spent it."""

from __future__ import annotations

import math
from typing import Any

from dpbalance.execution.runs import DELTA
from dpbalance.feedback.report import Figure, Points, Report, Section, Table, chart_language
from dpbalance.feedback.story import CAPACITY, Story

COLORS = ("#0072b2", "#e69f00", "#009e73")
LEFT = "left"


def story_report(story: Story) -> Report:
    """The report of one story."""
    return Report(
        title="Twenty devices, three analysts, three rounds",
        lead=(
            f"DPBalance decided, a ledger charged, and {len(story.trained)} models were trained on the devices under "
            f"exactly the noise that was paid for. No record loses more than ({story.worst_epsilon:.3g}, {DELTA:g})."
        ),
        sections=(
            Section(title="What the grants were worth", parts=(_accuracy(story), _models(story))),
            Section(title="Who spent the budget", parts=(_spend(story), _spent(story))),
            Section(title="Efficient and fair", parts=(_rounds(story), Points(points=_facts(story)))),
        ),
    )


def _accuracy(story: Story) -> Figure:
    charts = chart_language()
    rows: list[dict[str, Any]] = []
    ordered = sorted((each for each in story.trained if each.accuracy is not None), key=lambda it: it.accuracy or 0.0)
    for each in reversed(ordered):
        share = each.accuracy or 0.0
        reach = 1.96 * math.sqrt(share * (1 - share) / story.judged_on)
        label = f"{each.pipeline}: {each.grant:.2g} on {each.records} records"
        low, high = max(0.0, share - reach), min(1.0, share + reach)
        rows.append({"label": label, "series": each.analyst, "mean": share, "low": low, "high": high})
    analysts = sorted({each.analyst for each in story.trained})
    series = [charts.Series(name=name, color=color) for name, color in zip(analysts, COLORS, strict=False)]
    title = "More budget and more records make better models"
    subtitle = "Share of unseen digits read right, with 95% intervals; Renyi budget at alpha 8 on each block"
    axis = charts.Axis(title="accuracy", percent=True, span=None, rule=0.1)
    panel = charts.Panel(title="", rows=rows, x=axis, y=charts.Axis(title=""))
    return _figure("accuracy", title, subtitle, charts.forest(title, subtitle, [panel], series))


def _spend(story: Story) -> Figure:
    charts = chart_language()
    analysts = sorted({each.analyst for each in story.trained})
    windows = sorted({window for each in story.trained for window in each.windows})
    rows: list[dict[str, Any]] = []
    for window in windows:
        used = {
            name: sum(it.grant for it in story.trained if it.analyst == name and window in it.windows) / CAPACITY
            for name in analysts
        }
        parts = {**used, LEFT: max(0.0, 1 - sum(used.values()))}
        rows += [
            {"label": window, "series": name, "mean": share, "place": at}
            for at, (name, share) in enumerate(parts.items())
        ]
    series = [charts.Series(name=name, color=color) for name, color in zip(analysts, COLORS, strict=False)]
    series.append(charts.Series(name=LEFT, color="#d8dee4"))
    title, subtitle = "Who spent the blocks", "Share of capacity after three rounds, by window of the blocks"
    panel = charts.Panel(title="", rows=rows, x=charts.Axis(title="window"), y=charts.Axis(title="share of capacity"))
    return _figure("spend", title, subtitle, charts.stacks(title, subtitle, [panel], series))


def _models(story: Story) -> Table:
    rows = tuple(
        (
            str(each.round + 1),
            each.pipeline,
            f"{each.loss_before:.2f}",
            f"{each.multiple:.3g}",
            str(each.records),
            f"{each.grant:.3g}",
            f"{each.epsilon:.3g}",
            each.word,
            "-" if each.accuracy is None else f"{each.accuracy:.1%}",
        )
        for each in story.trained
    )
    columns = (">round", "pipeline", ">l", ">multiple", ">records", ">Renyi budget", ">epsilon", "ended", ">accuracy")
    return Table(title="Every model", columns=columns, rows=rows)


def _spent(story: Story) -> Table:
    rows = tuple((name, f"{mean:.4g}", f"{most:.4g}", f"{CAPACITY:g}") for name, mean, most in story.spent)
    return Table(title="Spend against budget", columns=("blocks of", ">on average", ">at most", ">capacity"), rows=rows)


def _rounds(story: Story) -> Table:
    rows = tuple(
        (
            str(each.round + 1),
            str(each.asked),
            str(each.granted),
            f"{each.metrics.efficiency:.3g}",
            "-" if each.metrics.jain is None else f"{each.metrics.jain:.3g}",
            str(each.metrics.shut_out),
        )
        for each in story.decided
    )
    columns = (">round", ">asked", ">granted", ">efficiency", ">Jain's index", ">analysts shut out")
    return Table(title="Round by round", columns=columns, rows=rows)


def _facts(story: Story) -> tuple[str, ...]:
    return (
        f"{story.owned} digits on 20 devices; models are judged on {story.judged_on} digits that nobody holds.",
        f"The ledger's {story.journal_rows} rows were verified: every balance was computed again from its charges.",
        f"Still waiting for budget: {', '.join(story.waiting) or 'nobody'}.",
        "The protection is of a single record within its block, add or remove one.",
    )


def _figure(name: str, title: str, subtitle: str, chart: Any) -> Figure:
    return Figure(name=name, alt=f"{title}. {subtitle}", spec=chart_language().spec_of(chart))
