"""Do the baseline schedulers decide as they are defined, and as others' programs do?"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import dpbalance.scheduler as room
from dpbalance.allocation import Allocation
from dpbalance.demand import Pipeline
from dpbalance.errors import OptionError, UnknownScheduler
from dpbalance.market import Block, Round, worked_example
from dpbalance.scheduler import Scheduler, options_from_text, options_of, registry, scheduler, scheduler_names
from dpbalance.scheduler.dpk import LOSS
from dpbalance.scheduler.knapsack import most_items, most_weight

SHARED = Path(__file__).parents[2] / "shared" / "cases" / "traces"
DATA = Path(__file__).parent / "data"
TRACES = {
    "dpack_off60": DATA / "dpack_off60.json",
    "dpack_off200": SHARED / "dpack_off200.json",
}
BASELINES = ("fcfs", "dpf", "dpk", "round-robin", "optimal")


def trace(name: str) -> tuple[Round, list[dict[str, Any]]]:
    if not TRACES[name].exists():
        pytest.skip("the shared cases do not stand beside this checkout")
    document = json.loads(TRACES[name].read_text())
    pipelines = [
        Pipeline(
            id=each["id"],
            analyst=each["analyst"],
            submitted=float(each["arrived"]),
            weight=each["weight"],
            demand=dict.fromkeys(each["blocks"], each["cost"]),
        )
        for each in document["pipelines"]
    ]
    blocks = [Block(id=each["id"], capacity=each["capacity"]) for each in document["blocks"]]
    return Round.build(blocks, pipelines, orders=document["orders"]), document["expected"]["runs"]


def simple(capacity: float, demands: list[float], **more: Any) -> Round:
    """One block, one analyst, pipelines P1, P2, ..."""
    pipelines = [Pipeline(id=f"P{at}", analyst="a", demand={"B": d}) for at, d in enumerate(demands, 1)]
    return Round.build([Block(id="B", capacity=capacity, **more)], pipelines)


def names(allocation: Allocation) -> list[str]:
    allocation.check()
    return [allocation.round.pipelines[at] for at in allocation.served]


def random_parts(seed: int, weights: bool = True) -> tuple[list[Block], list[Pipeline], list[float] | None]:
    """A small market of round decimals, so that exact ties with the budget happen."""
    random = np.random.default_rng(seed)
    width = (1, 1, 3)[seed % 3]

    def amount(low: int, high: int) -> Any:
        drawn = (random.integers(low, high, width) / 10).tolist()
        return drawn[0] if width == 1 else drawn

    blocks = [Block(id=f"B{at}", capacity=amount(0, 16)) for at in range(4)]
    pipelines = []
    for at in range(9):
        asked = random.choice(4, size=int(random.integers(1, 4)), replace=False)
        weight = float(random.integers(1, 6)) if weights else 1.0
        demand = {f"B{b}": amount(1, 8) for b in asked}
        pipelines.append(
            Pipeline(id=f"P{at}", analyst="a", demand=demand, weight=weight, submitted=float(-random.integers(0, 3)))
        )
    return blocks, pipelines, None if width == 1 else [2.0, 4.0, 8.0]


def most_by_trying(round_: Round) -> float:
    """The optimum of the privacy knapsack by looking at every set."""
    count = len(round_.pipelines)
    best = 0.0
    for chosen in range(2**count):
        members = [j for j in range(count) if chosen >> j & 1]
        total = np.zeros_like(round_.capacity)
        for j in members:
            mine = slice(round_.start[j], round_.start[j + 1])
            np.add.at(total, round_.block[mine], round_.cost[mine])
        used = total.any(axis=1)
        if (total <= round_.available).any(axis=1)[used].all():
            best = max(best, float(round_.weight[members].sum()))
    return best


@pytest.mark.parametrize("name", TRACES)
def test_one_round_traces_are_granted_in_the_order_of_their_authors_programs(name: str) -> None:
    round_, runs = trace(name)
    assert {run["scheduler"] for run in runs} == {"fcfs", "dpf", "dpk"}
    for run in runs:
        assert names(scheduler(run["scheduler"], **run["options"]).decide(round_)) == run["granted"], run["options"]


def test_dpf_and_dpk_serve_the_smaller_two_of_the_worked_example() -> None:
    for name in ("dpf", "dpk", "optimal"):
        allocation = scheduler(name).decide(worked_example())
        assert sorted(names(allocation)) == ["P3", "P4"]
        assert allocation.metrics.efficiency == pytest.approx(0.7)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_keeps_every_promise_and_does_not_depend_on_the_order_of_the_input(name: str) -> None:
    for seed in range(30):
        blocks, pipelines, orders = random_parts(seed)
        first = scheduler(name).decide(Round.build(blocks, pipelines, orders=orders))
        second = scheduler(name).decide(Round.build(blocks[::-1], pipelines[::-1], orders=orders))
        assert names(first) == names(second)
        assert set(first.multiple) <= {0.0, 1.0}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_grants_nothing_where_there_is_nothing_to_grant(name: str) -> None:
    assert names(scheduler(name).decide(Round.build([Block(id="B", capacity=1.0)], []))) == []
    assert names(scheduler(name).decide(simple(1.0, [0.5, 0.2], spent=1.0))) == []
    assert names(scheduler(name).decide(simple(1.0, [0.5, 0.7], unlocked=0.25))) == []


@pytest.mark.parametrize("name", ["fcfs", "dpf", "dpk", "optimal"])
def test_a_best_effort_baseline_leaves_nobody_who_still_fits(name: str) -> None:
    for seed in range(30):
        blocks, pipelines, orders = random_parts(seed)
        allocation = scheduler(name).decide(Round.build(blocks, pipelines, orders=orders))
        assert {denial.reason for denial in allocation.denied} <= {"exceeds-left", "taken"}


def test_fcfs_goes_by_submission_and_then_by_name() -> None:
    blocks = [Block(id="B", capacity=1.0)]
    times = {"P1": 3.0, "P10": 1.0, "P2": 1.0}
    pipelines = [Pipeline(id=n, analyst="a", demand={"B": 0.5}, submitted=t) for n, t in times.items()]
    assert names(scheduler("fcfs").decide(Round.build(blocks, pipelines, now=5.0))) == ["P2", "P10"]


def test_dpf_compares_the_next_shares_where_the_largest_are_equal() -> None:
    blocks = [Block(id="B1", capacity=1.0), Block(id="B2", capacity=2.0)]
    demands = {"P1": {"B1": 0.5, "B2": 0.6}, "P2": {"B1": 0.5, "B2": 0.4}, "P3": {"B1": 0.5}, "P4": {"B2": 0.8}}
    pipelines = [Pipeline(id=name, analyst="a", demand=demand) for name, demand in demands.items()]
    assert names(scheduler("dpf").decide(Round.build(blocks, pipelines))) == ["P4", "P3", "P2"]


def test_dpf_serves_a_heavier_pipeline_as_if_it_asked_for_less() -> None:
    blocks = [Block(id="B", capacity=1.0)]
    pipelines = [Pipeline(id=f"P{w}", analyst="a", demand={"B": 0.6}, weight=float(w)) for w in (1, 3, 2)]
    assert names(scheduler("dpf").decide(Round.build(blocks, pipelines))) == ["P3"]


def test_dpk_prefers_the_weight_unless_it_is_told_to_count() -> None:
    """At the first order one heavy pipeline fits, at the second two light ones."""
    blocks = [Block(id="B", capacity=[1.0, 1.0])]
    parts = {"heavy": (2.5, [1.0, 1.5]), "light": (1.0, [1.2, 0.5]), "other": (1.0, [1.2, 0.4])}
    pipelines = [Pipeline(id=n, analyst="a", demand={"B": d}, weight=w) for n, (w, d) in parts.items()]
    round_ = Round.build(blocks, pipelines, orders=[2.0, 4.0])
    assert names(scheduler("dpk").decide(round_)) == ["heavy"]
    assert names(scheduler("dpk", knapsack="count").decide(round_)) == ["other", "light"]


def test_round_robin_runs_those_whom_every_block_fills() -> None:
    assert names(scheduler("round-robin").decide(simple(1.0, [0.2, 0.9, 0.3]))) == ["P1", "P3"]
    assert names(scheduler("round-robin").decide(simple(1.0, [0.6, 0.7]))) == []


def test_round_robin_gives_the_unit_that_does_not_divide_to_the_first_of_the_queue() -> None:
    assert names(scheduler("round-robin").decide(simple(5e-9, [3e-9, 3e-9]))) == ["P1"]


def test_the_optimum_is_the_best_of_all_sets() -> None:
    for seed in range(100):
        blocks, pipelines, orders = random_parts(seed, weights=seed % 2 == 0)
        round_ = Round.build(blocks, pipelines, orders=orders)
        allocation = scheduler("optimal").decide(round_)
        allocation.check()
        assert allocation.notes == ()
        assert float(round_.weight[list(allocation.served)].sum()) == most_by_trying(round_), seed


def test_the_optimum_does_not_overspend_by_less_than_the_solver_sees() -> None:
    """Three of them pass a budget of a million by two billionths."""
    allocation = scheduler("optimal").decide(simple(1e6, [333333.333333334] * 3))
    assert len(names(allocation)) == 2
    assert allocation.notes == ()


def test_an_optimum_that_is_not_proven_says_so_and_is_no_worse_than_dpk() -> None:
    round_, _ = trace("dpack_off60")
    allocation = scheduler("optimal", time_limit=1e-3).decide(round_)
    assert len(names(allocation)) >= 48
    assert "not proven optimal within 0.001 s" in allocation.notes[0]


def test_the_knapsack_stays_within_its_guarantee() -> None:
    for seed in range(300):
        random = np.random.default_rng(seed)
        left = int(random.integers(50, 200))
        demand = random.integers(0, left + 1, 10)
        weight = random.uniform(0.5, 1.5, 10) * (demand + 1.0 if seed % 2 else 10.0 ** random.integers(-2, 3, 10))
        order = np.argsort(demand / weight, kind="stable")
        best = max(
            float(weight[list(chosen)].sum())
            for size in range(11)
            for chosen in combinations(range(10), size)
            if demand[list(chosen)].sum() <= left
        )
        found = most_weight(demand[order], weight[order], left, LOSS)
        assert (1 - LOSS) * best <= found * (1 + 1e-12) <= best * (1 + 1e-11)
        assert most_items(np.sort(demand), left) == int((np.cumsum(np.sort(demand)) <= left).sum())


def test_every_name_makes_a_scheduler_and_the_room_can_be_called() -> None:
    assert set(BASELINES) < set(scheduler_names())
    for name in BASELINES:
        made = scheduler(name, beta=0.5)
        assert isinstance(made, Scheduler)
        assert made == room(name, beta=0.5)  # type: ignore[operator]
        assert made.decide(worked_example()).scheduler == name


def test_an_unknown_scheduler_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownScheduler, match=r"'dpz'.*dpbalance, dpf, dpk, fcfs, round-robin, optimal"):
        scheduler("dpz")


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match="'dpk' has no option 'lam'; it has beta, tau, recompute_every, knapsack"):
        scheduler("dpk", lam=1)
    with pytest.raises(OptionError, match="no option 'lam'"):
        options_from_text("dpk", {"lam": "1"})


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("dpk", "recompute_every", 1.5, "'recompute_every' must be a whole number, not '1.5'"),
        ("dpk", "recompute_every", True, "'recompute_every' must be a whole number"),
        ("dpk", "recompute_every", 0, "recompute_every must be at least 1"),
        ("dpk", "knapsack", "best", "'knapsack' must be 'weighted' or 'count', not 'best'"),
        ("dpf", "beta", "2", "'beta' must be a number, not '2'"),
        ("dpf", "beta", -1, "beta must be a number from 0 to inf"),
        ("fcfs", "tau", float("nan"), "'tau' must be a number, not 'nan'"),
        ("optimal", "time_limit", 0, "time_limit must be a number of seconds above 0"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, option: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        scheduler(name, **{option: value})


def test_options_are_read_from_text_by_the_types_of_their_fields() -> None:
    texts = {"beta": "inf", "recompute_every": "7", "knapsack": "count"}
    assert options_from_text("dpk", texts) == {"beta": float("inf"), "recompute_every": 7, "knapsack": "count"}
    for option, text in {"beta": "much", "tau": "nan", "recompute_every": "1.5", "knapsack": "none"}.items():
        with pytest.raises(OptionError, match=f"option '{option}' must be .*, not '{text}'"):
            options_from_text("dpk", {option: text})


def test_every_option_has_a_default_and_a_help() -> None:
    for name in BASELINES:
        for option in options_of(name):
            assert option.help.endswith("."), (name, option)
            assert option.checked(option.default) == option.default


@dataclass(frozen=True, kw_only=True)
class Patient:
    """A scheduler as another package might add one."""

    name: ClassVar[str] = "patient"

    limit: int | None = None
    label: str | None = None
    eager: bool = False

    def decide(self, round_: Round, /) -> Allocation:
        return Allocation(round=round_, scheduler=self.name, multiple=np.zeros(len(round_.pipelines)))


class Added:
    """An entry point that is already loaded, or fails to be."""

    value = "elsewhere:thing"

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def load(self) -> Any:
        if isinstance(self.thing, Exception):
            raise self.thing
        return self.thing


def test_another_package_can_add_a_scheduler_but_not_take_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    registry._added.cache_clear()
    entries = [type("Entry", (Added,), {"name": name})(Patient) for name in ("dpf", "patient")]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.GROUP else [])
    try:
        assert scheduler_names() == (*registry.BUILT_IN, "patient")
        assert type(scheduler("dpf")).__name__ == "DPF"
        assert scheduler("patient", limit=None, eager=True) == Patient(eager=True)
        texts = {"limit": "null", "label": "none", "eager": "yes"}
        assert options_from_text("patient", texts) == {"limit": None, "label": None, "eager": True}
        assert options_from_text("patient", {"limit": "3", "label": "a"}) == {"limit": 3, "label": "a"}
        with pytest.raises(OptionError, match="'limit' must be none or a whole number, not 'x'"):
            options_from_text("patient", {"limit": "x"})
    finally:
        registry._added.cache_clear()


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (ImportError("no such solver"), "cannot be loaded: no such solver"),
        (3, "cannot be called"),
        (lambda: object(), "no method decide"),
    ],
)
def test_a_broken_addition_is_named(thing: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", lambda: {"broken": Added(thing)})
    with pytest.raises(UnknownScheduler, match=message):
        scheduler("broken")


def test_the_room_is_light_to_enter() -> None:
    import subprocess

    code = "import sys, dpbalance.scheduler; print([m for m in ('numba', 'scipy', 'highspy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
