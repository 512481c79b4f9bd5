"""Does the simulator grant what the authors' own simulators granted, trace by trace?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpbalance.errors import DPBalanceError
from dpbalance.market.files import read_json
from dpbalance.scheduler import scheduler
from dpbalance.simulate import read_trace, run, trace_from_json, trace_to_json, write_trace

DATA = Path(__file__).parent / "data"
NAMES = (
    "dpack_off60.json",
    "dpack_off200.json",
    "dpack_on600.json",
    "dpack_scale_1k.json.gz",
    "dpack_scale_5k.json.gz",
    "pk_single_DPF_N.json",
    "pk_single_FCFS.json",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_expected_run_grants_the_same_set(name: str, request: pytest.FixtureRequest) -> None:
    path = DATA / name
    if not path.exists():
        path = request.getfixturevalue("cases") / "traces" / name
    trace = read_trace(path)
    expected = read_json(path)["expected"]["runs"]
    assert expected
    for each in expected:
        done = run(trace, scheduler(each["scheduler"], **each["options"]))
        assert len(done.granted) == each["count"]
        assert set(done.granted) == set(each["granted"]), each["scheduler"]
        if not name.startswith("pk_"):  # those list their grants by name, the others in the order of granting
            assert list(done.granted) == each["granted"]


@pytest.mark.parametrize("name", ["pk_single_DPF_N.json", "dpack_off60.json"])
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_trace_that_is_written_replays_identically(name: str, ending: str, tmp_path: Path) -> None:
    trace = read_trace(DATA / name)
    write_trace(trace, tmp_path / f"again{ending}")
    again = read_trace(tmp_path / f"again{ending}")
    assert trace_to_json(trace) == trace_to_json(again)
    for decider in (scheduler("dpf"), scheduler("dpk"), scheduler("dpbalance", max_multiple=2.0)):
        first, second = run(trace, decider), run(again, decider)
        assert first.granted == second.granted
        assert first.multiple.tolist() == second.multiple.tolist()
        assert [each.metrics for each in first.rounds] == [each.metrics for each in second.rounds]


def test_a_gzipped_trace_has_the_same_bytes_whenever_it_is_written(tmp_path: Path) -> None:
    trace = read_trace(DATA / "pk_single_FCFS.json")
    for name in ("one.json.gz", "two.json.gz"):
        write_trace(trace, tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": "dpbalance-trace/1",
        "blocks": [{"id": "B", "arrived": 0, "capacity": 1.0}],
        "pipelines": [{"id": "P", "analyst": "a", "arrived": 0.5, "blocks": ["B"], "cost": 0.5}],
        **changes,
    }


def one_pipeline(**changes: Any) -> dict[str, Any]:
    return document(pipelines=[document()["pipelines"][0] | changes])


def test_what_is_left_out_of_a_trace_has_the_documented_default() -> None:
    trace = trace_from_json(document())
    assert (trace.rounds, trace.timeout, trace.end, trace.unlock.rule) == ("once", None, None, "none")
    assert trace.deadline.tolist() == [float("inf")]
    assert list(trace.moments()) == [0.5]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (document(format="dpbalance-round/1"), "format must be 'dpbalance-trace/1'"),
        (document(every=1), "the trace has the unknown field 'every'"),
        (document(orders=3), "orders must be null or a list"),
        (document(blocks={}), "blocks must be a list"),
        (document(blocks=[{"id": "B", "capacity": 1}]), "block 'B' lacks the field 'arrived'"),
        (document(blocks=[{"id": "B", "arrived": "now", "capacity": 1}]), "block 'B': arrived must be a number"),
        (document(blocks=[{"id": "B", "arrived": -1, "capacity": 1}]), "block 'B': arrived must be .* at least 0"),
        (document(blocks=[{"id": ["B"], "arrived": 0, "capacity": 1}]), "block id must be printable text"),
        (document(blocks=[{"id": "B", "arrived": 0, "capacity": -1}]), "block 'B': capacity must be between"),
        (document(blocks=document()["blocks"] * 2), "block id 'B' stands twice"),
        (one_pipeline(blocks=["C"]), "pipeline 'P' demands the unknown block 'C'"),
        (one_pipeline(blocks=["B", "B"]), "pipeline 'P': a block stands twice"),
        (one_pipeline(blocks="B"), "pipeline 'P': blocks must be a list"),
        (one_pipeline(blocks=[["B"]]), "pipeline 'P': blocks must be a list of names"),
        (one_pipeline(cost=0), "pipeline 'P' demands nothing"),
        (one_pipeline(cost=[1, 2]), "pipeline 'P': demand of block 'B' must be one number"),
        (one_pipeline(deadline="soon"), "pipeline 'P': deadline must be a number"),
        (one_pipeline(size=1), "pipeline 'P' has the unknown field 'size'"),
        (document(timeout=-1), "timeout must be a finite number of at least 0"),
        (document(end=True), "end must be a number"),
        (document(rounds={"every": 0}), "rounds must be null"),
        (document(rounds="arrival"), "rounds must be null"),
        (document(rounds={"every": 1e-9}, end=1e3), "is no number of rounds"),
        (document(unlock="time"), "unlock must be an object, not 'time'"),
        (document(unlock={"rule": "never"}), "unlock must be null or have a rule of arrivals, time, not 'never'"),
        (document(unlock={"rule": ["time"]}), "unlock must be null or have a rule"),
        (document(unlock={"rule": "time", "steps": 1}), "unlock lacks the field 'lifetime'"),
        (document(unlock={"rule": "time", "steps": 0, "lifetime": 1}), "unlock: steps must be a whole number from 1"),
        (document(unlock={"rule": "time", "steps": 1, "lifetime": 0}), "unlock: lifetime must be above 0"),
        (document(unlock={"rule": "arrivals", "n": 2.5}), "unlock: n must be a whole number from 1"),
        (document(unlock={"rule": "arrivals", "n": 2, "lifetime": 1}), "unlock has the unknown field 'lifetime'"),
        (document(unlock={"rule": "arrivals", "n": 2, "max_age": -1}), "unlock: max_age must be a finite number"),
    ],
)
def test_what_is_wrong_with_a_trace_is_named(broken: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(broken))
    with pytest.raises(DPBalanceError, match=message) as caught:
        read_trace(tmp_path / "trace.json")
    assert str(tmp_path / "trace.json") in str(caught.value)


def test_a_gzip_that_is_none_or_breaks_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_text(json.dumps(document()))
    with pytest.raises(DPBalanceError, match="cannot read"):
        read_trace(path)
    write_trace(trace_from_json(document()), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DPBalanceError, match="cannot read"):
        read_trace(path)
