"""Does any history of writes end differently from a few lines of plain Python? Random, interleaved, and with faults."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from ledgers import Place, asking, spend, spent

from dpbalance.clock import FakeClock
from dpbalance.errors import (
    BlockClosed,
    BudgetExceeded,
    DPBalanceError,
    LedgerUnavailable,
    NotInLedger,
    WrongStage,
)
from dpbalance.ledger import Ledger, create_ledger
from dpbalance.ledger.store import Store, Writer
from dpbalance.market import Block

HISTORIES = int(os.environ.get("DPB_HISTORIES", "500"))
SEEDS = int(os.environ.get("DPB_SEEDS", "200"))

BLOCKS = ("d/w0", "d/w1", "d/w2")
ORDERS = (2.0, 8.0)

amount = st.tuples(st.integers(1, 12), st.integers(1, 12))
claim = st.dictionaries(st.sampled_from(BLOCKS), amount, min_size=1)


class Model:
    """The rules in plain Python, with whole tenths."""

    def __init__(self) -> None:
        self.capacity = dict.fromkeys(BLOCKS, (10, 20))
        self.spent = {name: [0, 0] for name in BLOCKS}
        self.state = dict.fromkeys(BLOCKS, "open")
        self.grants: list[tuple[dict[str, tuple[int, int]], str]] = []

    def charge(self, cost: dict[str, tuple[int, int]]) -> type[DPBalanceError] | None:
        if any(self.state[name] != "open" for name in cost):
            return self._numbered(cost, "denied", BlockClosed)
        for name, asked in cost.items():
            if not any(self.spent[name][at] + asked[at] <= self.capacity[name][at] for at in range(2)):
                return self._numbered(cost, "denied", BudgetExceeded)
        for name, asked in cost.items():
            self.spent[name] = [self.spent[name][at] + asked[at] for at in range(2)]
        return self._numbered(cost, "charged", None)

    def _numbered(self, cost: Any, stage: str, refusal: Any) -> Any:
        self.grants.append((cost, stage))
        return refusal

    def move(self, grant: int, to: str) -> type[DPBalanceError] | None:
        if not 1 <= grant <= len(self.grants):
            return NotInLedger
        cost, stage = self.grants[grant - 1]
        if (stage, to) not in {
            ("charged", "dispatched"), ("charged", "failed"), ("charged", "voided"),
            ("dispatched", "completed"), ("dispatched", "failed"),
        }:  # fmt: skip
            return WrongStage
        self.grants[grant - 1] = (cost, to)
        if to == "voided":
            for name, given in cost.items():
                self.spent[name] = [self.spent[name][at] - given[at] for at in range(2)]
        return None

    def lower(self, name: str, capacity: tuple[int, int]) -> type[DPBalanceError] | None:
        if self.state[name] == "retired":
            return BlockClosed
        if not any(self.spent[name][at] <= capacity[at] for at in range(2)):
            return BudgetExceeded
        self.capacity[name] = capacity
        return None

    def put(self, name: str, state: str) -> type[DPBalanceError] | None:
        if self.state[name] == "retired":
            return BlockClosed
        self.state[name] = state
        return None


def refusal_of(write: Callable[[], Any]) -> type[DPBalanceError] | None:
    try:
        write()
    except DPBalanceError as problem:
        return type(problem)
    return None


def tenths(cost: dict[str, tuple[int, int]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(each / 10 for each in asked) for name, asked in cost.items()}


class Histories(RuleBasedStateMachine):
    """The ledger beside the model: every answer and every balance is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.ledger = create_ledger("memory:", orders=ORDERS)
        self.ledger.register_devices({"d": "ann"})
        self.ledger.register_blocks([Block(id=name, capacity=(1.0, 2.0)) for name in BLOCKS])

    def teardown(self) -> None:
        assert self.ledger.verify().demand().clean
        self.ledger.close()

    @rule(cost=claim)
    def charge(self, cost: dict[str, tuple[int, int]]) -> None:
        assert refusal_of(lambda: spend(self.ledger, tenths(cost))) == self.model.charge(cost)

    @rule(grant=st.integers(1, 8), to=st.sampled_from(["dispatched", "completed", "failed", "voided"]))
    def move(self, grant: int, to: str) -> None:
        verb = {"dispatched": "dispatch", "completed": "complete", "failed": "fail", "voided": "void"}[to]
        assert refusal_of(lambda: getattr(self.ledger, verb)([grant])) == self.model.move(grant, to)

    @rule(name=st.sampled_from(BLOCKS), capacity=amount)
    def budget(self, name: str, capacity: tuple[int, int]) -> None:
        given = tuple(each / 10 for each in capacity)
        asked = refusal_of(lambda: self.ledger.set_budget(name, given, actor="contributor:ann"))
        assert asked == self.model.lower(name, capacity)

    @rule(name=st.sampled_from(BLOCKS), verb=st.sampled_from(["freeze", "thaw", "thaw", "retire"]))
    def put(self, name: str, verb: str) -> None:
        state = {"freeze": "frozen", "thaw": "open", "retire": "retired"}[verb]
        asked = refusal_of(lambda: getattr(self.ledger, verb)([name], actor="contributor:ann"))
        assert asked == self.model.put(name, state)

    @invariant()
    def the_same_is_spent(self) -> None:
        found = {each.block: each.spent.tolist() for each in self.ledger.balances()}
        assert found == {name: [each * 10**8 for each in both] for name, both in self.model.spent.items()}


