"""What is the most weight that fits at all? The exact privacy knapsack, a mixed-integer program solved by HiGHS.

    maximise sum_i w_i x_i    subject to    sum_alpha z(b, alpha) >= 1
                                            sum_i d(i, b, alpha) x_i - M (1 - z(b, alpha)) <= left(b, alpha)

with binary x (granted) and z (the order that keeps block b within budget). Rows are divided by what is left. Whoever
asks more than that of an order alone stands in a row x_i + z <= 1 of its own instead, so every coefficient is at most 1
and M is no larger than it must be. The solver's answer is added up again in whole numbers; a set that passes the budget
by less than the solver can see is cut off exactly, and the solver asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.allocation.proof import exact_totals
from dpbalance.allocation.valuation import fits
from dpbalance.market import Round
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.dpk import DPK
from dpbalance.scheduler.greedy import queue_order
from dpbalance.scheduler.options import Options, require


@dataclass(frozen=True, kw_only=True)
class Optimal(Options):
    """The exact privacy knapsack."""

    name: ClassVar[str] = "optimal"

    time_limit: float = 60.0
    """Seconds the solver may take; inf for no limit. Past it the best answer found is used and its bound is noted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.time_limit > 0, f"time_limit must be a number of seconds above 0, not {self.time_limit!r}")

    def decide(self, round_: Round, /) -> Allocation:
        known = np.array(sorted(DPK(recompute_every=1).decide(round_).served), dtype=np.int64)
        program = Program.of(round_)
        chosen, notes = self._solved(round_, program, known) if program.rows else (program.pipelines, ())
        queue = queue_order(round_)
        return self.all_or_nothing(round_, queue[np.isin(queue, chosen)].tolist(), notes)

    def _solved(self, round_: Round, program: Program, known: Indices) -> tuple[Indices, tuple[str, ...]]:
        """The best set that holds in whole numbers, no worse than the known one; a note where it may not be optimal."""
        import highspy

        solver = _solver()
        program.load(solver)
        while True:
            program.suggest(solver, round_, known)
            solver.setOptionValue("time_limit", max(self.time_limit - solver.getRunTime(), 0.0))
            solver.run()
            answer = np.array(solver.getSolution().col_value)
            optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
            bound = float(solver.getInfo().mip_dual_bound)
            chosen = program.pipelines[answer[: len(program.pipelines)] > 0.5] if len(answer) else known
            broken = program.broken(round_, chosen)
            if not broken and round_.weight[chosen].sum() >= round_.weight[known].sum():
                known = chosen
            if optimal and not broken:
                return known, ()
            if not optimal:
                value = float(round_.weight[known].sum())
                note = f"not proven optimal within {self.time_limit:g} s: weight {value:.9g}, bound {bound:.9g}"
                return known, (note,)
            program.cut(solver, broken, chosen)


@dataclass(frozen=True, slots=True)
class Row:
    """One order of one block that can keep it within budget."""

    block: int
    order: int
    binary: int
    """Column of z."""
    small: Indices
    """Columns of the pipelines that fit there alone,"""
    share: Floats
    """and which part each of them takes."""
    large: Indices
    """Columns of those that do not."""


@dataclass(frozen=True, slots=True)
class Program:
    """The pipelines that fit alone, and the rows of the blocks that cannot serve all of them."""

    pipelines: Indices
    weight: Floats
    rows: list[Row] = field(default_factory=list)

    @staticmethod
    def of(round_: Round) -> Program:
        pipelines = np.flatnonzero(fits(round_))
        program = Program(pipelines, round_.weight[pipelines])
        owner = np.repeat(np.arange(len(round_.pipelines)), np.diff(round_.start))
        entries = np.flatnonzero(np.isin(owner, pipelines))
        entries = entries[np.argsort(round_.block[entries], kind="stable")]
        total = exact_totals(round_.block[entries], round_.cost[entries], len(round_.blocks))
        binding = (total > round_.available).all(axis=1)
        bounds = np.searchsorted(round_.block[entries], np.arange(len(round_.blocks) + 1))
        for block in np.flatnonzero(binding):
            mine = entries[bounds[block] : bounds[block + 1]]
            columns = np.searchsorted(pipelines, owner[mine])
            for order in np.flatnonzero(round_.available[block] >= 0):
                demand, left = round_.cost[mine, order], round_.available[block, order]
                alone = demand <= left
                share = demand[alone] / max(left, 1)
                binary = len(pipelines) + len(program.rows)
                row = Row(int(block), int(order), binary, columns[alone], share, columns[~alone])
                program.rows.append(row)
        return program

    def load(self, solver: Any) -> None:
        """Columns x, then z; rows as in the program."""
        count = len(self.pipelines) + len(self.rows)
        profit = np.concatenate((self.weight, np.zeros(len(self.rows))))
        nothing: Any = np.zeros(0, dtype=np.int32)
        solver.addCols(count, profit, np.zeros(count), np.ones(count), 0, nothing, nothing, np.zeros(0))
        columns = np.arange(count, dtype=np.int32)
        solver.changeColsIntegrality(count, columns, np.ones(count, dtype=np.uint8))
        solver.setMaximize()
        by_block: dict[int, list[int]] = {}
        for row in self.rows:
            by_block.setdefault(row.block, []).append(row.binary)
            excess = max(float(row.share.sum()) - 1.0, 0.0)
            _add(solver, [*row.small, row.binary], [*row.share, excess], 1.0 + excess)
            for column in row.large:
                _add(solver, [column, row.binary], [1.0, 1.0], 1.0)
        for binaries in by_block.values():
            _add(solver, binaries, [-1.0] * len(binaries), -1.0)

    def suggest(self, solver: Any, round_: Round, known: Indices) -> None:
        """Give the solver a set that is known to hold."""
        import highspy

        solution = highspy.HighsSolution()
        value = np.zeros(len(self.pipelines) + len(self.rows))
        value[np.searchsorted(self.pipelines, known)] = 1.0
        holding = self._holding(round_, known)
        value[[row.binary for row in self.rows if holding[row.block, row.order]]] = 1.0
        solution.col_value = value.tolist()
        solver.setSolution(solution)

    def broken(self, round_: Round, chosen: Indices) -> list[Row]:
        """The rows of blocks that these pipelines overspend, by exact sums."""
        held = self._holding(round_, chosen).any(axis=1)
        return [row for row in self.rows if not held[row.block]]

    def cut(self, solver: Any, broken: list[Row], chosen: Indices) -> None:
        """At this order never again all of those that were chosen now."""
        member = np.isin(self.pipelines, chosen)
        for row in broken:
            if member[row.large].any():
                continue  # a row of its own forbids that already
            together = row.small[member[row.small]]
            _add(solver, [*together, row.binary], [1.0] * (len(together) + 1), float(len(together)))

    def _holding(self, round_: Round, chosen: Indices) -> Any:
        """Block by order, whether these pipelines together stay within what is left."""
        owner = np.repeat(np.arange(len(round_.pipelines)), np.diff(round_.start))
        mine = np.isin(owner, chosen)
        total = exact_totals(round_.block[mine], round_.cost[mine], len(round_.blocks))
        return total <= round_.available


def _add(solver: Any, columns: Any, values: Any, upper: float) -> None:
    solver.addRow(-np.inf, upper, len(columns), np.array(columns, dtype=np.int32), np.array(values, dtype=np.float64))


def _solver() -> Any:
    """HiGHS on one thread with a fixed seed, so that it answers alike every time."""
    import highspy

    solver = highspy.Highs()
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.0,
        "mip_feasibility_tolerance": 1e-9,
        "primal_feasibility_tolerance": 1e-9,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    return solver
