"""How is the reproduction told? Section by section: sentences, pictures and tables out of the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from dpbalance.feedback.report import Points, Report, Section, Table
from dpbalance.market import worked_example
from dpbalance.scheduler import scheduler
from dpbalance.simulate.reproduction import figures
from dpbalance.simulate.reproduction.figures import name_of
from dpbalance.simulate.reproduction.headlines import (
    CLAIMS,
    PLAIN,
    Headline,
    ahead_table,
    around,
    headline_table,
    headlines,
    physical_table,
    times,
    tradeoff_table,
)
from dpbalance.simulate.reproduction.measured import Interval, Measured
from dpbalance.simulate.reproduction.studies import (
    BASELINES,
    EVERYBODY,
    LEFTOVER,
    MIDDLE,
    OURS,
    PATIENCE,
    Contest,
    Plan,
    Studies,
)
from dpbalance.simulate.reproduction.summary import MEASURES, reasons, summary, wins, worked_sentence


def report_of(measured: Measured, studies: Studies, plan: Plan) -> Report:
    """The whole reproduction."""
    found = headlines(measured, studies)
    return Report(
        title="DPBalance: the paper's evaluation, reproduced",
        lead=(
            "Every number of the paper's evaluation beside the number measured here, in two readings: within the "
            "physical budget, which is what the product enforces, and as printed, where the budget formula lets a "
            "scheduler hand out more than there is. Then what the paper does not show: longer runs, other numbers of "
            "analysts, other settings and other workloads."
        ),
        sections=(
            summary(measured, studies, found),
            _worked(),
            _evaluation(measured, studies, found),
            _tradeoff(measured, studies),
            reasons(measured, studies),
            _long(measured, studies),
            _crowds(measured, studies),
            _settings(measured, studies),
            _others(measured, studies),
            _bound(measured, studies),
            _method(studies, plan),
        ),
    )


def _worked() -> Section:
    rows = []
    for who in (OURS, "dpf", "dpk", "fcfs"):
        decided = scheduler(who, beta=MIDDLE).decide(worked_example())
        granted = ", ".join(f"{each.pipeline} x {each.multiple:g}" for each in decided.grants)
        numbers = decided.metrics
        shown = (granted, f"{numbers.efficiency:.2f}", f"{float(np.sum(decided.multiple)):g}", str(numbers.shut_out))
        rows.append((name_of(who), *shown))
    columns = ("scheduler", "granted", ">efficiency", ">pipelines, multiples counted", ">shut out")
    table = Table(title="The worked example at beta 2.2", columns=columns, rows=tuple(rows))
    return Section(title="The worked example", parts=(worked_sentence(), figures.worked(), table))


def _evaluation(measured: Measured, studies: Studies, found: tuple[Headline, ...]) -> Section:
    return Section(
        title="The evaluation: efficiency and fairness by round",
        parts=(
            "A comparison of the printed fairness is ours / theirs for beta below 1 and |theirs| / |ours| above, so "
            "more is always fairer. It says nothing of analysts that got nothing: they stand in the last column.",
            figures.evaluation(measured, studies),
            headline_table(found),
            figures.headlines(measured, studies, CLAIMS, "efficiency"),
            figures.headlines(measured, studies, CLAIMS, "fairness"),
            physical_table(measured, studies),
            ahead_table(measured, studies),
        ),
    )


def _tradeoff(measured: Measured, studies: Studies) -> Section:
    return Section(
        title="The trade-off: beta from 0 to 5",
        parts=(
            "One round is the first of a run, the only one that every beta finds in the same state. Fairness at "
            "different beta is compared by yardsticks that do not move with it: Jain's index and the smallest "
            "utility.",
            figures.tradeoff(measured, studies),
            tradeoff_table(measured, studies),
        ),
    )


def _long(measured: Measured, studies: Studies) -> Section:
    contest = studies.long
    return Section(
        title=f"Longer runs: {contest.parameters['rounds']} rounds",
        parts=(
            wins(measured, contest, "DPBalance with beta 2.2", MEASURES),
            figures.long_run(measured, studies),
            _everybody_table(measured, "After the last round", [contest]),
        ),
    )


def _crowds(measured: Measured, studies: Studies) -> Section:
    numbers = tuple(studies.crowds)
    return Section(
        title=f"From {numbers[0]} to {numbers[-1]} analysts per round",
        parts=(
            Points(
                points=tuple(
                    wins(measured, each, f"With {each.label}, DPBalance", MEASURES) for each in studies.crowds.values()
                )
            ),
            figures.crowds(measured, studies),
            _everybody_table(measured, "By number of analysts", tuple(studies.crowds.values())),
        ),
    )


def _settings(measured: Measured, studies: Studies) -> Section:
    contests = list(chain.from_iterable(studies.settings.values()))
    sure = sum(measured.ahead(each, "efficiency", of).sign > 0 for each in contests for of in BASELINES)
    behind = [
        each.label for each in contests if any(measured.ahead(each, "efficiency", of).sign < 0 for of in BASELINES)
    ]
    told = (
        f"One setting is changed at a time, beta stays at 2.2. DPBalance is surely ahead in efficiency in {sure} of "
        f"{len(contests) * len(BASELINES)} comparisons"
        + (f", and surely behind somebody with {_listed(behind)}." if behind else ", and surely behind in none.")
    )
    title = f"Settings: DPBalance is ahead in efficiency in {sure} of {len(contests) * len(BASELINES)} comparisons"
    if behind:
        title += (
            ";\nit falls behind where multiples or blocks are held back"
            if _held_back(studies, behind)
            else ";\nnot in all"
        )
    refilled = studies.settings[LEFTOVER][0]
    first = measured.numbers(refilled, OURS, "efficiency")
    default = measured.numbers(studies.evaluation[PLAIN, MIDDLE], OURS, "efficiency")[: len(first)]
    served = measured.numbers(refilled, OURS, "pipelines")
    before = measured.numbers(studies.evaluation[PLAIN, MIDDLE], OURS, "pipelines")[: len(served)]
    refill = (
        "What of its share an analyst cannot use returns to the blocks. Offering it again in the same round (refill) "
        f"changes efficiency by {_difference(first, default, 2)} and pipelines served by "
        f"{_difference(served, before, 0)}."
    )
    changed = Points(
        points=tuple(f"{name}: {', '.join(each.label for each in found)}" for name, found in studies.settings.items())
    )
    return Section(
        title="Sensitivity to what the paper leaves open",
        parts=(
            told,
            refill,
            "What is varied; default:",
            changed,
            figures.ahead(measured, "settings", title, contests),
            _ahead_table(measured, "By setting", contests),
        ),
    )


def _held_back(studies: Studies, behind: Sequence[str]) -> bool:
    """Is nobody ahead of DPBalance but where something keeps it from spending what it offers?"""
    held = {each.label for each in chain.from_iterable(studies.settings.values()) if "max_multiple" in each.ours}
    held |= {each.label for each in chain.from_iterable(studies.settings.values()) if "steps" in each.parameters}
    return held.issuperset(behind)


def _others(measured: Measured, studies: Studies) -> Section:
    contests = studies.others
    lost = [each for each in contests if any(measured.ahead(each, "efficiency", of).sign < 0 for of in BASELINES)]
    title = (
        f"Other workloads: DPBalance is behind in efficiency on {len(lost)} of {len(contests)}"
        if lost
        else "Other workloads: DPBalance is behind in efficiency on none"
    )
    rows = []
    for contest in contests:
        for of in BASELINES:
            cells = [times(measured.times(contest, "efficiency", of))]
            cells += [
                around(measured.ahead(contest, name, of), 3, signed=True)
                for name in ("jain", "utility_min", "jain_run", "utility_min_run", "shut_out")
            ]
            rows.append((contest.label, str(contest.seeds), name_of(of), *cells))
    columns = (
        "workload",
        ">seeds",
        "against",
        ">efficiency, times",
        ">Jain by round",
        ">smallest utility by round",
        ">Jain of whole runs",
        ">smallest utility of whole runs",
        ">shut out (sum over rounds)",
    )
    return Section(
        title="Other workloads",
        parts=(
            "Ten analysts share the pipelines of each workload, beta stays at 2.2. Where a round is held at each "
            "arrival hardly anybody competes within a round, so analysts are also compared by what they got in the "
            "whole run.",
            Points(points=tuple(wins(measured, each, f"{each.label}: DPBalance", MEASURES) for each in contests)),
            "With Renyi accounting PrivateKube's budget is plentiful: everybody is served, and all that DPBalance "
            "gains there is that it spends the rest on multiples.",
            _refilled(measured, studies),
            figures.ahead(measured, "workloads", title, contests),
            Table(title="DPBalance minus each baseline", columns=columns, rows=tuple(rows)),
        ),
    )


def _refilled(measured: Measured, studies: Studies) -> str:
    """What offering leftovers again changes where much is left over."""
    said = []
    for with_it in studies.others:
        before = [each for each in studies.others if f"{each.label}, refill" == with_it.label]
        for without in before:
            ends = [times(measured.times(each, "efficiency", "dpk")) for each in (without, with_it)]
            said.append(f"on {without.label} from {ends[0]} to {ends[1]}")
    return (
        "Where a share of what is open is too small for large pipelines, budget stays unspent, and the others give it "
        f"to them. Offering it again (refill) takes DPBalance's efficiency over DPK's {' and '.join(said)} times."
    )


def _bound(measured: Measured, studies: Studies) -> Section:
    rows = [
        (label, around(measured.mean(contest, who, "of_bound").mapped(lambda each: 100 * each), 1))
        for label, who, contest in figures.bounded(studies)
    ]
    return Section(
        title="How near to the best possible",
        parts=(
            "The bound is the largest efficiency that any decision could have in the round as it stands, by a linear "
            "program in which pipelines may be cut; nobody exceeds it. A scheduler's rounds are its own: what it "
            "saved earlier raises its bound later.",
            figures.bound(measured, studies),
            Table(title="Share of the bound", columns=("scheduler", ">per cent"), rows=tuple(rows)),
        ),
    )


def _method(studies: Studies, plan: Plan) -> Section:
    command = (
        f"dpbalance reproduce paper --out DIR --seeds {plan.seeds} --rounds "
        f"{plan.rounds}{' --quick' if plan.quick else ''}"
    )
    return Section(
        title="How this was run",
        parts=(
            Points(
                points=(
                    f"Command: {command}",
                    f"The evaluation and the trade-off: {plan.seeds} seeds, {plan.rounds} rounds. Analysts and "
                    f"settings: {plan.few} seeds. {studies.long.parameters['rounds']} rounds, the bound and twenty "
                    f"analysts and more, and privatekube-multi (a third of its length): {plan.fewest} seeds. Fewer "
                    "where a study is expensive, so that the whole takes minutes on two cores.",
                    f"In the long runs pipelines leave after {PATIENCE:g} s, which keeps queues short.",
                    "Every scheduler meets the same traces. Intervals are Student's 95% intervals over seeds: of "
                    "means, of differences and of ratios seed by seed; a ratio is the geometric mean. 'Ahead' and "
                    "'behind' are said only where the interval does not hold zero.",
                    "Efficiency, printed fairness and pipelines are sums over rounds; Jain's index and the smallest "
                    "utility are means over rounds, over all analysts with a feasible pipeline.",
                    "Numbers by round, pipeline and analyst are in rounds.parquet and pipelines.parquet, those of "
                    "the table of headlines in headlines.json. The same command gives the same numbers on every "
                    "machine.",
                )
            ),
        ),
    )


def _everybody_table(measured: Measured, title: str, contests: Sequence[Contest]) -> Table:
    shown = (("efficiency", 2), ("jain", 3), ("utility_min", 4), ("pipelines", 0), ("shut_out", 1))
    rows = [
        (each.label, name_of(who), *(around(measured.mean(each, who, name), digits) for name, digits in shown))
        for each in contests
        for who in EVERYBODY
    ]
    columns = ("workload", "scheduler", ">efficiency", ">Jain", ">smallest utility", ">pipelines", ">shut out per run")
    return Table(title=title, columns=columns, rows=tuple(rows))


def _ahead_table(measured: Measured, title: str, contests: Sequence[Contest]) -> Table:
    rows = []
    for contest in contests:
        for of in BASELINES:
            cells = [times(measured.times(contest, "efficiency", of))]
            cells += [around(measured.ahead(contest, name, of), 3, signed=True) for name in ("jain", "utility_min")]
            rows.append((contest.label, name_of(of), *cells))
    columns = ("setting", "against", ">efficiency, times", ">Jain, difference", ">smallest utility, difference")
    return Table(title=title, columns=columns, rows=tuple(rows))


def _difference(ours: Sequence[float], theirs: Sequence[float], digits: int) -> str:
    return around(Interval.of([a - b for a, b in zip(ours, theirs, strict=True)]), digits, signed=True)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