def test_every_history_ends_as_in_plain_python() -> None:
    kept = settings(
        max_examples=HISTORIES,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Histories, settings=kept)


Step = Callable[[Ledger, dict[str, Any]], None]


def looks(ledger: Ledger, mine: dict[str, Any]) -> None:
    mine["seen"] = ledger.snapshot(now=0.0)


def charges(ledger: Ledger, mine: dict[str, Any]) -> None:
    round_ = mine["seen"].round
    first, second = mine["blocks"]
    left = round_.available[round_.blocks.index(first), 0] / 1e9
    if left > 0:
        spend(ledger, {first: left, second: 0.1})


def charges_with_token(ledger: Ledger, mine: dict[str, Any]) -> None:
    spend(ledger, {mine["blocks"][0]: 0.6}, token=mine["token"])


def leads(ledger: Ledger, mine: dict[str, Any]) -> None:
    mine["token"] = ledger.acquire(f"leader {mine['number']}", 0.0)


def freezes(ledger: Ledger, mine: dict[str, Any]) -> None:
    ledger.freeze([mine["blocks"][0]])


def lowers(ledger: Ledger, mine: dict[str, Any]) -> None:
    ledger.set_budget(mine["blocks"][0], 0.5)


def voids(ledger: Ledger, mine: dict[str, Any]) -> None:
    ledger.void(ledger.outbox()[:1])


def dispatches(ledger: Ledger, mine: dict[str, Any]) -> None:
    ledger.dispatch(ledger.outbox()[:1])


SESSIONS: dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]] = {
    "two who saw the same": ((looks, charges), (looks, charges)),
    "two who lead": ((leads, charges_with_token), (leads, charges_with_token)),
    "a freeze and a lower budget": ((looks, charges), (freezes, lowers)),
    "a void and a dispatch": ((looks, charges), (voids, dispatches)),
    "a budget and a dispatch": ((looks, charges), (lowers, dispatches)),
}
Refused = list[tuple[int, str, str]]


SPENT, EMPTY = "BudgetExceeded", "InputError"  # no budget left; nothing in the outbox to name
REFUSED: dict[str, dict[tuple[int, ...], Refused]] = {
    "two who saw the same": {
        (0, 1, 0, 1): [(1, "charges", SPENT)],
        (0, 1, 1, 0): [(0, "charges", SPENT)],
        (1, 0, 0, 1): [(1, "charges", SPENT)],
        (1, 0, 1, 0): [(0, "charges", SPENT)],
    },
    "two who lead": {
        (0, 0, 1, 1): [(1, "charges_with_token", SPENT)],
        (0, 1, 0, 1): [(0, "charges_with_token", "Fenced")],
        (0, 1, 1, 0): [(0, "charges_with_token", "Fenced")],
        (1, 0, 0, 1): [(1, "charges_with_token", "Fenced")],
        (1, 0, 1, 0): [(1, "charges_with_token", "Fenced")],
        (1, 1, 0, 0): [(0, "charges_with_token", SPENT)],
    },
    "a freeze and a lower budget": {
        (0, 0, 1, 1): [(1, "lowers", SPENT)],
        (0, 1, 0, 1): [(0, "charges", "BlockClosed")],
        (0, 1, 1, 0): [(0, "charges", "BlockClosed")],
    },
    "a void and a dispatch": {
        (0, 0, 1, 1): [(1, "dispatches", EMPTY)],
        (0, 1, 0, 1): [(1, "voids", EMPTY)],
        (0, 1, 1, 0): [(1, "voids", EMPTY), (1, "dispatches", EMPTY)],
        (1, 0, 0, 1): [(1, "voids", EMPTY)],
        (1, 0, 1, 0): [(1, "voids", EMPTY), (1, "dispatches", EMPTY)],
        (1, 1, 0, 0): [(1, "voids", EMPTY), (1, "dispatches", EMPTY)],
    },
    "a budget and a dispatch": {
        (0, 0, 1, 1): [(1, "lowers", SPENT)],
        (0, 1, 0, 1): [(0, "charges", SPENT), (1, "dispatches", EMPTY)],
        (0, 1, 1, 0): [(1, "dispatches", EMPTY), (0, "charges", SPENT)],
        (1, 0, 1, 0): [(1, "dispatches", EMPTY)],
        (1, 1, 0, 0): [(1, "dispatches", EMPTY)],
    },
}
"""Who is refused what, in the orders in which anybody is."""
ORDERS_OF_STEPS = sorted(set(itertools.permutations((0, 0, 1, 1))))


