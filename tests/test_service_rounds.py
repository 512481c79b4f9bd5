"""Does a round grant what is there, survive a stop between any two lines, and tell why it denied?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from house import House, house

from dpbalance.service.rounds import Pending, Rounds, decided, taken
from dpbalance.service.settings import Deciding
from dpbalance.service.solving import explained, preview
from dpbalance.service.tables import pipeline, round_


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


def state_of(home: House, name: str) -> str:
    return str(home.made("GET", f"/v1/pipelines/{name}")["state"])


def spent(home: House) -> float:
    return float(sum(each.spent.sum() for each in home.ledger.balances()) / 1e9)


def test_a_round_grants_what_fits_charges_it_and_tells_why_the_rest_waits(home: House) -> None:
    home.market()
    served, waits = home.submit(0.5, max_multiple=1.0), home.submit(0.9, max_multiple=1.0, weight=0.01)
    told = home.round()
    assert told is not None
    assert (told["granted"], told["denied"]) == (1, {"share-spent": 1})
    assert state_of(home, served) == "granted"
    assert spent(home) == pytest.approx(4 * 0.5)
    waiting = home.made("GET", f"/v1/pipelines/{waits}")
    assert waiting["state"] == "pending"
    assert waiting["denial"]["round"] == told["round"]
    assert home.ledger.verify().clean


def test_nothing_pending_leaves_no_row(home: House) -> None:
    home.market()
    before = home.ledger.head().seq
    leader = home.leader()
    assert home.round(leader) is None
    assert home.made("GET", "/v1/rounds")["items"] == []
    assert home.ledger.head().seq == before + 1  # the lease alone


def test_what_is_denied_for_the_same_reason_again_is_not_written_again(home: House) -> None:
    home.market()
    home.submit(2.0)
    leader = home.leader()
    home.round(leader)
    before = home.ledger.head().seq
    told = home.round(leader)
    assert told is not None
    assert told["denied"] == {"exceeds-left": 1}
    assert home.ledger.head().seq == before
    assert home.made("GET", f"/v1/rounds/{told['round']}")["denials"] == []


def test_a_preview_is_what_the_round_then_does(home: House) -> None:
    home.market()
    for at in range(12):
        home.submit(0.05 + 0.03 * at, token=home.token("analyst", f"a{at % 3}"))
    home.set(scheduler="dpf", beta=1.0)
    snapshot = taken(home.database, home.ledger, Pending(), home.clock.now())
    assert snapshot is not None
    shown = preview(snapshot, Deciding(scheduler="dpf", beta=1.0), Deciding())
    before = home.ledger.head().seq
    told = home.round()
    assert told is not None
    assert before + 2 == home.ledger.head().seq  # the lease and the charge: the preview wrote nothing
    granted = home.made("GET", f"/v1/rounds/{told['round']}")["grants"]
    assert sorted(each["pipeline"] for each in granted) == sorted(each["pipeline"] for each in shown["grants"])
    assert {each["analyst"] for each in shown["analysts"]} == {"a0", "a1", "a2"}


class Stopped(BaseException):
    """The process ends here."""


STOPS = ["_document", "_intend", "_charge", "_settle", "after _intend", "after _charge", "after _settle"]


@pytest.mark.parametrize("where", STOPS)
def test_a_stop_anywhere_is_finished_or_undone_by_whoever_leads_next(
    home: House, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.market()
    names = [home.submit(0.3, max_multiple=1.0) for _ in range(5)]
    step = where.removeprefix("after ")
    own = getattr(Rounds, step)

    def stopping(self: Rounds, *given: Any) -> Any:
        if where.startswith("after"):
            own(self, *given)
        raise Stopped

    monkeypatch.setattr(Rounds, step, stopping)
    with pytest.raises(Stopped):
        home.round()
    monkeypatch.setattr(Rounds, step, own)
    home.clock.sleep(1e6 + 1)
    leader = home.leader("another")
    home.round(leader)
    states = [state_of(home, each) for each in names]
    assert states.count("granted") == 3
    assert states.count("pending") == 2
    assert spent(home) == pytest.approx(4 * 0.9)
    assert home.ledger.verify().clean
    with home.database.reading() as connection:
        left = connection.execute(sa.select(round_.c.state)).scalars().all()
        deciding = connection.execute(sa.select(pipeline.c.number).where(pipeline.c.state == "deciding")).all()
    assert "charging" not in left
    assert deciding == []


def test_a_leader_that_was_succeeded_cannot_charge(home: House) -> None:
    home.market()
    home.submit(0.3)
    old = home.leader("old")
    home.clock.sleep(2e6)
    new = home.leader("new")
    with pytest.raises(Exception, match="has been succeeded"):
        home.round(old)
    new.heal()
    assert spent(home) == 0
    told = home.round(new)
    assert told is not None
    assert told["granted"] == 1


def test_what_a_leader_writes_down_after_it_was_succeeded_is_undone_by_the_one_that_leads(home: House) -> None:
    home.market()
    name = home.submit(0.3)
    old = home.leader("old")
    home.clock.sleep(2e6)
    new = home.leader("new")
    with pytest.raises(Exception, match="has been succeeded"):
        home.round(old)  # it was paused meanwhile, and wakes up
    told = home.round(new)
    assert told is not None
    assert told["granted"] == 1
    assert state_of(home, name) == "granted"


def test_a_block_that_is_frozen_between_decision_and_charge_makes_the_round_decide_again(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.market()
    name = home.submit(0.3, max_multiple=1.0)
    own, once = Rounds._charge, []

    def freezing(self: Rounds, *given: Any) -> Any:
        if not once:
            once.append(home.ledger.freeze(["phone-0/tue"]))
        return own(self, *given)

    monkeypatch.setattr(Rounds, "_charge", freezing)
    told = home.round()
    assert told is not None
    assert (told["again"], told["granted"], told["denied"]) == (1, 0, {"exceeds-left": 1})
    assert state_of(home, name) == "pending"
    assert spent(home) == 0
    assert [each["state"] for each in home.made("GET", "/v1/rounds")["items"]] == ["decided", "refused"]


def test_a_pipeline_that_is_cancelled_during_a_decision_is_not_charged(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.market()
    name, other = home.submit(0.3), home.submit(0.2)
    own, once = Rounds._intend, []

    def cancelling(self: Rounds, *given: Any) -> Any:
        if not once:
            once.append(home.made("DELETE", f"/v1/pipelines/{name}"))
        return own(self, *given)

    monkeypatch.setattr(Rounds, "_intend", cancelling)
    home.round()
    assert (state_of(home, name), state_of(home, other)) == ("cancelled", "granted")


def test_whoever_submits_and_cancels_without_end_keeps_nobody_else_waiting(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.market()
    victim = home.submit(0.1, token=home.token("analyst", "ben"), max_multiple=1.0)
    fleeting = [home.submit(0.01, max_multiple=1.0)]
    own = Rounds._intend

    def cancelling(self: Rounds, *given: Any) -> Any:
        home.made("DELETE", f"/v1/pipelines/{fleeting[-1]}")
        fleeting.append(home.submit(0.01, max_multiple=1.0))
        return own(self, *given)

    monkeypatch.setattr(Rounds, "_intend", cancelling)
    leader = home.leader()
    told = home.round(leader)
    assert told is not None
    assert (told["again"], told["granted"]) == (0, 1)
    assert state_of(home, victim) == "granted"
    assert spent(home) == pytest.approx(4 * 0.1)
    told = home.round(leader)  # now nothing but what vanishes: that too ends in a round
    assert told is not None
    assert told["granted"] == 0
    assert home.ledger.verify().clean


def test_whoever_freezes_and_thaws_without_end_holds_up_only_what_is_on_those_blocks(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.market()
    victim = home.submit(None, blocks={"phone-1/tue": 0.1}, devices=None, windows=None, max_multiple=1.0)
    home.submit(None, blocks={"phone-0/tue": 0.1}, devices=None, windows=None, max_multiple=1.0)
    own = home.ledger.charge

    def toggling(*given: Any, **more: Any) -> Any:
        home.ledger.freeze(["phone-0/tue"], actor="contributor:maria")
        try:
            return own(*given, **more)
        finally:
            home.ledger.thaw(["phone-0/tue"], actor="contributor:maria")

    monkeypatch.setattr(home.ledger, "charge", toggling)
    leader = home.leader()
    told = home.round(leader)
    assert told is not None
    assert (told["again"], told["granted"]) == (0, 1)
    assert state_of(home, victim) == "granted"
    told = home.round(leader)  # only what is on the toggled block
    assert told is not None
    assert told["granted"] == 0
    assert spent(home) == pytest.approx(0.1)
    assert home.ledger.verify().clean


def test_a_deadline_that_passes_while_it_is_decided_holds(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    home.market()
    name, other = home.submit(0.1, deadline=home.clock.now() + 10), home.submit(0.1)
    own = Rounds._intend

    def late(self: Rounds, *given: Any) -> Any:
        home.clock.sleep(11)
        return own(self, *given)

    monkeypatch.setattr(Rounds, "_intend", late)
    home.round()
    assert (state_of(home, name), state_of(home, other)) == ("pending", "granted")


def test_a_scheduler_that_fails_leaves_the_round_to_the_fallback(home: House) -> None:
    home.market()
    home.submit(0.3)
    home.set(scheduler="dpbalance", options={"constraint": "as-printed-may-overspend"})
    home.submit(0.9, token=home.token("analyst", "ben"))
    told = home.round()
    assert told is not None
    assert told["granted"] == 1
    assert home.ledger.verify().clean


def test_deadlines_and_the_timeout_end_the_waiting(home: House) -> None:
    home.market()
    home.set(timeout=50.0)
    soon = home.submit(2.0, deadline=home.clock.now() + 10)
    later = home.submit(2.0)
    home.clock.sleep(11)
    home.round()
    assert (state_of(home, soon), state_of(home, later)) == ("expired", "pending")
    home.clock.sleep(50)
    home.round()
    assert state_of(home, later) == "expired"


def test_blocks_open_with_arrivals(home: House) -> None:
    home.set(unlocking={"rule": "arrivals", "n": 4, "max_age": None})
    home.market(devices=1)
    names = [home.submit(0.5, max_multiple=1.0) for _ in range(1)]
    home.round()
    assert state_of(home, names[0]) == "pending"
    home.submit(0.25, max_multiple=1.0)
    leader = home.leader()
    told = home.round(leader)
    assert told is not None
    assert told["granted"] >= 1
    balance = home.ledger.balances(["phone-0/tue"])[0]
    assert balance.unlocked.tolist() == [500_000_000]
    before = home.ledger.head().seq
    home.round(leader)
    assert home.ledger.balances(["phone-0/tue"])[0].unlocked.tolist() == [500_000_000]
    assert home.ledger.head().seq - before <= 1


def test_blocks_open_with_time_and_retire_with_age(home: House) -> None:
    home.set(unlocking={"rule": "time", "lifetime": 100.0, "steps": 4}, retire_after=1_000.0)
    home.market(devices=1, windows=("mon",))
    name = home.submit(0.5, max_multiple=1.0)
    home.round()
    assert state_of(home, name) == "pending"
    home.clock.sleep(51)
    home.round()
    assert state_of(home, name) == "granted"
    assert home.ledger.balances(["phone-0/mon"])[0].unlocked.tolist() == [500_000_000]
    home.clock.sleep(1_000)
    home.round()
    assert home.made("GET", "/v1/devices/phone-0/blocks/mon")["state"] == "retired"


def test_priorities_count_from_the_next_round_on(home: House) -> None:
    home.market(devices=1, windows=("mon",))
    home.submit(0.3, token=home.token("analyst", "ben"))
    home.submit(0.3)
    home.made("PATCH", "/v1/analysts/ben", json={"priority": 3.0})
    home.round()
    share = {each["analyst"]: each["multiple"] for each in home.made("GET", "/v1/grants")["items"]}
    assert share.get("ben", 0) > share.get("ana", 0)


def test_grants_that_move_on_in_the_ledger_show_it(home: House) -> None:
    home.market()
    name = home.submit(0.3)
    leader = home.leader()
    home.round(leader)
    grant = home.made("GET", f"/v1/pipelines/{name}")["grant"]
    home.ledger.dispatch([grant])
    home.round(leader)
    assert state_of(home, name) == "running"
    home.ledger.complete([grant])
    home.round(leader)
    assert state_of(home, name) == "completed"


def test_an_explanation_says_what_would_help_and_nobody_elses_name(home: House) -> None:
    home.market()
    ben = home.token("analyst", "secretive-ben")
    theirs = home.submit(0.5, token=ben)
    mine = home.submit(0.9)
    snapshot = taken(home.database, home.ledger, Pending(), home.clock.now())
    assert snapshot is not None
    told = explained(snapshot, Deciding(), mine, "ana")
    assert not told["served"]
    assert told["helps"]
    assert "secretive-ben" not in str(told)
    assert theirs not in str(told)
    assert "secretive-ben" in str(explained(snapshot, Deciding(), mine, None))


def test_the_loop_runs_when_time_arrivals_or_an_operator_say_so(home: House) -> None:
    home.market()
    home.set(every=100.0, arrivals=3)
    loop = home.loop()
    assert loop.step()  # the first is due at once
    assert not loop.step()
    home.clock.sleep(101)
    assert loop.step()
    for _ in range(3):
        home.submit(0.01)
    assert loop.step()
    assert not loop.step()
    with home.database.writing() as connection:
        connection.execute(sa.text("UPDATE service_state SET asked = asked + 1"))
    assert loop.step()
    assert [each["event"] for each in home.events if each["event"] != "begin"] == [
        "lead", "idle", "idle", "round", "idle",
    ]  # fmt: skip


def test_a_second_loop_follows_until_the_lease_ends(home: House) -> None:
    home.market()
    home.submit(0.1)
    first, second = home.loop("first"), home.loop("second")
    assert first.step()
    assert not second.step()
    home.clock.sleep(6)
    assert second.step()
    first.renewed = -1e9
    assert not first.step()
    assert first.rounds is None


def test_blocks_that_only_the_ledger_knows_are_taken_in(home: House) -> None:
    from dpbalance.market import Block

    home.ledger.register_devices({"tablet": ""})
    home.ledger.register_blocks([Block(id="tablet/mon", capacity=1.0), Block(id="tablet", capacity=2.0)])
    home.leader()
    listed = home.made("GET", "/v1/blocks")["items"]
    assert sorted(each["id"] for each in listed) == ["tablet", "tablet/mon"]
    home.submit(0.1)
    told = home.round()
    assert told is not None
    assert told["granted"] == 1


def test_decisions_are_checked_before_they_are_charged(home: House) -> None:
    home.market()
    home.submit(0.4)
    snapshot = taken(home.database, home.ledger, Pending(), home.clock.now())
    assert snapshot is not None
    assert decided(snapshot, Deciding(scheduler="fcfs")).proof.violation == 0
