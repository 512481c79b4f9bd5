"""How does a person read a decision? Tables in which no name is cut short and no row is hidden unsaid."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from dpbalance.allocation import Allocation, Denial, Shortage
from dpbalance.allocation.allocation import EXCEEDS_LEFT, NOT_CHOSEN, SHARE_SPENT, TAKEN
from dpbalance.amounts import epsilons
from dpbalance.cli.deciding import Outcome

ROWS_MAX = 20
"""Longer tables show this many rows and say how many more there are."""

WIDTH_PIPED = 160
"""Columns when nobody says how wide the paper is."""

REASONS = {
    EXCEEDS_LEFT: "asks for more than is left",
    SHARE_SPENT: "its share is used up",
    TAKEN: "already taken when its turn came",
    NOT_CHOSEN: "would still fit, but was passed over",
}


def allocation_text(allocation: Allocation, all_rows: bool) -> str:
    """Grants, denials, analysts and metrics of one decision."""
    limit = None if all_rows else ROWS_MAX
    metrics = allocation.metrics
    judged = int(np.sum(allocation.valuation.judged))
    facts = [
        ("efficiency", number(metrics.efficiency), "sum of the analysts' utilities"),
        (
            "fairness",
            number(metrics.fairness),
            f"dominant fairness at beta {number(allocation.terms.beta)}, served only",
        ),
        ("jain", number(metrics.jain), "1 when all analysts have the same utility"),
        ("utility_min", number(metrics.utility_min), "of the worst-off analyst"),
        ("shut_out", str(metrics.shut_out), f"of {judged} analysts with a feasible pipeline"),
        ("pipelines", str(metrics.pipelines), f"of {len(allocation.round.pipelines)} served"),
    ]
    return rendered(
        *_grants(allocation, limit),
        *_denials(allocation, limit),
        *_analysts(allocation, limit),
        table(f"Metrics ({allocation.scheduler})", ["metric", ">value", "meaning"], facts),
        _proven(allocation),
        *(f"Note: {note}" for note in allocation.notes),
    )


def comparison_text(outcomes: Sequence[Outcome], title: str = "Schedulers side by side") -> str:
    """One row for each scheduler; a failure stands in its row, its reason below the table."""
    columns = ["scheduler", ">efficiency", ">fairness", ">jain", ">utility_min", ">shut_out", ">pipelines", ">seconds"]
    rows = []
    remarks = []
    for each in outcomes:
        if each.allocation is None:
            rows.append((each.scheduler, "failed", *[""] * 5, number(each.seconds, 2)))
            remarks.append(f"{each.scheduler} failed: {each.reason}")
            continue
        m = each.allocation.metrics
        values = (m.efficiency, m.fairness, m.jain, m.utility_min, m.shut_out, m.pipelines)
        rows.append((each.scheduler, *map(number, values), number(each.seconds, 2)))
        remarks += [f"{each.scheduler}: {note}" for note in each.allocation.notes]
    return rendered(table(title, columns, rows), *remarks)


def settings_text(listed: Sequence[dict[str, Any]]) -> str:
    """Every scheduler with its options, what they default to and what they mean."""
    parts: list[RenderableType] = []
    for each in listed:
        if each["reason"]:
            parts.append(f"{each['name']} cannot be used: {each['reason']}\n")
            continue
        columns = ["name", "default", "allowed", "meaning"]
        rows = [
            [str(option[column]).lower() if column == "default" else option[column] for column in columns]
            for option in each["options"]
        ]
        parts.append(table(each["name"], ["option", *columns[1:]], rows))
    return rendered(*parts)


def rendered(*parts: RenderableType) -> str:
    """The parts as text, with colours only for a terminal; names are never read as markup."""
    console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def number(value: float | None, digits: int = 4) -> str:
    """A number as short as `digits` allow; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table; a column that begins with > is right-aligned."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def listed(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], total: int, limit: int | None) -> Any:
    """A table of `total` rows of which the first are shown, and a line that counts the rest."""
    yield table(title, columns, rows)
    if limit is not None and total > limit:
        yield f"... and {total - limit} more; --all prints them.\n"


def _grants(allocation: Allocation, limit: int | None) -> Any:
    round_, served = allocation.round, allocation.served
    rows = []
    for at in served[:limit]:
        block, cost, share = _dominant(allocation, at)
        owner = round_.analysts[int(round_.owner[at])]
        multiple = number(float(allocation.multiple[at]), 6)
        rows.append((round_.pipelines[at], owner, multiple, block, number(cost, 9), f"{share:.3%}"))
    columns = ["pipeline", "analyst", ">multiple", "dominant block", ">cost there", ">of its capacity"]
    return listed(f"Granted: {len(served)} of {len(round_.pipelines)}", columns, rows, len(served), limit)


def _dominant(allocation: Allocation, at: int) -> tuple[str, float, float]:
    """The block of which a grant takes the largest share, what it takes there, and the share."""
    round_ = allocation.round
    mine = slice(int(round_.start[at]), int(round_.start[at + 1]))
    block = round_.block[mine]
    order = allocation.valuation.order[block]
    cost = np.take_along_axis(allocation.cost[mine], order[:, None], axis=1)[:, 0]
    capacity = round_.capacity[block, order]
    share = np.divide(cost, capacity, out=np.zeros(len(cost)), where=capacity > 0)
    most = int(np.argmax(share))
    return round_.blocks[int(block[most])], float(epsilons(cost[most])), float(share[most])


def _denials(allocation: Allocation, limit: int | None) -> Any:
    denied = allocation.denied
    if not denied:
        return
    columns = ["pipeline", "analyst", "reason", "block", ">asked", ">left", ">short"]
    rows = [(each.pipeline, each.analyst, REASONS[each.reason], *_worst(each)) for each in denied[:limit]]
    yield from listed(f"Denied: {len(denied)}", columns, rows, len(denied), limit)


def _worst(denial: Denial) -> tuple[str, str, str, str]:
    """The block that is shortest of what was asked; with several orders at the order that is nearest to enough."""
    if not denial.shortages:
        return "", "", "", ""

    def nearest(shortage: Shortage) -> tuple[float, float, float]:
        asked, left, short = (np.atleast_1d(each) for each in (shortage.asked, shortage.left, shortage.short))
        at = int(np.argmin(short))
        return float(short[at]), float(asked[at]), float(left[at])

    worst = max(denial.shortages, key=nearest)
    short, asked, left = nearest(worst)
    return worst.block, number(asked, 9), number(left, 9), number(short, 9)


def _analysts(allocation: Allocation, limit: int | None) -> Any:
    analysts = allocation.analysts
    rows = [
        (each.analyst, number(each.offered), number(each.share), number(each.weight), number(each.utility))
        for each in analysts[:limit]
    ]
    columns = ["analyst", ">offered share", ">share got", ">weight", ">utility"]
    return listed(f"Analysts: {len(analysts)}", columns, rows, len(analysts), limit)


def _proven(allocation: Allocation) -> str:
    gap = allocation.proof.gap
    optimal = "" if gap is None else f"; step 1 is within {max(gap, 0.0):.1e} of the best possible"
    return f"Checked: no block is overspent{optimal}."
