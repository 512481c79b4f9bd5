"""How is what is left divided between analysts? Step 1: alpha-fair shares, solved by row generation and certified.

maximise  w log W(y) + (lam - w) log sum y  over  gamma x <= left, 0 <= x <= upper,  with y_i = mu_i a_i x_i,
mu_i = max_k gamma_ki, W the generalised mean of order 1 - beta, and w = |1-beta|/beta.

An analyst of priority m_i counts as m_i analysts who share what it gets: y_i = mu_i a_i x_i / m_i is what each of them
gets, and W and the sum are over all of them.

`lam=None` means w, plain alpha-fairness. lam = 0 gives equal utilities, the largest that fit;
lam = inf the largest sum. Between 0 and w the problem is not concave and its answer need not be Pareto efficient; it
is searched for, and not certified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.allocation.certificate import certifiable, log_welfare, strength, upper_bound
from dpbalance.allocation.certificate import gap as certified_gap
from dpbalance.errors import OptionError, SolverError
from dpbalance.scheduler import kernel_columns as columns
from dpbalance.scheduler import kernel_shares as kernels
from dpbalance.scheduler.dual_newton import dual_newton
from dpbalance.scheduler.primal_newton import primal_newton

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

LOOSE = 1e-2
"""What the interior point method aims at while rows are still being found."""

DROP = 0.97
"""Rows less full than this after the second pass are left out again."""

TOLERANCE = 1e-13
"""What it aims at in the end; 1e-8 in log W is what is promised."""

GOOD = 1e-10
"""A certified gap that is good enough not to try another way."""

NEAR = 1e-5
"""Relatively this near to its cap an analyst is tried on it."""

UNEVEN = 1e-7
"""How far, relatively, anybody's share may be from where its price puts it before another way is tried."""

ITERATIONS_MAX = 200
PASSES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Shares with their proof: multiples x of each analyst's demand, and prices that certify them."""

    x: Floats
    log_welfare: float
    """log W over the analysts that can get anything."""
    gap: float | None
    """Certified distance of the objective from the best possible; None where there is no certificate."""
    price: Floats
    bound_price: Floats
    """Prices of the rows and of the upper bounds."""


class Problem:
    """A y <= 1 by columns, one for each analyst that can get anything, and as how many each counts."""

    def __init__(self, columns: tuple[Indices, Rows, Floats], rows: int, mass: Floats) -> None:
        self.start, self.row, self.value = self.columns = columns
        self.rows, self.count, self.mass = rows, len(self.start) - 1, mass

    def full(self, y: Floats) -> Floats:
        """A y: how full each row is."""
        activity = np.empty(self.rows)
        kernels.rows_times(*self.columns, y, activity)
        return activity

    def pull(self, p: Floats) -> Floats:
        """A' p: what each analyst pays for a unit of utility."""
        q = np.empty(self.count)
        kernels.columns_times(*self.columns, p, q)
        return q