@pytest.mark.parametrize("kind", SESSIONS)
def test_whatever_the_order_of_their_steps_two_sessions_keep_the_promises(lasting_place: Place, kind: str) -> None:
    """Thirty orders in all, in each store: two objects over one database."""
    ledger = lasting_place.create()
    other = lasting_place.open()
    for at, order in enumerate(ORDERS_OF_STEPS):
        blocks = (f"d{at}/a", f"d{at}/b")
        ledger.register_devices({f"d{at}": ""})
        ledger.register_blocks([Block(id=name, capacity=1.0) for name in blocks])
        mine: list[dict[str, Any]] = [{"number": f"{at}-{number}", "blocks": blocks} for number in (0, 1)]
        steps = [iter(session) for session in SESSIONS[kind]]
        refused = []
        for who in order:
            step = next(steps[who])
            try:
                step((ledger, other)[who], mine[who])
            except DPBalanceError as problem:
                refused.append((who, step.__name__, type(problem).__name__))
        assert refused == REFUSED[kind].get(order, []), order
        balance = ledger.balances(blocks[:1])[0]
        assert 0 <= balance.spent[0] <= balance.unlocked[0]
        if holder := ledger.head().holder:
            ledger.release(holder)
        if waiting := ledger.outbox():
            ledger.void(waiting)  # the next order begins with nothing in it
    assert ledger.verify().demand().clean


class Faulty(Store):
    """A store that is real, behind a line that is not reliable: asks are lost, and answers after the commit."""

    def __init__(self, store: Store, random: np.random.Generator) -> None:
        self._store, self._random = store, random
        self.orders, self.width, self.url, self.meta = store.orders, store.width, store.url, store.meta
        self.lost_answers = 0

    def reading(self) -> Any:
        return self._store.reading()

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        fate = self._random.random()
        if fate < 0.15:
            raise LedgerUnavailable("the question was lost")
        with self._store.writing() as writer:
            yield writer
            if fate < 0.3:
                raise LedgerUnavailable("the connection broke before the commit")
        if fate < 0.5:
            self.lost_answers += 1
            raise LedgerUnavailable("the answer was lost")

    def retrying(self, work: Callable[[], Any]) -> Any:
        return work()

    def close(self) -> None:
        self._store.close()


class Jumping(FakeClock):
    """A clock that goes forwards and backwards."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(1000.0)
        self._random = random

    def now(self) -> float:
        return super().now() + float(self._random.uniform(-500, 500))


def simulated(seed: int) -> int:
    """Three schedulers who ask again until they are answered, over a line that loses questions and answers."""
    random = np.random.default_rng(seed)
    ledger = create_ledger("memory:", clock=Jumping(random))
    faulty = Faulty(ledger.store, random)
    ledger.register_devices({"d": ""})
    ledger.register_blocks([Block(id=name, capacity=1.0) for name in BLOCKS])
    left = dict.fromkeys(BLOCKS, 100)
    ledger.store = faulty
    expected: dict[str, bool] = {}
    pending = [(f"k{at}", {name: int(random.integers(1, 15)) for name in BLOCKS[: at % 3 + 1]}) for at in range(25)]
    while pending:
        key, cost = pending[int(random.integers(len(pending)))]
        try:
            ledger.charge(asking({name: each / 100 for name, each in cost.items()}), key=key)
            answer = True
        except BudgetExceeded:
            answer = False
        except LedgerUnavailable:
            continue
        assert expected.setdefault(key, answer) == answer
        if random.random() < 0.8:
            pending.remove((key, cost))
    ledger.store = faulty._store
    with ledger.store.reading() as reader:
        rows = list(reader.rows("journal", ["key", "kind"], order=("seq",)))[3:]
    assert sorted(key for key, _ in rows) == sorted(expected)
    asked = {f"k{at}": None for at in range(25)}
    assert set(asked) == set(expected)
    for line in ledger.statement():
        if line.block is not None:
            left[line.block] -= round(line.cost * 100)
    assert min(left.values()) >= 0
    assert {name: spent(ledger, name)[0] for name in BLOCKS} == {
        name: (100 - each) * 10**7 for name, each in left.items()
    }
    assert ledger.verify().demand().clean
    ledger.close()
    return faulty.lost_answers


def test_lost_questions_and_lost_answers_charge_nothing_twice() -> None:
    assert sum(map(simulated, range(SEEDS))) > SEEDS
