"""Does a device do what its owner can rely on: check, record, train, and never send fresh noise twice?"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fleets import SOFTMAX, Fleet, records

from dpbalance.clock import FakeClock, SeededSecrets
from dpbalance.errors import InputError, LedgerDamaged, NotInLedger, PlanRefused
from dpbalance.execution import (
    Agent,
    DevicePlan,
    Granted,
    ModelSpec,
    TrainingSpec,
    device_plans,
    plan_signer,
    write_block,
)
from dpbalance.execution.agent import STATE
from dpbalance.execution.form import canonical
from dpbalance.execution.link import FAILED, Message, _answer, receive, send
from dpbalance.execution.models import made, usable
from dpbalance.execution.replies import Reply
from dpbalance.execution.signature import Envelope
from dpbalance.execution.training import Records, noised_gradient

TRAINING = TrainingSpec(rounds=3, local_steps=2, sampling_rate=0.5)
START = np.zeros(made(SOFTMAX).size)


def planned(
    fleet: Fleet, *, grant: int = 1, units: int = 10**9, now: float = 100.0, device: str = "d0", **more: object
) -> DevicePlan:
    training = more.pop("training", TRAINING)
    granted = Granted(grant=grant, pipeline="p", analyst="a", orders=None, charged={f"{device}/w0": (units,)})
    plans = device_plans(
        granted,
        SOFTMAX,
        training,  # type: ignore[arg-type]
        sizes=fleet.sizes,
        device_of={f"{device}/w0": device},
        now=now,
        expires_after=1000.0,
    )
    return plans[0]


def signed(fleet: Fleet, plan: DevicePlan, **changed: object) -> Envelope:
    told = {**json.loads(canonical(plan)), **changed}
    return fleet.signer.sign(canonical(told))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(place=tmp_path, cap=3.0)


def agent(fleet: Fleet, now: float = 200.0) -> Agent:
    return Agent(fleet.folders["d0"], clock=FakeClock(now))


def spent(fleet: Fleet) -> int:
    return sum(each.blocks["d0/w0"][0] for each in Agent(fleet.folders["d0"]).record.entries())


def test_a_plan_is_recorded_before_anything_is_trained(fleet: Fleet) -> None:
    device = agent(fleet)
    with pytest.raises(PlanRefused, match="not accepted"):
        device.answer("run-000001", 0, START)
    device.accept(signed(fleet, planned(fleet)))
    assert spent(fleet) == 10**9
    assert device.left()["d0/w0"] == [2 * 10**9]
    reply = Reply.decoded(device.answer("run-000001", 0, START))
    assert reply.values.shape == START.shape
    assert reply.receipt.device == "d0"


def test_asked_again_the_device_sends_the_same_bytes(fleet: Fleet) -> None:
    envelope = signed(fleet, planned(fleet))
    first = agent(fleet)
    first.accept(envelope)
    sent = first.answer("run-000001", 0, START)
    assert first.answer("run-000001", 0, START + 1) == sent
    restarted = agent(fleet)
    restarted.accept(envelope)
    assert restarted.answer("run-000001", 0, START) == sent
    assert restarted.answer("run-000001", 1, START) != sent
    assert spent(fleet) == 10**9


def test_a_device_whose_answers_have_gone_answers_no_more(fleet: Fleet) -> None:
    envelope = signed(fleet, planned(fleet))
    device = agent(fleet)
    device.accept(envelope)
    device.answer("run-000001", 0, START)
    (fleet.folders["d0"] / STATE / "run-000001.replies").unlink()
    for again in (device, agent(fleet)):
        with pytest.raises(PlanRefused, match="has gone"):
            again.accept(envelope)
    with pytest.raises(PlanRefused, match="has gone"):
        device.answer("run-000001", 0, START)
    assert spent(fleet) == 10**9


def test_an_answer_cut_short_by_a_crash_was_never_sent_and_is_made_anew(fleet: Fleet) -> None:
    envelope = signed(fleet, planned(fleet))
    device = agent(fleet)
    device.accept(envelope)
    kept = device.answer("run-000001", 0, START)
    path = fleet.folders["d0"] / STATE / "run-000001.replies"
    with path.open("ab") as file:
        file.write(b"1 400\nhalf an answer")
    again = agent(fleet)
    again.accept(envelope)
    assert again.answer("run-000001", 0, START) == kept
    fresh = again.answer("run-000001", 1, START)
    assert b"half an answer" not in path.read_bytes()
    assert again.answer("run-000001", 1, START) == fresh


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"device": "d1"}, "for device"),
        ({"expires": 150.0}, "expired"),
        ({"issued": 900.0}, "future"),
        ({"expires": 1e9}, "too long"),
        ({"orders": [16.0]}, "the plan spends|orders"),
        ({"adjacency": "replace-one"}, "neighbours"),
        ({"privacy_unit": "person"}, "protects"),
        ({"noise": 0.1}, "the plan spends"),
        ({"noise": -1.0}, "cannot be"),
        ({"run": "../../etc"}, "name of a run"),
        ({"blocks": []}, "no block"),
        ({"extra": 1}, "fields"),
    ],
)
def test_a_plan_that_is_wrong_in_one_thing_is_refused_and_costs_nothing(
    fleet: Fleet, changed: dict[str, object], why: str
) -> None:
    with pytest.raises(PlanRefused, match=why):
        agent(fleet).accept(signed(fleet, planned(fleet), **changed))
    assert spent(fleet) == 0


def test_a_plan_that_was_tampered_with_or_signed_by_another_is_refused(fleet: Fleet) -> None:
    plan = planned(fleet)
    good = signed(fleet, plan)
    bad = Envelope(document=good.document.replace('"rounds":3', '"rounds":2'), signature=good.signature)
    for envelope in (bad, plan_signer(None).sign(canonical(plan))):
        with pytest.raises(PlanRefused, match="not signed"):
            agent(fleet).accept(envelope)
    assert spent(fleet) == 0


def test_another_plan_for_the_same_run_is_refused(fleet: Fleet) -> None:
    device = agent(fleet)
    device.accept(signed(fleet, planned(fleet)))
    with pytest.raises(PlanRefused, match="planned otherwise"):
        device.accept(signed(fleet, planned(fleet)))
    assert spent(fleet) == 10**9


def test_the_device_keeps_to_its_own_cap_whatever_the_platform_signs(fleet: Fleet) -> None:
    device = agent(fleet)
    for grant in (1, 2, 3):
        device.accept(signed(fleet, planned(fleet, grant=grant)))
    with pytest.raises(PlanRefused, match="cap"):
        device.accept(signed(fleet, planned(fleet, grant=4, units=1000)))
    assert spent(fleet) == 3 * 10**9


def test_a_block_that_is_elsewhere_is_refused(fleet: Fleet) -> None:
    (fleet.folders["d0"] / "w0.npz").unlink()
    with pytest.raises(PlanRefused, match="not on this device"):
        agent(fleet).accept(signed(fleet, planned(fleet)))


def test_a_run_that_expires_meanwhile_is_not_answered(fleet: Fleet) -> None:
    device = Agent(fleet.folders["d0"], clock=(clock := FakeClock(200.0)))
    device.accept(signed(fleet, planned(fleet)))
    clock.sleep(2000.0)
    with pytest.raises(PlanRefused, match="expired"):
        device.answer("run-000001", 0, START)


def test_a_record_that_somebody_edited_stops_the_device(fleet: Fleet) -> None:
    agent(fleet).accept(signed(fleet, planned(fleet)))
    agent(fleet).accept(signed(fleet, planned(fleet, grant=2)))
    path = fleet.folders["d0"] / STATE / "spend.jsonl"
    whole = path.read_bytes()
    for damaged in (whole.replace(b"1000000000", b"1000000", 1), whole.split(b"\n", 1)[1], b"nonsense\n" + whole):
        path.write_bytes(damaged)
        with pytest.raises(LedgerDamaged, match="not what this device wrote"):
            agent(fleet).accept(signed(fleet, planned(fleet, grant=3)))


def test_a_record_that_has_gone_is_not_begun_anew(fleet: Fleet) -> None:
    (fleet.folders["d0"] / STATE / "spend.jsonl").unlink()
    with pytest.raises(LedgerDamaged, match="cannot be opened"):
        agent(fleet).accept(signed(fleet, planned(fleet)))


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_record_that_was_shortened_stops_the_device(fleet: Fleet, cut: int) -> None:
    envelope = signed(fleet, planned(fleet))
    agent(fleet).accept(envelope)
    path = fleet.folders["d0"] / STATE / "spend.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    for again in (envelope, signed(fleet, planned(fleet, grant=2))):
        with pytest.raises(LedgerDamaged, match="no end"):
            agent(fleet).accept(again)
    with pytest.raises(LedgerDamaged, match="no end"):
        Agent.enrol(fleet.folders["d0"], "d0", fleet.signer.public, cap=3.0)


def test_a_record_that_changes_under_a_running_agent_stops_it(fleet: Fleet) -> None:
    device = agent(fleet)
    device.accept(signed(fleet, planned(fleet)))
    (fleet.folders["d0"] / STATE / "spend.jsonl").write_bytes(b"")
    with pytest.raises(LedgerDamaged, match="a moment ago"):
        device.accept(signed(fleet, planned(fleet, grant=2)))


def test_a_record_that_lost_a_run_this_device_answered_stops_that_run(fleet: Fleet) -> None:
    envelope = signed(fleet, planned(fleet))
    device = agent(fleet)
    device.accept(envelope)
    device.answer("run-000001", 0, START)
    path = fleet.folders["d0"] / STATE / "spend.jsonl"
    path.write_bytes(b"")
    with pytest.raises(PlanRefused, match="has lost it"):
        agent(fleet).accept(envelope)
    with pytest.raises(LedgerDamaged, match="does not tell of run-000001"):
        Agent.enrol(fleet.folders["d0"], "d0", fleet.signer.public, cap=3.0)
    path.unlink()
    with pytest.raises(LedgerDamaged, match="has gone"):
        Agent.enrol(fleet.folders["d0"], "d0", fleet.signer.public, cap=3.0)


@pytest.mark.parametrize("left", [0, -1, 30])
def test_a_device_that_lost_part_of_an_answer_it_may_have_sent_answers_no_more(fleet: Fleet, left: int) -> None:
    envelope = signed(fleet, planned(fleet))
    device = agent(fleet)
    device.accept(envelope)
    device.answer("run-000001", 0, START)
    path = fleet.folders["d0"] / STATE / "run-000001.replies"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(PlanRefused, match="has gone"):
        agent(fleet).accept(envelope)
    for number in (0, 1):
        with pytest.raises(PlanRefused, match="has gone"):
            device.answer("run-000001", number, START)
    with pytest.raises(PlanRefused, match="has gone"):
        Agent.enrol(fleet.folders["d0"], "d0", fleet.signer.public, cap=3.0)


def test_an_answer_that_was_kept_and_not_yet_told_to_the_record_is_sent_as_it_is(fleet: Fleet) -> None:
    envelope = signed(fleet, planned(fleet))
    device = agent(fleet)
    device.accept(envelope)
    path = fleet.folders["d0"] / STATE / "spend.jsonl"
    before = path.read_bytes()
    kept = device.answer("run-000001", 0, START)
    path.write_bytes(before)  # as if the power had gone between the two
    again = agent(fleet)
    again.accept(envelope)
    assert again.answer("run-000001", 0, START) == kept
    with again.record.held() as held:
        assert list(held.answers("run-000001")) == [0]


def test_a_device_that_has_spent_keeps_its_orders_and_whom_it_trusts(fleet: Fleet) -> None:
    folder, mine = fleet.folders["d0"], fleet.signer.public
    Agent.enrol(folder, "d0", plan_signer(None).public, cap=3.0, orders=(2.0, 64.0))
    Agent.enrol(folder, "d0", mine, cap=3.0)
    agent(fleet).accept(signed(fleet, planned(fleet)))
    (entry,) = agent(fleet).record.entries()
    assert (entry.trusted, entry.adjacency, entry.privacy_unit) == (mine, "add-or-remove-one", "record within a block")
    assert entry.orders == list(planned(fleet).orders)
    for key, orders in ((mine, (64.0,)), (plan_signer(None).public, None)):
        with pytest.raises(InputError, match="keeps its orders"):
            Agent.enrol(folder, "d0", key, cap=3.0, orders=orders)
    assert Agent.enrol(folder, "d0", mine, cap=5.0).left()["d0/w0"] == [4 * 10**9]


@pytest.mark.parametrize("name", ["x/w0", "w0", "d0/x/w0", "d0/", "/w0", "d0/W0", "d0/../w0", "d0/w9"])
def test_a_block_by_another_name_than_its_own_is_refused(fleet: Fleet, name: str) -> None:
    told = json.loads(canonical(planned(fleet)))["blocks"][0]
    for blocks in ([{**told, "block": name}], [told, {**told, "block": name}]):
        with pytest.raises(PlanRefused, match="is not on this device"):
            agent(fleet).accept(signed(fleet, planned(fleet), blocks=blocks))
    assert spent(fleet) == 0


def test_two_names_of_one_file_are_one_block(fleet: Fleet) -> None:
    told = json.loads(canonical(planned(fleet)))["blocks"][0]
    (fleet.folders["d0"] / "w7.npz").hardlink_to(fleet.folders["d0"] / "w0.npz")
    for other in ("d0/w0", "d0/w7"):
        with pytest.raises(PlanRefused, match="a block twice"):
            agent(fleet).accept(signed(fleet, planned(fleet), blocks=[told, {**told, "block": other}]))
    assert spent(fleet) == 0


def write_badly(path: Path, how: str) -> None:
    """A block that something is wrong with, and a name in it that nobody may read."""
    if how in ("", "PK\x03\x04junk Alice Smith"):
        path.write_text(how)
        return
    wrong = {
        "text": (np.array([["1"] * 6, ["Alice Smith"] * 6]), np.array([0, 1])),
        "shape": (np.zeros((37, 5)), np.zeros(37)),
        "labels": (np.zeros((37, 6)), np.zeros(36)),
        "flat": (np.zeros(37), np.zeros(37)),
    }
    if how == "no labels":
        np.savez(path, x=np.zeros((37, 6)))
    else:
        np.savez(path, x=wrong[how][0], y=wrong[how][1])


BAD = ["", "PK\x03\x04junk Alice Smith", "text", "shape", "labels", "flat", "no labels"]


@pytest.mark.parametrize("how", BAD)
def test_a_block_that_cannot_be_used_costs_nothing_and_nobody_learns_why(fleet: Fleet, how: str) -> None:
    write_badly(fleet.folders["d0"] / "w0.npz", how)
    with pytest.raises(PlanRefused) as refused:
        agent(fleet).accept(signed(fleet, planned(fleet)))
    assert refused.value.message == "run-000001 is refused: block 'd0/w0' holds no records of 6 features"
    assert refused.value.__suppress_context__
    assert spent(fleet) == 0


@pytest.mark.parametrize("how", BAD)
def test_a_block_that_goes_bad_meanwhile_is_refused_in_the_same_words(fleet: Fleet, how: str) -> None:
    device = agent(fleet)
    device.accept(signed(fleet, planned(fleet)))
    write_badly(fleet.folders["d0"] / "w0.npz", how)
    device._records.clear()
    asked, told = io.BytesIO(), io.BytesIO()
    send(asked, Message(what="answer", run="run-000001"), START.tobytes())
    _answer(device, Wire(asked.getvalue(), told))
    heard, _ = receive(io.BytesIO(told.getvalue()))
    assert (heard.what, heard.note) == (
        "refused",
        "run-000001 is refused: block 'd0/w0' holds no records of 6 features",
    )


def test_a_problem_of_the_device_leaves_it_as_one_sentence(fleet: Fleet) -> None:
    device, told = agent(fleet), io.BytesIO()
    (fleet.folders["d0"] / STATE / "spend.jsonl").write_bytes(b"Alice Smith")
    asked = io.BytesIO()
    send(asked, Message(what="accept", envelope=signed(fleet, planned(fleet))), b"")
    _answer(device, Wire(asked.getvalue(), told))
    assert receive(io.BytesIO(told.getvalue()))[0].note == FAILED
    _answer(device, Wire(b"\xff\xfe nobody's language\n", told))


class Wire(io.BytesIO):
    """What was asked to read from, and what was told to write to."""

    def __init__(self, asked: bytes, told: io.BytesIO) -> None:
        super().__init__(asked)
        self._told = told

    def write(self, content: object) -> int:
        return self._told.write(content)  # type: ignore[arg-type]


def test_with_a_full_disk_the_device_trains_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: writes fail the same way, in a process of its own."""
    agent(fleet).accept(signed(fleet, planned(fleet)))
    envelope = signed(fleet, planned(fleet, grant=2))
    (tmp_path / "envelope").write_text(f"{envelope.document}\n{envelope.signature}")
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from dpbalance.clock import FakeClock\n"
        "from dpbalance.execution import Agent\n"
        "from dpbalance.execution.signature import Envelope\n"
        f"folder, text = Path({str(fleet.folders['d0'])!r}), Path({str(tmp_path / 'envelope')!r}).read_text()\n"
        "document, signature = text.split(chr(10))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "size = (folder / '.dpbalance' / 'spend.jsonl').stat().st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, size + 40))\n"
        "Agent(folder, clock=FakeClock(200.0)).accept(Envelope(document=document, signature=signature))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "cannot record what it would spend" in ended.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert spent(fleet) == 10**9
    agent(fleet).accept(envelope)
    assert spent(fleet) == 2 * 10**9