def solve(
    gamma: Any,
    left: Any,
    weight: Any,
    beta: float,
    lam: float | None = None,
    upper: Any | None = None,
    priority: Any | None = None,
) -> Solution:
    """Divide `left` (K) along the columns of gamma (K x M, an array or scipy.sparse) with weights a (M).

    An analyst of priority 2 counts as two that share what it gets. Analysts that touch an empty row, or ask for
    nothing, get 0 and stay out of the objective. The rows hold exactly, in rational arithmetic on the doubles given.

    >>> s = solve([[0.8, 0.7], [0.8, 0.6]], [1.0, 1.0], [1.0, 1.0], 2.2)
    >>> s.x.round(9).tolist(), s.gap < 1e-8
    ([0.625, 0.714285714], True)
    """
    start, row, value, rows = columns.by_columns(gamma)
    count = len(start) - 1
    left_, weight_ = _vector(left, rows, "left"), _vector(weight, count, "weight")
    upper_ = np.full(count, np.inf) if upper is None else _vector(upper, count, "upper", infinite=True)
    if value.size and not (np.min(value) >= 0 and np.max(value) < np.inf):
        raise OptionError("gamma must be finite and not negative")
    priority_ = np.ones(count) if priority is None else _vector(priority, count, "priority")
    if not np.all(priority_ > 0):
        raise OptionError("priority must be above 0")
    asked = Asked(start=start, row=row, value=value, left=left_, weight=weight_, upper=upper_, priority=priority_)
    return solve_columns(asked, beta, lam)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """Step 1 in columns, one for each analyst: rows `row[e]` and amounts `value[e]` for e in start[i]:start[i + 1]."""

    start: Indices
    row: npt.NDArray[Any]
    value: Floats
    left: Floats
    weight: Floats
    upper: Floats
    priority: Floats
    dominant: Floats | None = None
    """mu, where it is not simply the largest entry of each column."""

    def scaled(self) -> tuple[Problem, Indices, Floats]:
        """The problem in units of y, who takes part in it, and y / x of everybody."""
        scale = np.zeros(len(self.start) - 1)
        live = columns.scales(self.start, self.row, self.value, self.left, self.weight, self.upper, scale)
        if self.dominant is not None:
            scale = self.dominant * self.weight
        scale = scale / self.priority
        members = np.flatnonzero(live)
        matrix = columns.scaled(self.start, self.row, self.value, self.left, scale, self.upper, members)
        return Problem(matrix, len(self.left) + len(scale), self.priority[members]), members, scale


@dataclass(slots=True)
class Trail:
    """Where the last solve of a sweep ended, for the next one to begin at: the rows that mattered, y and prices."""

    work: Indices | None = None
    y: Floats | None = None
    prices: Floats | None = None


def solve_columns(asked: Asked, beta: float, lam: float | None) -> Solution:
    """The same for gamma by columns."""
    return _solved(asked, asked.scaled(), beta, lam, Trail())


def sweep(asked: Asked, betas: Sequence[float]) -> list[Solution]:
    """The alpha-fair shares for one beta after the other, each begun where the one before it ended."""
    scaled, trail = asked.scaled(), Trail()
    return [_solved(asked, scaled, beta, None, trail) for beta in betas]


def _solved(
    asked: Asked, scaled: tuple[Problem, Indices, Floats], beta: float, lam: float | None, trail: Trail
) -> Solution:
    beta = float(beta)
    if not beta >= 0 or (lam is not None and not lam >= 0):
        raise OptionError(f"beta and lam must be 0 or more, not beta={beta!r}, lam={lam!r}")
    problem, members, scale = scaled
    count, rows = len(scale), len(asked.left)
    x, price, bound_price = np.zeros(count), np.zeros(rows), np.zeros(count)
    if not len(members):
        return Solution(x=x, log_welfare=-np.inf, gap=None, price=price, bound_price=bound_price)
    y, prices = divide(problem, beta, lam, trail)
    x[members] = y / scale[members]
    room = columns.make_feasible(asked.start, asked.row, asked.value, asked.left, asked.upper, x)
    if beta < np.inf and (lam is None or lam >= strength(beta)):  # else the sum is held down on purpose
        poorest = members[np.argsort(x[members] * scale[members], kind="stable")]
        if columns.top_up(asked.start, asked.row, asked.value, room, asked.upper, poorest, x):
            columns.make_feasible(asked.start, asked.row, asked.value, asked.left, asked.upper, x)
    if lam is None and 0 < beta < np.inf:
        x = _on_caps(asked, beta, x, lambda tried: log_welfare(tried[members] * scale[members], beta, problem.mass))
    y = x[members] * scale[members]
    price[:], bound_price[:] = prices[:rows], prices[rows:]
    welfare = log_welfare(y, beta, problem.mass)
    if not certifiable(beta, lam):
        return Solution(x=x, log_welfare=welfare, gap=None, price=price, bound_price=bound_price)
    proven = certified_gap(y, problem.pull(prices), float(np.sum(prices)), beta, lam, problem.mass)
    return Solution(x=x, log_welfare=welfare, gap=max(proven, 0.0), price=price, bound_price=bound_price)


