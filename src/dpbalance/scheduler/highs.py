"""How is HiGHS asked for an exact answer? One thread, silent, tight tolerances; imported only when needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.errors import SolverError
from dpbalance.market.round import Floats
from dpbalance.scheduler import kernel_shares as kernels

PASSES_MAX = 200


def maximise(
    cost: Floats,
    start: npt.NDArray[Any],
    row: npt.NDArray[Any],
    value: Floats,
    *,
    row_lower: Floats,
    row_upper: Floats,
    lower: Floats,
    upper: Floats,
    whole: npt.NDArray[np.bool_] | None = None,
    nodes_max: int = 2**31 - 1,
    seconds_max: float = np.inf,
) -> tuple[Floats, Floats, str]:
    """Columns, row duals and status ('optimal', 'infeasible', 'limit') of an LP or MILP given by columns."""
    import highspy

    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(row_upper)
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_, model.row_upper_ = row_lower, row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.asarray(start, dtype=np.int32)
    model.a_matrix_.index_ = np.asarray(row, dtype=np.int32)
    model.a_matrix_.value_ = value
    if whole is not None:
        kinds = {True: highspy.HighsVarType.kInteger, False: highspy.HighsVarType.kContinuous}
        model.integrality_ = [kinds[bool(each)] for each in whole]
    solver = highspy.Highs()
    settings: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "mip_max_nodes": nodes_max,
        "time_limit": seconds_max,
        "primal_feasibility_tolerance": 1e-10 if whole is None else 1e-9,
        "dual_feasibility_tolerance": 1e-10,
        "mip_feasibility_tolerance": 1e-9,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.0,
    }
    for name, setting in settings.items():
        solver.setOptionValue(name, setting)
    solver.passModel(model)
    solver.run()
    states = {
        highspy.HighsModelStatus.kOptimal: "optimal",
        highspy.HighsModelStatus.kInfeasible: "infeasible",
        highspy.HighsModelStatus.kSolutionLimit: "limit",
        highspy.HighsModelStatus.kTimeLimit: "limit",
    }
    status = states.get(solver.getModelStatus())
    if status is None:
        raise SolverError(f"HiGHS ended with {solver.modelStatusToString(solver.getModelStatus())!r}")
    solution = solver.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual), status


def largest_sum(
    start: npt.NDArray[Any], row: npt.NDArray[Any], value: Floats, rows: int, mass: Floats
) -> tuple[Floats, Floats]:
    """Maximise sum m y over A y <= 1 by row generation; utilities and row prices.

    Each y is measured by the most it could be alone, so that analysts of very different weight are solved alike.
    """
    count = len(start) - 1
    most = 1.0 / np.maximum.reduceat(value, start[:-1])
    cost = mass * most / np.max(mass * most)
    member, activity, prices = np.zeros(rows, dtype=np.int8), np.empty(rows), np.zeros(rows)
    kernels.tightest_rows(start, row, value, member)
    y = most
    for _ in range(PASSES_MAX):
        work = np.flatnonzero(member)
        position = np.full(rows, -1)
        position[work] = np.arange(len(work))
        small, at, entries = kernels.working_matrix(start, row, value, position)
        units, dual, status = maximise(
            cost,
            small,
            at,
            entries * np.repeat(most, np.diff(small)),
            row_lower=np.full(len(work), -np.inf),
            row_upper=np.ones(len(work)),
            lower=np.zeros(count),
            upper=np.full(count, np.inf),
        )
        if status != "optimal":
            raise SolverError(f"HiGHS ended the linear program of step 1 with {status!r}")
        y = np.maximum(units, 0.0) * most
        kernels.rows_times(start, row, value, y, activity)
        if not kernels.violated_rows(start, row, activity, member, max(float(np.max(activity[work])), 1.0) + 1e-11):
            break
    else:
        raise SolverError(f"the linear program did not settle in {PASSES_MAX} passes over the rows")
    prices[work] = np.maximum(dual, 0.0)
    return y / max(float(np.max(activity)), 1.0), prices