def test_a_folder_that_is_no_device_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotInLedger, match="no device"):
        Agent(tmp_path)


@pytest.mark.parametrize("spec", [SOFTMAX, ModelSpec(kind="mlp", features=6, classes=3, hidden=5, seed=1)])
def test_clipped_gradients_are_exact_record_by_record(spec: ModelSpec) -> None:
    model = made(spec)
    x, y = records(30, 7)
    parameters = SeededSecrets(3).normal((model.size,))

    def loss(at: int, p: np.ndarray) -> float:
        logits = model.logits(p, x[at : at + 1])[0]
        return float(np.log(np.exp(logits).sum()) - logits[y[at]])

    clip, total = 0.8, np.zeros(model.size)
    for at in range(len(y)):
        steps = np.eye(model.size) * 1e-6
        gradient = np.array([(loss(at, parameters + s) - loss(at, parameters - s)) / 2e-6 for s in steps])
        alone = model.clipped_sum(parameters, x[at : at + 1], y[at : at + 1], 1e9)
        np.testing.assert_allclose(alone, gradient, atol=1e-7)
        clipped = model.clipped_sum(parameters, x[at : at + 1], y[at : at + 1], clip)
        assert np.linalg.norm(clipped) <= clip
        total += clipped
    np.testing.assert_allclose(model.clipped_sum(parameters, x, y, clip), total, atol=1e-12)