def _on_caps(asked: Asked, beta: float, x: Floats, welfare: Callable[[Floats], float]) -> Floats:
    """Whoever is a hair below its cap is put on it, and what is left then divided between the others.

    Where a cap and a row bind at the same point neither has a price, and the solver sees such a point only to half its
    digits; a pipeline that needs exactly its cap would be denied for the rest.
    """
    near = (x >= asked.upper * (1.0 - NEAR)) & (x < asked.upper * (1.0 - 1e-12))
    if not near.any():
        return x
    entries = np.repeat(near, np.diff(asked.start))
    used = np.repeat(np.where(near, asked.upper, 0.0), np.diff(asked.start))[entries] * asked.value[entries]
    left = asked.left - np.bincount(asked.row[entries], weights=used, minlength=len(asked.left))
    if not np.min(left) >= 0:
        return x
    others = replace(asked, left=left, upper=np.where(near, 0.0, asked.upper))
    problem, members, scale = others.scaled()
    tried = np.where(near, asked.upper, 0.0)
    if len(members):
        tried[members] = divide(problem, beta, None, Trail())[0] / scale[members]
    columns.make_feasible(asked.start, asked.row, asked.value, asked.left, asked.upper, tried)
    return tried if welfare(tried) >= welfare(x) - GOOD else x


def divide(problem: Problem, beta: float, lam: float | None, trail: Trail) -> tuple[Floats, Floats]:
    """Utilities y and row prices of a scaled problem."""
    own = strength(beta)
    if lam == 0 or (np.isinf(beta) and lam is not None and lam < 1):
        return _equal(problem)  # at beta = inf, holding the sum down for a given smallest utility means equal ones
    if lam is not None and (np.isinf(lam) or beta == 1):
        return _linear(problem)
    if lam is None or lam == own:
        if beta == 0:
            return _linear(problem)
        if np.isinf(beta):
            return _max_min(problem)
        return _by_rows(problem, beta, trail=trail)
    if np.isinf(beta):
        return _smallest_and_sum(problem, lam - 1.0)
    if lam > own:
        return _by_rows(problem, beta, lambda _, small, *__: _small_with_extra(beta, lam - own, small))
    return _with_less_efficiency(problem, beta, lam)


def _by_rows(
    problem: Problem,
    beta: float,
    solve_small: Callable[..., tuple[Floats, Floats]] | None = None,
    trail: Trail | None = None,
) -> tuple[Floats, Floats]:
    """Row generation: solve over the rows that matter, look for violated ones, until there are none."""
    solve_small, trail = solve_small or _small, trail or Trail()
    member = np.zeros(problem.rows, dtype=np.int8)
    prices = np.zeros(problem.rows)
    y, p, tolerance, known = trail.y, None, LOOSE, trail.work is not None
    if trail.work is None or trail.prices is None:
        kernels.tightest_rows(*problem.columns, member)
        work = np.flatnonzero(member)
    else:
        work, p, tolerance = trail.work, trail.prices[trail.work], TOLERANCE
        member[work] = 1
    for at in range(PASSES_MAX):
        # the first pass only looks for rows, and those of a moderate beta are nearest to those of all the others
        now = min(max(beta, 1.0), 5.0) if at == 0 and not known else beta
        position = np.full(problem.rows, -1)
        position[work] = np.arange(len(work))
        small = Problem(kernels.working_matrix(*problem.columns, position), len(work), problem.mass)
        y, p = solve_small(now, small, tolerance, y, p)
        activity = problem.full(y)
        full = float(np.max(activity[work]))
        limit = full * (1.0 + max(tolerance, 1e-13))
        new = kernels.violated_rows(problem.start, problem.row, activity, member, limit)
        prices[:] = 0.0
        prices[work] = p
        if not new and tolerance <= TOLERANCE:
            y = y / float(np.max(activity))
            trail.work, trail.y, trail.prices = work, y, prices
            return y, prices
        if not new or at >= 1:
            tolerance = TOLERANCE
        if (
            at == 1 and not known
        ):  # the first guess brought many rows that turn out loose; dropping later ones could go in circles
            member[work[activity[work] < DROP * full]] = 0
            kernels.cover_everyone(problem.start, problem.row, activity, member)
        y = y * (1.0 / float(np.max(activity)))
        work = np.flatnonzero(member)
        p = prices[work]
    raise SolverError(f"shares did not settle in {PASSES_MAX} passes over the rows")


