"""What does the paper claim, and what is measured? Each headline number beside ours, in both readings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dpbalance.feedback.report import Table
from dpbalance.simulate.reproduction.figures import name_of, tradeoff_values
from dpbalance.simulate.reproduction.measured import Interval, Measured, ratio
from dpbalance.simulate.reproduction.studies import BASELINES, BETAS, LOSSES, OURS, PRINTED, Studies

CLAIMS = {
    "efficiency": {0.5: (1.44, 3.49), 2.2: (1.41, 3.04), 5.0: (1.67, 2.28)},
    "fairness": {0.5: (1.37, 9.66), 2.2: (1.77, 15.58), 5.0: (1.82, 24.32)},
}
"""Times better than the baselines after ten rounds, from the least to the most."""

TRADED = {
    ("efficiency", "one round"): "-48%",
    ("efficiency", "all rounds"): "-38%",
    ("fairness", "one round"): "+257%",
    ("fairness", "all rounds"): "+119%",
}
"""Change from beta 0 to 5; the paper does not say how it compares fairness at different beta."""

PLAIN, WIDE = LOSSES
READINGS = {
    "physical": (OURS, PLAIN),
    "physical_wide": (OURS, WIDE),
    "printed": (PRINTED, PLAIN),
    "printed_wide": (PRINTED, WIDE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One comparison with one baseline; `shut_out` are analysts per run that it left with nothing, and ours."""

    measure: str
    beta: float
    against: str
    paper: tuple[float, float]
    physical: Interval
    physical_wide: Interval
    printed: Interval
    printed_wide: Interval
    shut_out: float
    ours_shut_out: float
    seeds: int

    @property
    def document(self) -> dict[str, Any]:
        return asdict(self)


def headlines(measured: Measured, studies: Studies) -> tuple[Headline, ...]:
    """All of them, in the order of the paper."""
    return tuple(
        Headline(
            measure=measure,
            beta=beta,
            against=of,
            paper=CLAIMS[measure][beta],
            **{
                reading: measured.times(studies.evaluation[loss, beta], measure, of, who)
                for reading, (who, loss) in READINGS.items()
            },
            shut_out=measured.mean(studies.evaluation[PLAIN, beta], of, "shut_out").mean,
            ours_shut_out=measured.mean(studies.evaluation[PLAIN, beta], OURS, "shut_out").mean,
            seeds=studies.evaluation[PLAIN, beta].seeds,
        )
        for measure in CLAIMS
        for beta in BETAS
        for of in BASELINES
    )


def headline_table(found: tuple[Headline, ...]) -> Table:
    rows = []
    for each in found:
        readings = (each.physical, each.physical_wide, each.printed, each.printed_wide)
        claim = f"{each.paper[0]:g} to {each.paper[1]:g}"
        shut = f"{each.shut_out:.1f} / {each.ours_shut_out:.1f}"
        shown = (f"{each.beta:g}", name_of(each.against), claim, *map(times, readings), shut)
        rows.append((each.measure, *shown))
    return Table(
        title=f"Times as good as each baseline (geometric mean of {found[0].seeds} seeds, 95% interval)",
        columns=(
            "measure",
            ">beta",
            "against",
            ">paper, all three",
            f">physical, {PLAIN}",
            f">physical, {WIDE}",
            f">as printed, {PLAIN}",
            f">as printed, {WIDE}",
            ">shut out per run, theirs / ours",
        ),
        rows=tuple(rows),
    )


def physical_table(measured: Measured, studies: Studies) -> Table:
    """Everybody within the real budget."""
    rows = []
    names = ("efficiency", "jain", "utility_min", "pipelines", "shut_out", "fairness")
    for beta in BETAS:
        for who in (OURS, *BASELINES):
            contest = studies.evaluation[PLAIN, beta]
            if who == OURS or beta == BETAS[-1]:
                numbers = [measured.mean(contest, who, name) for name in names[:-1]]
                fair = measured.mean(studies.evaluation[PLAIN, 5.0], who, "fairness") if beta == 5.0 else None
                label = f"{name_of(who)}, beta {beta:g}" if who == OURS else name_of(who)
                cells = [around(each, digits) for each, digits in zip(numbers, (2, 3, 3, 0, 1), strict=True)]
                rows.append((label, *cells, around(fair, 0) if fair else ""))
    return Table(
        title=f"Within the real budget, {PLAIN}, {studies.evaluation[PLAIN, BETAS[0]].seeds} seeds (mean "
        "and 95% half width)",
        columns=(
            "scheduler",
            ">efficiency",
            ">Jain",
            ">smallest utility",
            ">pipelines served",
            ">shut out per run",
            ">printed fairness at beta 5",
        ),
        rows=tuple(rows),
    )