def test_no_record_moves_a_sum_by_more_than_its_clip_however_wild_it_is() -> None:
    model = made(SOFTMAX)
    wild = np.array([[np.inf] * 6, [np.nan] * 6, [1e300] * 6, [-1e300] * 6, [0.0] * 6])
    x, y = usable(SOFTMAX, wild, np.array([0, 1, 2, 1, 9]))
    assert len(y) == 2
    for at in range(len(y)):
        moved = model.clipped_sum(START + 1, x[at : at + 1], y[at : at + 1], 0.5)
        assert np.linalg.norm(moved) <= 0.5


def test_one_draw_of_the_planned_scale_is_added_in_each_step(fleet: Fleet) -> None:
    plan = planned(fleet)
    none = [Records(plan=plan.blocks[0], x=np.zeros((0, 6)), y=np.zeros(0, dtype=np.int64))]
    secrets = SeededSecrets(1)
    drawn = np.concatenate(
        [noised_gradient(plan, made(SOFTMAX), START, none, secrets) * plan.records_expected for _ in range(2000)]
    )
    assert drawn.std() == pytest.approx(plan.noise, rel=0.02)


def test_a_noised_loss_is_paid_for_and_capped(fleet: Fleet) -> None:
    training = TrainingSpec(rounds=2, loss_share=0.1, loss_cap=2.0)
    plan = planned(fleet, training=training, units=50 * 10**9)
    assert plan.loss_noise > 0
    Agent.enrol(fleet.folders["d0"], "d0", fleet.signer.public, cap=100.0)
    write_block(fleet.folders["d0"], "d0/w0", *records(4000, 1))
    device = agent(fleet)
    device.accept(signed(fleet, plan, blocks=[{**json.loads(canonical(plan))["blocks"][0], "size": 4000}]))
    told = device.loss("run-000001", START)
    assert float(Reply.decoded(told).values[0]) == pytest.approx(np.log(3), abs=0.05)
    assert device.loss("run-000001", START) == told


def test_a_run_that_pays_for_no_loss_tells_none(fleet: Fleet) -> None:
    device = agent(fleet)
    device.accept(signed(fleet, planned(fleet)))
    with pytest.raises(PlanRefused, match="no release"):
        device.loss("run-000001", START)