def _small(beta: float, problem: Problem, tolerance: float, y: Any, p: Any) -> tuple[Floats, Floats]:
    """Solve over the working rows; when the certificate is not good, try more careful ways."""
    first_y, first_p = kernels.starting_point(*problem.columns, problem.rows)
    gradual = max(beta, 0.3)  # the smallest beta to begin with: nearer to 0 the optimum is nearly a vertex
    first = gradual
    if y is not None:
        first_y, first_p, first = 0.9 * y, p + 1e-3 / problem.rows, beta
    offset = np.log(problem.mass)
    best: tuple[float, float, Floats, Floats] = (np.inf, np.inf, first_y, first_p)
    for begin, caution in ((first, 0.3), (gradual, 0.3), (min(max(beta, 1.0), 3.0), 1.0), (1.0, 0.3)):
        y, p = first_y.copy(), first_p.copy()
        _, uneven, _ = kernels.interior_point(
            *problem.columns, offset, beta, begin, caution, y, p, tolerance, ITERATIONS_MAX
        )
        distance = max(_distance(problem, beta, y, p), max(tolerance * 10, GOOD))
        if (distance, uneven) < best[:2]:
            best = (distance, uneven, y, p)
        # for a large beta the rich hardly count in the gap: that their shares are right is for their residuals to say
        if distance <= max(tolerance * 10, GOOD) and (beta <= 1 or uneven <= max(10 * tolerance, UNEVEN) * beta):
            return y, p
        first_y, first_p = kernels.starting_point(*problem.columns, problem.rows)
    if best[0] <= max(tolerance * 10, GOOD):
        return best[2], best[3]
    y, p = dual_newton(*problem.columns, problem.rows, beta, problem.mass)
    return (y, p) if _distance(problem, beta, y, p) < best[0] else (best[2], best[3])


def _small_with_extra(beta: float, extra: float, problem: Problem) -> tuple[Floats, Floats]:
    """The same with extra weight on the sum, from scratch each time and precise at once."""
    first, _ = kernels.starting_point(*problem.columns, problem.rows)
    return primal_newton(*problem.columns, first, beta, extra, problem.mass)


def _distance(problem: Problem, beta: float, y: Floats, p: Floats) -> float:
    """The certified gap."""
    fullest = float(np.max(problem.full(y)))
    best = upper_bound(problem.pull(p), float(np.sum(p)), beta, problem.mass)
    return best - log_welfare(y / fullest, beta, problem.mass)


def _equal(problem: Problem) -> tuple[Floats, Floats]:
    """The largest equal utilities: one row is full, and its price is the proof."""
    activity, prices = problem.full(np.ones(problem.count)), np.zeros(problem.rows)
    tight = int(np.argmax(activity))
    prices[tight] = 1.0
    return np.full(problem.count, 1.0 / activity[tight]), prices


def _max_min(problem: Problem) -> tuple[Floats, Floats]:
    """Lexicographic max-min by progressive filling; the first row to fill is the proof of the smallest utility."""
    y = np.zeros(problem.count)
    tight = columns.fill(*problem.columns, problem.rows, y)
    prices = np.zeros(problem.rows)
    prices[tight] = 1.0
    return y, prices