def ahead_table(measured: Measured, studies: Studies) -> Table:
    """Paired differences, which is what the comparison stands on."""
    rows = [
        (
            f"beta {beta:g}, {loss}",
            name_of(of),
            *(
                around(measured.ahead(studies.evaluation[loss, beta], name, of), digits, signed=True)
                for name, digits in (("efficiency", 2), ("jain", 3), ("utility_min", 3), ("pipelines", 0))
            ),
        )
        for loss in LOSSES
        for beta in BETAS
        for of in BASELINES
    ]
    return Table(
        title="DPBalance within the real budget minus the baseline, on the same traces (mean and 95% half width)",
        columns=("DPBalance", "minus", ">efficiency", ">Jain", ">smallest utility", ">pipelines served"),
        rows=tuple(rows),
    )


def tradeoff_table(measured: Measured, studies: Studies) -> Table:
    rows = []
    for scope, first in (("one round", True), ("all rounds", False)):
        rows.append(
            ("efficiency", scope, TRADED["efficiency", scope], *_changes(measured, studies, "efficiency", first))
        )
        told = "fairness, as Jain's index"
        rows.append((told, scope, TRADED["fairness", scope], *_changes(measured, studies, "jain", first)))
        told = "fairness, as smallest utility"
        rows.append((told, scope, TRADED["fairness", scope], *_ends(measured, studies, "utility_min", first, 3)))
        told = "printed fairness f, whose sign changes at beta 1"
        rows.append((told, scope, TRADED["fairness", scope], *_ends(measured, studies, "fairness", first, 1)))
    return Table(
        title=f"From beta 0 to beta 5, {next(iter(studies.tradeoff.values())).seeds} seeds (95% interval)",
        columns=("measure", "over", ">paper", ">physical", ">as printed"),
        rows=tuple(rows),
    )


def change(measured: Measured, studies: Studies, name: str, first: bool, who: str = OURS) -> Interval:
    """How many times its value at beta 0 the measure is at beta 5."""
    ends = [tradeoff_values(measured, studies.tradeoff[at], name, first, who) for at in (5.0, 0.0)]
    return ratio(*ends)


def times(found: Interval) -> str:
    """1.03 (1.02 to 1.05)"""
    if found.mean != found.mean:
        return "-"
    return f"{found.mean:.2f}" + (f" ({found.low:.2f} to {found.high:.2f})" if found.low == found.low else "")


def around(found: Interval, digits: int, *, signed: bool = False) -> str:
    """9.79 ± 0.08"""
    if found.mean != found.mean:
        return "-"
    shown = f"{found.mean:{'+' if signed else ''}.{digits}f}"
    return shown + (f" ± {found.high - found.mean:.{digits}f}" if found.high == found.high else "")


def _changes(measured: Measured, studies: Studies, name: str, first: bool) -> Iterator[str]:
    for who in (OURS, PRINTED):
        found = change(measured, studies, name, first, who).mapped(lambda each: 100 * (each - 1))
        interval = f" ({found.low:+.0f} to {found.high:+.0f})" if found.low == found.low else ""
        yield "-" if found.mean != found.mean else f"{found.mean:+.0f}%{interval}"


def _ends(measured: Measured, studies: Studies, name: str, first: bool, digits: int) -> Iterator[str]:
    """The means at both ends, for what may be nothing or change its sign."""
    for who in (OURS, PRINTED):
        ends = [Interval.of(tradeoff_values(measured, studies.tradeoff[at], name, first, who)) for at in (0.0, 5.0)]
        yield f"from {ends[0].mean:.{digits}f} to {ends[1].mean:.{digits}f}"
