"""Which pictures does the reproduction show? Each is titled with what it found, in numbers of this run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpbalance.feedback.charts import SCHEDULERS, Axis, Panel, Series, forest, lines, spec_of, stacks
from dpbalance.feedback.report import Figure
from dpbalance.market import worked_example
from dpbalance.scheduler import scheduler
from dpbalance.simulate.reproduction.measured import Interval, Measured
from dpbalance.simulate.reproduction.studies import (
    BASELINES,
    BETAS,
    EVERYBODY,
    LOSSES,
    MIDDLE,
    OURS,
    PRINTED,
    Contest,
    Studies,
)

PLAIN = next(iter(LOSSES))
AS_PRINTED = Series(name="DPBalance as printed (overspends)", color="#56b4e9", dash=(5, 4))
LOOKS = {**SCHEDULERS, PRINTED: AS_PRINTED}
BEHIND = [SCHEDULERS[each] for each in BASELINES]
SEEDED = "95% intervals over {seeds} seeds"


def name_of(who: str) -> str:
    return LOOKS[who].name


def evaluation(measured: Measured, studies: Studies) -> Figure:
    """The six panels: cumulative efficiency and fairness by round, for each beta."""
    everybody = (OURS, PRINTED, *BASELINES)
    panels = []
    for name, told in (("efficiency", "cumulative efficiency"), ("fairness", "cumulative fairness f")):
        for beta in BETAS:
            contest = studies.evaluation[PLAIN, beta]
            rows = _paths(measured, contest, everybody, name)
            y = Axis(title=told if beta == BETAS[0] else "", zero=True)
            panels.append(Panel(title=f"beta = {beta:g}", rows=rows, x=_round_axis(rows), y=y))
    middle = studies.evaluation[PLAIN, MIDDLE]
    best = min(measured.times(middle, "efficiency", of).mean for of in BASELINES)
    shut = measured.mean(middle, "fcfs", "shut_out").mean
    seeds = middle.seeds
    title = (
        f"Within the real budget DPBalance leads by {_percent(best)} or more at beta 2.2; the printed formula "
        "overspends"
    )
    told = (
        f"Mean of {seeds} seeds with 95% bands. Upper row: more is better. Lower row: higher is fairer (for beta > 1 "
        "the metric is negative).\nThe printed metric counts only analysts that got something; at beta 2.2 FCFS left "
        f"{shut:.1f} analysts per run with nothing, which it does not show."
    )
    chart = lines(title, told, panels, [LOOKS[each] for each in everybody])
    return _figure("evaluation", title, told, chart)


def headlines(
    measured: Measured, studies: Studies, claims: Mapping[str, Mapping[float, tuple[float, float]]], name: str
) -> Figure:
    """Times better than each baseline, in both readings, beside the range in the paper."""
    series = [
        Series(name="physical budget", color=SCHEDULERS[OURS].color),
        Series(name="as printed, l ~ U(0.5, 1)", color="#56b4e9", shape="square"),
        Series(name="as printed, l ~ U(0, 1)", color="#b8860b", shape="triangle-up"),
    ]
    readings = ((OURS, PLAIN), (PRINTED, PLAIN), (PRINTED, list(LOSSES)[1]))
    panels = []
    for beta in BETAS:
        rows: list[dict[str, Any]] = []
        for of in BASELINES:
            for shown, (who, loss) in zip(series, readings, strict=True):
                found = measured.times(studies.evaluation[loss, beta], name, of, who)
                rows.append({"label": f"against {name_of(of)}", "series": shown.name, **found.row})
        marks = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0) if name == "fairness" else (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
        axis = Axis(title="times as good, log scale", log=True, rule=1.0, values=marks, span=claims[name][beta])
        panels.append(Panel(title=f"beta = {beta:g}", rows=rows, x=axis, y=Axis(title="")))
    title = _headline_title(name, [row for each in panels for row in each.rows], series)
    subtitle = (
        f"DPBalance over each baseline after the last round; {_seeded(studies.evaluation[PLAIN, MIDDLE].seeds)}; "
        "grey: range in the paper"
    )
    if name == "fairness":
        subtitle += ".\nPrinted metric, over analysts that got something; those shut out are in the table"
    chart = forest(title, subtitle, panels, series)
    return _figure(f"headline-{name}", title, subtitle, chart)


def _figure(name: str, title: str, subtitle: str, chart: Any) -> Figure:
    return Figure(name=name, alt=f"{title}. {subtitle}".replace("\n", " "), spec=spec_of(chart))


def _headline_title(name: str, rows: Sequence[Mapping[str, Any]], series: Sequence[Series]) -> str:
    """Within the budget, and not."""
    most = {each.name: max(row["mean"] for row in rows if row["series"] == each.name) for each in series}
    physical, narrow, wide = most.values()
    if name == "efficiency":
        return (
            f"Efficiency: within the real budget nobody is beaten by more than {physical:.2f} times; as printed by "
            f"{narrow:.2f} or {wide:.2f}"
        )
    behind = [row["mean"] for row in rows if row["series"] == series[0].name and row["label"] != "against FCFS"]
    span = f"{min(behind):.2f} to {max(behind):.2f}"
    return f"Fairness: {span} times DPF and DPK within the real budget, more against FCFS only"


def tradeoff(measured: Measured, studies: Studies) -> Figure:
    """What is given up for what, by beta: in one round that is the same for all, and over all rounds."""
    measures = {
        "efficiency": Series(name="efficiency", color="#0072b2"),
        "jain": Series(name="Jain's index", color="#d55e00", shape="square"),
        "utility_min": Series(name="smallest utility", color="#009e73", shape="triangle-up"),
    }
    panels = []
    for title, first in (("one round, the same for every beta", True), ("all rounds", False)):
        rows = []
        for name, shown in measures.items():
            found = {beta: tradeoff_values(measured, each, name, first) for beta, each in studies.tradeoff.items()}
            top = max(Interval.of(values).mean for values in found.values())
            for beta, values in found.items():
                share = Interval.of([each / top for each in values])
                rows.append({"x": beta, "series": shown.name, **share.row})
        y = Axis(title="share of the largest mean" if first else "", zero=True, top=1.2)
        panels.append(Panel(title=title, rows=rows, x=Axis(title="beta"), y=y))
    ends = [Interval.of(tradeoff_values(measured, studies.tradeoff[at], "efficiency", False)).mean for at in (0.0, 5.0)]
    title = (
        f"The trade-off is there and gentle: from beta 0 to 5 efficiency falls by {_percent(ends[0] / ends[1], True)}"
    )
    subtitle = f"DPBalance within the real budget, each measure as a share of its largest mean; {_seeded_of(studies)}"
    chart = lines(title, subtitle, panels, list(measures.values()), columns=2)
    return _figure("tradeoff", title, subtitle, chart)


def tradeoff_values(measured: Measured, contest: Contest, name: str, first: bool, who: str = OURS) -> list[float]:
    """By seed: of the first round, which every beta finds in the same state, or of all rounds."""
    if not first:
        return measured.numbers(contest, who, name)
    return [float(each.rounds[0][name] or 0.0) for each in measured.runs(contest, who) if each.rounds]


def worked() -> Figure:
    """Who gets what of the two blocks."""
    colors = {"P1": "#0072b2", "P2": "#56b4e9", "P3": "#d55e00", "P4": "#e69f00"}
    series = [
        Series(name=f"{each} ({'Alice' if each in ('P1', 'P2') else 'Bob'})", color=colors[each]) for each in colors
    ]
    round_ = worked_example()
    panels = []
    for who in ("dpf", "dpk", OURS):
        decided = scheduler(who, beta=MIDDLE).decide(round_)
        rows = [
            {"label": block, "series": series[int(each.pipeline[1]) - 1].name, "mean": amount, "place": each.pipeline}
            for each in decided.grants
            for block, amount in each.cost.items()
        ]
        title = f"{name_of(who)}: efficiency {decided.metrics.efficiency:.2g}"
        y = Axis(title="budget granted" if who == "dpf" else "")
        panels.append(Panel(title=title, rows=rows, x=Axis(title="block"), y=y))
    title = "The worked example: DPF and DPK give Alice nothing, DPBalance serves both"
    subtitle = "Two blocks of budget 1, two analysts with two pipelines each, beta = 2.2"
    return _figure("worked", title, subtitle, stacks(title, subtitle, panels, series))


def long_run(measured: Measured, studies: Studies) -> Figure:
    """Two hundred rounds, ten by ten."""
    contest = studies.long
    panels = []
    for name, told in (("efficiency", "efficiency"), ("jain", "Jain's index"), ("utility_min", "smallest utility")):
        rows = list(_decades(measured, contest, name))
        y = _from_zero("mean of ten rounds" if name == "efficiency" else "", name, rows)
        panels.append(Panel(title=told, rows=rows, x=Axis(title="round"), y=y))
    rounds = int(contest.parameters["rounds"])
    closest = min((measured.ahead(contest, "efficiency", of) for of in BASELINES), key=lambda each: each.low)
    holds = "is still ahead of all" if closest.sign > 0 else "is not ahead of all"
    title = f"Over {rounds} rounds nothing wears off: DPBalance {holds} in efficiency"
    subtitle = f"beta = 2.2, means over ten rounds with {_seeded(contest.seeds)}; pipelines leave after 300 s"
    chart = lines(title, subtitle, panels, [LOOKS[each] for each in EVERYBODY])
    return _figure("rounds", title, subtitle, chart)


def crowds(measured: Measured, studies: Studies) -> Figure:
    """From two to fifty analysts each round."""
    measures = (("efficiency", "cumulative efficiency"), ("jain", "Jain's index"), ("utility_min", "smallest utility"))
    numbers = tuple(float(each) for each in studies.crowds)
    panels = []
    for name, told in measures:
        rows = [
            {"x": number, "series": name_of(who), **measured.mean(contest, who, name).row}
            for number, contest in studies.crowds.items()
            for who in EVERYBODY
        ]
        x = Axis(title="analysts per round, log scale", log=True, values=numbers)
        panels.append(Panel(title=told, rows=rows, x=x, y=_from_zero("", name, rows)))
    biggest = max(studies.crowds)
    title = crowd_title(measured, studies.crowds[biggest], biggest)
    subtitle = f"beta = 2.2, 25 pipelines each; {_seeded(studies.crowds[biggest].seeds)}"
    chart = lines(title, subtitle, panels, [LOOKS[each] for each in EVERYBODY])
    return _figure("analysts", title, subtitle, chart)


def crowd_title(measured: Measured, contest: Contest, number: int) -> str:
    times = {of: measured.times(contest, "efficiency", of).mean for of in BASELINES}
    best = min(times, key=lambda of: times[of])
    if times[best] >= 1:
        return f"With up to {number} analysts DPBalance keeps its lead in efficiency"
    out = measured.mean(contest, best, "shut_out").mean
    return (
        f"With {number} analysts per round {name_of(best)} is {1 / times[best]:.1f} times as efficient, and shuts out "
        f"{out:.0f} analysts"
    )


def ahead(measured: Measured, name: str, title: str, contests: Sequence[Contest]) -> Figure:
    """DPBalance against each baseline under many settings: efficiency in times, the others in differences."""
    efficiency = [
        {"label": each.label, "series": name_of(of), **measured.times(each, "efficiency", of).row}
        for each in contests
        for of in BASELINES
    ]
    panels = [Panel(title="efficiency", rows=efficiency, x=_times_axis(efficiency), y=Axis(title=""))]
    for measure, told in (("jain", "Jain's index"), ("utility_min", "smallest utility")):
        rows = [
            {"label": each.label, "series": name_of(of), **measured.ahead(each, measure, of).row}
            for each in contests
            for of in BASELINES
        ]
        panels.append(Panel(title=told, rows=rows, x=Axis(title="difference", rule=0.0), y=Axis(title="")))
    seeds = sorted({each.seeds for each in contests})
    counted = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    subtitle = (
        "DPBalance (beta = 2.2) against each baseline on the same traces; right of the dashed line it is ahead; "
        f"{_seeded(counted)}"
    )
    return _figure(name, title, subtitle, forest(title, subtitle, panels, BEHIND))


def bound(measured: Measured, studies: Studies) -> Figure:
    """Every scheduler as a share of what nobody could exceed."""
    rows: list[dict[str, Any]] = [
        {"label": label, "series": name_of(who), **measured.mean(contest, who, "of_bound").row}
        for label, who, contest in bounded(studies)
    ]
    lowest = min(row["mean"] for row in rows if row["series"] == name_of(OURS))
    title = f"DPBalance reaches {lowest:.0%} or more of what anyone could"
    subtitle = (
        "Efficiency over the largest that any decision could have had in each of its rounds; "
        f"{_seeded(studies.bound[MIDDLE].seeds)}"
    )
    panel = Panel(title="share of the bound", rows=rows, x=Axis(title="share", percent=True), y=Axis(title=""))
    chart = forest(title, subtitle, [panel], [LOOKS[each] for each in EVERYBODY])
    return _figure("bound", title, subtitle, chart)


def bounded(studies: Studies) -> Iterator[tuple[str, str, Contest]]:
    """Label, scheduler and contest: DPBalance at every beta, then the others."""
    for beta, contest in studies.bound.items():
        yield f"{name_of(OURS)}, beta {beta:g}", OURS, contest
    for of in BASELINES:
        yield name_of(of), of, studies.bound[MIDDLE]


def _paths(measured: Measured, contest: Contest, everybody: Iterable[str], name: str) -> list[dict[str, Any]]:
    return [
        {"x": number, "series": name_of(who), **found.row}
        for who in everybody
        for number, found in enumerate(measured.path(contest, who, name, cumulative=True), start=1)
    ]


def _decades(measured: Measured, contest: Contest, name: str) -> Iterator[dict[str, Any]]:
    """Means of ten rounds each, whole tens only where there are any."""
    for who in EVERYBODY:
        columns = [[float(row[name] or 0.0) for row in run.rounds] for run in measured.runs(contest, who)]
        length = min(map(len, columns), default=0)
        for at in range(0, length, 10):
            values = [sum(column[at : at + 10]) / len(column[at : at + 10]) for column in columns]
            yield {"x": min(at + 10, length), "series": name_of(who), **Interval.of(values).row}


def _round_axis(rows: Sequence[Mapping[str, Any]]) -> Axis:
    """Every round, or every other one."""
    last = max((int(row["x"]) for row in rows), default=0)
    step = -(-last // 6)
    return Axis(title="round", values=tuple(float(each) for each in range(step, last + 1, step)) if last else None)


def _from_zero(title: str, name: str, rows: Sequence[Mapping[str, Any]]) -> Axis:
    """None of these measures goes below zero, and Jain's index none above one; a wide interval may seem to."""
    highs = [row[end] for row in rows for end in ("mean", "high") if row[end] == row[end]]
    return Axis(title=title, zero=True, top=1.0 if name == "jain" else 1.05 * max(highs, default=1.0))


def _times_axis(rows: Sequence[Mapping[str, Any]]) -> Axis:
    """In factors once they are large."""
    means = [row["mean"] for row in rows if row["mean"] == row["mean"]]
    wide = max(means, default=1.0) > 2 or min(means, default=1.0) < 0.5
    marks = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    return Axis(title="times as much", log=wide, rule=1.0, values=marks if wide else None)


def _percent(times: float, falls: bool = False) -> str:
    return f"{100 * (1 - 1 / times if falls else times - 1):.0f}%"


def _seeded(seeds: int | str) -> str:
    return SEEDED.format(seeds=seeds)


def _seeded_of(studies: Studies) -> str:
    return _seeded(next(iter(studies.tradeoff.values())).seeds)