def _linear(problem: Problem) -> tuple[Floats, Floats]:
    """The largest sum, an LP."""
    from dpbalance.scheduler.highs import largest_sum

    return largest_sum(*problem.columns, problem.rows, problem.mass)


def _smallest_and_sum(problem: Problem, extra: float) -> tuple[Floats, Floats]:
    """beta = inf, lam > 1: log min y + c log sum y, concave in the smallest utility; each trial is an LP above it."""
    from dpbalance.scheduler.highs import largest_sum

    equal, prices = _equal(problem)
    base = problem.full(np.ones(problem.count))

    def trial(smallest: float) -> tuple[float, Floats, Floats]:
        rest = 1.0 - smallest * base[problem.row]
        more, _ = largest_sum(problem.start, problem.row, problem.value / rest, problem.rows, problem.mass)
        return np.log(smallest) + extra * np.log(problem.mass @ (smallest + more)), smallest + more, prices

    return _best_on(trial, 1e-6 * equal[0], (1.0 - 1e-12) * equal[0])


def _with_less_efficiency(problem: Problem, beta: float, lam: float) -> tuple[Floats, Floats]:
    """0 < lam < w: search over S = sum y between equal shares and the alpha-fair sum, where W is maximised under S.

    Holding the sum down is one more row, so every trial is an alpha-fair problem again. At beta = 0, where w is
    infinite and the fairness term is the entropy, the trials maximise W for a beta near 0.
    """
    near, mass = max(beta, 0.02), problem.mass
    equal, equal_prices = _equal(problem)
    fair, fair_prices = _by_rows(problem, near)

    def objective(y: Floats) -> float:
        log_sum = float(np.log(mass @ y))
        if beta == 0:
            share = y / (mass @ y)
            return lam * log_sum - float(mass @ (share * np.log(np.maximum(share, 1e-300))))
        return strength(beta) * (log_welfare(y, beta, mass) - log_sum) + lam * log_sum

    def trial(log_sum: float) -> tuple[float, Floats, Floats]:
        capped = columns.with_full_row(*problem.columns, problem.rows, mass * np.exp(-log_sum))
        y, prices = _by_rows(Problem(capped, problem.rows + 1, mass), near)
        return objective(y), y, prices[:-1]

    ends = [(objective(equal), equal, equal_prices), (objective(fair), fair, fair_prices)]
    low, high = float(np.log(mass @ equal)), float(np.log(mass @ fair))
    if high - low < 1e-9:
        return max(ends, key=lambda each: each[0])[1:]
    inner = _best_on(trial, low, high)
    return max([(objective(inner[0]), *inner), *ends], key=lambda each: each[0])[1:]


def _best_on(trial: Callable[[float], tuple[float, Floats, Floats]], low: float, high: float) -> tuple[Floats, Floats]:
    """The best trial on an interval: a grid first, in case there are several hills, then a golden section."""
    grid = np.linspace(low, high, 18)[1:-1]
    tried = [trial(float(point)) for point in grid]
    best = int(np.argmax([each[0] for each in tried]))
    a, b = (low if best == 0 else grid[best - 1]), (high if best == len(grid) - 1 else grid[best + 1])
    golden = (5**0.5 - 1) / 2
    for _ in range(45):
        c, d = b - golden * (b - a), a + golden * (b - a)
        left, right = trial(float(c)), trial(float(d))
        tried += [left, right]
        if left[0] > right[0]:
            b = d
        else:
            a = c
        if b - a < 1e-10 * max(abs(a), abs(b)):
            break
    return max(tried, key=lambda each: each[0])[1:]


def _vector(values: Any, count: int, name: str, infinite: bool = False) -> Floats:
    vector = np.array(values, dtype=np.float64)
    if vector.shape != (count,):
        raise OptionError(f"{name} must have {count} entries, not shape {vector.shape}")
    if not np.all((vector >= 0) & (vector <= (np.inf if infinite else 1e300))):
        raise OptionError(f"{name} must be finite and not negative")
    return vector
