"""Does the engine keep its order of events, its clock and its books?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dpbalance.allocation import Allocation
from dpbalance.clock import FakeClock, chance
from dpbalance.demand import Pipeline
from dpbalance.errors import BudgetExceeded, DPBalanceError, InputError
from dpbalance.market import Block, Round
from dpbalance.market.unlocking import ByArrivals, ByTime, portion
from dpbalance.scheduler import scheduler
from dpbalance.simulate import Run, Trace, run, trace_from_json

FCFS = scheduler("fcfs")


def trace(
    pipelines: dict[str, tuple[float, float]], *, blocks: dict[str, float] | None = None, more: Any = None, **rest: Any
) -> Trace:
    """Blocks of capacity 1 by arrival, and pipelines (arrived, cost) that ask all blocks unless `more` says else."""
    arrived = blocks or {"B": 0.0}
    asked = more or {}
    return trace_from_json(
        {
            "format": "dpbalance-trace/1",
            "blocks": [{"id": name, "arrived": at, "capacity": 1.0} for name, at in arrived.items()],
            "pipelines": [
                {"id": name, "analyst": f"of {name}", "arrived": at, "cost": cost, "blocks": list(arrived)}
                | asked.get(name, {})
                for name, (at, cost) in pipelines.items()
            ],
            **rest,
        }
    )


def fates(done: Run) -> dict[str, str]:
    return {each.pipeline: each.fate for each in done.pipelines}


def times(done: Run) -> dict[str, float | None]:
    return {each.pipeline: each.granted_at for each in done.pipelines}


def random_trace(seed: int, **rest: Any) -> Trace:
    random = chance(seed)
    names = [f"B{at}" for at in range(4)]
    several = seed % 2 == 0
    return trace_from_json(
        {
            "format": "dpbalance-trace/1",
            "orders": [2.0, 8.0, 32.0] if several else None,
            "blocks": [
                {"id": name, "arrived": float(at), "capacity": random.uniform(0, 2, 3).tolist() if several else 1.0}
                for at, name in enumerate(names)
            ],
            "pipelines": [
                {
                    "id": f"P{at}",
                    "analyst": f"a{at % 5}",
                    "arrived": float(random.uniform(0, 8)),
                    "blocks": random.choice(names, size=int(random.integers(1, 4)), replace=False).tolist(),
                    "cost": random.uniform(0.01, 0.4, 3).tolist() if several else float(random.uniform(0.01, 0.4)),
                    "max_multiple": [None, 1.0, 2.5][at % 3],
                }
                for at in range(40)
            ],
            **rest,
        }
    )


UNLOCKS = (None, {"rule": "time", "lifetime": 4.0, "steps": 7}, {"rule": "arrivals", "n": 6, "max_age": 5.0})


def test_who_arrives_at_the_moment_of_a_round_is_in_it() -> None:
    done = run(trace({"P1": (2.0, 0.1), "P2": (2.0000001, 0.1)}, rounds={"every": 1}, end=3.0), FCFS)
    assert times(done) == {"P1": 2.0, "P2": 3.0}


def test_what_unlocks_at_the_moment_of_a_round_comes_after_it() -> None:
    unlock = {"rule": "time", "lifetime": 10.0, "steps": 2}
    done = run(trace({"P": (0.0, 0.5), "Q": (0.0, 0.5)}, unlock=unlock, rounds={"every": 5}, end=20.0), FCFS)
    assert times(done) == {"P": 10.0, "Q": 15.0}


def test_the_arriving_pipeline_unlocks_before_its_own_round() -> None:
    unlock = {"rule": "arrivals", "n": 2, "max_age": None}
    done = run(trace({"P": (1.0, 0.5), "Q": (4.0, 0.5)}, unlock=unlock, rounds={"on": "arrival"}, end=9.0), FCFS)
    assert times(done) == {"P": 1.0, "Q": 4.0}


def test_arrivals_at_the_same_moment_share_one_round() -> None:
    done = run(trace({"P": (1.0, 0.1), "Q": (1.0, 0.1), "R": (2.0, 0.1)}, rounds={"on": "arrival"}), FCFS)
    assert [(each.time, each.asked) for each in done.rounds] == [(1.0, 2), (2.0, 1)]


def test_a_block_opens_with_the_first_n_arrivals_that_ask_for_it_while_it_is_young() -> None:
    pipelines = {f"P{at}": (float(at), 1.0) for at in range(6)}
    only = {"P0": {"blocks": ["A"]}, "P1": {"blocks": ["A", "B"]}}
    unlock = {"rule": "arrivals", "n": 4, "max_age": 3.0}
    done = run(trace(pipelines, blocks={"A": 0.0, "B": 0.5}, more=only, unlock=unlock, rounds={"on": "arrival"}), FCFS)
    assert done.unlocked[:, 0].tolist() == [10**9, 750_000_000]  # A: P0 to P3; B: P1 to P3, then it is older than 3


def test_steps_in_time_are_counted_as_an_event_loop_adds_them_up() -> None:
    for lifetime, steps, arrived in ((1.0, 10, 0.0), (30.0, 100, 7.0), (0.3, 3, 0.1), (10.0, 7, 2.3)):
        rule = ByTime(lifetime=lifetime, steps=steps)
        events = [arrived + lifetime / steps]
        while len(events) < steps:
            events.append(events[-1] + lifetime / steps)
        due, opened = rule.first(np.array([arrived])), np.zeros(1, dtype=np.int64)
        for now in sorted({*events, *(np.nextafter(event, np.inf) for event in events)}):
            due, opened = rule.passed(due, opened, now)
            assert opened.tolist() == [sum(event < now for event in events)]
    tenths = ByTime(lifetime=1.0, steps=10)
    opened = tenths.passed(tenths.first(np.zeros(1)), np.zeros(1, dtype=np.int64), 1.0)[1]
    assert opened.tolist() == [10]  # the tenth event is at 0.9999999999999999


def test_portions_are_exact_where_the_product_leaves_64_bits() -> None:
    random = chance(0)
    capacity = np.append(random.integers(0, 10**15, 50), 10**15)[:, None]
    for parts in (1, 3, 1000, 10**6):
        opened = random.integers(0, parts + 1, len(capacity))
        exact = [[int(c) * int(k) // parts] for (c,), k in zip(capacity, opened, strict=True)]
        assert portion(capacity, opened, parts).tolist() == exact


def test_a_pipeline_waits_for_a_block_that_has_not_arrived() -> None:
    done = run(trace({"P": (0.0, 0.5)}, blocks={"A": 0.0, "B": 2.5}, rounds={"every": 1}, timeout=9.0), FCFS)
    assert times(done) == {"P": 3.0}


def test_a_pipeline_waits_less_than_the_timeout() -> None:
    unlock = {"rule": "time", "lifetime": 40.0, "steps": 4}
    pipelines = {"P": (1.0, 0.6), "Q": (1.5, 0.6)}
    done = run(trace(pipelines, unlock=unlock, rounds={"every": 1}, timeout=10.0, end=11.0), FCFS)
    assert fates(done) == {"P": "timed-out", "Q": "waiting"}
    assert [each.waited for each in done.pipelines] == [10.0, 9.5]


def test_timeout_0_is_the_first_round_or_never() -> None:
    unlock = {"rule": "time", "lifetime": 4.0, "steps": 4}
    pipelines = {"P": (0.0, 0.25), "Q": (1.1, 0.25)}
    done = run(trace(pipelines, unlock=unlock, rounds={"every": 1}, timeout=0, end=6.0), FCFS)
    assert fates(done) == {"P": "timed-out", "Q": "granted"}
    assert times(done)["Q"] == 2.0


def test_a_deadline_ends_the_waiting_with_or_without_a_timeout() -> None:
    unlock = {"rule": "time", "lifetime": 4.0, "steps": 4}
    for timeout in (None, 50.0):
        done = run(
            trace(
                {"P": (0.0, 0.5), "Q": (0.0, 0.25)},
                more={"P": {"deadline": 3.0}, "Q": {"deadline": 2.5}},
                unlock=unlock,
                rounds={"every": 1},
                timeout=timeout,
                end=6.0,
            ),
            FCFS,
        )
        assert fates(done) == {"P": "timed-out", "Q": "granted"}


def test_only_with_a_timeout_does_a_pipeline_leave_that_can_never_be_served() -> None:
    pipelines = {"P": (0.0, 0.7), "Q": (1.0, 0.4), "R": (2.0, 0.3)}
    for timeout, fate in ((None, "waiting"), (50.0, "denied")):
        done = run(trace(pipelines, rounds={"every": 1}, timeout=timeout, end=3.0), FCFS)
        assert fates(done) == {"P": "granted", "Q": fate, "R": "granted"}
        assert len(done.rounds) == (4 if timeout is None else 2)  # nobody waits, no round


def test_a_block_too_old_to_open_further_denies_what_it_can_never_serve() -> None:
    unlock = {"rule": "arrivals", "n": 10, "max_age": 5.0}
    done = run(trace({"P": (1.0, 0.5)}, unlock=unlock, rounds={"every": 1}, timeout=50.0, end=9.0), FCFS)
    assert fates(done) == {"P": "denied"}
    assert done.pipelines[0].waited == 5.0


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ({"rounds": {"every": 0.1}, "end": 0.3}, [0.0, 0.1, 0.2]),  # 3 * 0.1 is just above 0.3
        ({"rounds": {"every": 2}, "end": 4}, [0.0, 2.0, 4.0]),
        ({"rounds": {"every": 2}}, [0.0, 2.0, 4.0]),
        ({"rounds": None}, [3.0]),
        ({"rounds": None, "end": 7}, [7.0]),
        ({"rounds": {"on": "arrival"}}, [1.0, 3.0]),
        ({"rounds": {"on": "arrival"}, "end": 2}, [1.0]),
    ],
)
def test_rounds_are_held_when_the_trace_says(rest: dict[str, Any], expected: list[float]) -> None:
    assert list(trace({"P": (1.0, 0.1), "Q": (3.0, 0.1)}, **rest).moments()) == expected


def test_who_arrives_after_the_end_is_no_part_of_the_run() -> None:
    done = run(trace({"P": (1.0, 0.1), "Q": (3.0, 0.1)}, rounds={"every": 2}, end=2.5), FCFS)
    assert fates(done) == {"P": "granted"}


@pytest.mark.parametrize("unlock", UNLOCKS, ids=lambda each: each["rule"] if each else "none")
@pytest.mark.parametrize("name", ["fcfs", "dpf", "dpk", "round-robin", "dpbalance"])
def test_no_block_is_ever_overspent_and_the_books_add_up(name: str, unlock: Any) -> None:
    for seed in range(4):
        recorded = random_trace(seed, unlock=unlock, rounds={"every": 1.0}, timeout=5.0, end=14.0)
        seen = Watching(scheduler(name))
        done = run(recorded, seen, check=True, analysts=True)
        market = recorded.market
        total = np.zeros_like(market.capacity)
        for at in np.flatnonzero(done.multiple):
            for entry in range(market.start[at], market.start[at + 1]):
                exact = [
                    -(-int(c) * m // d)
                    for c in market.cost[entry]
                    for m, d in [float(done.multiple[at]).as_integer_ratio()]
                ]
                total[market.block[entry]] += exact
        assert done.spent.tolist() == total.tolist()
        used = total.any(axis=1)
        assert ((total <= done.unlocked).any(axis=1) | ~used).all()
        assert (done.unlocked <= market.capacity).all()
        for round_ in seen.rounds:  # and so it was before every round
            assert ((round_.spent <= round_.unlocked).any(axis=1) | ~round_.spent.any(axis=1)).all()
        assert len(done.granted) == len(set(done.granted)) == sum(each.granted for each in done.rounds)
        assert sum(each.granted for each in done.analysts) == len(done.granted)
        assert len(done.pipelines) == 40
        for each in done.rounds:
            rows = [row for row in done.analysts if row.time == each.time]
            assert sum(row.asked for row in rows) == each.asked
            assert sum(row.timed_out for row in rows) == each.timed_out
            assert sum(row.utility for row in rows) == pytest.approx(each.metrics.efficiency)


@pytest.mark.parametrize("name", ["dpk", "dpbalance"])
def test_the_same_trace_gives_the_same_run(name: str) -> None:
    first, second = (run(random_trace(3, rounds={"every": 1.0}), scheduler(name), analysts=True) for _ in range(2))
    assert first.granted == second.granted
    assert first.pipelines == second.pipelines
    assert first.analysts == second.analysts
    assert first.metrics == second.metrics


def test_measuring_can_be_left_out() -> None:
    done = run(random_trace(1, rounds={"every": 1.0}), FCFS, metrics=False)
    assert done.metrics is None
    assert done.analysts == ()
    assert {each.metrics for each in done.rounds} == {None}


def test_the_measures_of_a_run_are_sums_and_means_over_its_rounds() -> None:
    done = run(random_trace(1, rounds={"every": 1.0}), FCFS)
    rounds = [each.metrics for each in done.rounds]
    assert done.metrics.efficiency == pytest.approx(sum(each.efficiency for each in rounds))
    assert done.metrics.pipelines == len(done.granted)
    assert done.metrics.jain == pytest.approx(np.mean([each.jain for each in rounds if each.jain is not None]))


@dataclass
class Watching:
    """A scheduler that remembers the rounds it saw."""

    inner: Any

    def __post_init__(self) -> None:
        self.rounds: list[Round] = []

    def decide(self, round_: Round, /) -> Allocation:
        self.rounds.append(round_)
        return self.inner.decide(round_)


class Generous:
    """Grants everything to everybody."""

    def decide(self, round_: Round, /) -> Allocation:
        return Allocation(round=round_, scheduler="generous", multiple=np.ones(len(round_.pipelines)))


def test_a_decision_that_overspends_is_refused_before_it_is_charged() -> None:
    with pytest.raises(BudgetExceeded, match=r"block 'B' has 1 left, the grants take 1\.2"):
        run(trace({"P": (0.0, 0.6), "Q": (0.0, 0.6)}), Generous())
    assert len(run(trace({"P": (0.0, 0.6), "Q": (0.0, 0.4)}), Generous()).granted) == 2


def test_whoever_is_listed_as_granted_without_being_charged_is_refused() -> None:
    class Sly:
        def decide(self, round_: Round, /) -> Allocation:
            nothing = np.zeros(len(round_.pipelines))
            return Allocation(round=round_, scheduler="sly", multiple=nothing, sequence=(0,))

    with pytest.raises(BudgetExceeded, match="listed as granted"):
        run(trace({"P": (0.0, 0.6)}), Sly())


def test_something_that_is_no_decision_is_refused() -> None:
    class Lost:
        def decide(self, round_: Round, /) -> Any:
            return FCFS.decide(Round.build([Block(id="B", capacity=1.0)], []))

    with pytest.raises(DPBalanceError, match="no decision on this round"):
        run(trace({"P": (0.0, 0.6)}), Lost())


def test_an_order_that_is_overdrawn_for_good_never_wraps_around() -> None:
    count = 3000
    everybody = {
        "format": "dpbalance-trace/1",
        "orders": [2.0, 64.0],
        "rounds": {"every": 1},
        "blocks": [{"id": "B", "arrived": 0, "capacity": [1.0, 1.0]}],
        "pipelines": [
            {"id": f"P{at}", "analyst": "a", "arrived": at % 3, "blocks": ["B"], "cost": [1e-5, 1e6]}
            for at in range(count)
        ],
    }
    done = run(trace_from_json(everybody), FCFS)
    assert len(done.granted) == count
    assert done.spent[0, 0] == count * 10_000
    assert done.spent[0, 1] > 10**18


def test_a_slice_of_a_round_is_the_round_of_the_chosen() -> None:
    blocks = [Block(id=f"B{at}", capacity=1.0) for at in range(3)]
    pipelines = [
        Pipeline(id=f"P{at}", analyst=f"a{at % 3}", demand={f"B{at % 3}": 0.1 + at / 100, "B1": 0.2}, loss=1.0 + at)
        for at in range(7)
    ]
    whole = Round.build(blocks, pipelines, now=3.0)
    for chosen in ([], [0], [1, 4], [0, 2, 3, 6]):
        part = whole.subset(np.array(chosen, dtype=np.int64), now=3.0, spent=whole.spent, unlocked=whole.unlocked)
        direct = Round.build(blocks, [pipelines[at] for at in chosen], now=3.0)
        for name in Round.__dataclass_fields__:
            assert np.array_equal(getattr(part, name), getattr(direct, name)), name


def test_dpf_does_not_tie_what_only_rounding_made_equal() -> None:
    pipelines = {"P1": 1.9999e-9, "P2": 1.2e-9, "P3": 2e-9}
    round_ = Round.build(
        [Block(id="B", capacity=1.0)], [Pipeline(id=n, analyst="a", demand={"B": d}) for n, d in pipelines.items()]
    )
    assert round_.cost[:, 0].tolist() == [2, 2, 2]
    granted = scheduler("dpf").decide(round_).served
    assert [round_.pipelines[at] for at in granted] == ["P2", "P1", "P3"]


def test_the_fake_clock_comes_to_exactly_the_moment_it_is_told() -> None:
    clock = FakeClock(0.1)
    clock.until(0.3)
    assert clock.now() == 0.3
    clock.until(0.2)
    assert clock.now() == 0.3


def test_rules_refuse_what_cannot_be() -> None:
    for wrong in (
        lambda: ByArrivals(n=0),
        lambda: ByTime(lifetime=-1.0, steps=3),
        lambda: ByTime(lifetime=1.0, steps=10**7),
    ):
        with pytest.raises(InputError, match="unlock: "):
            wrong()
