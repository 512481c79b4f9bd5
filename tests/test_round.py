"""Is a round the same whatever order it was written in, and does it survive a file?"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbalance import Block, InputError, Pipeline, Round, paper_round, read_round, worked_example, write_round
from dpbalance.market import round_from_json, round_to_json
from dpbalance.market.round import MAX_MULTIPLE, natural

names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
amounts = st.decimals(min_value=0, max_value=100, places=9).map(float)
positive = st.decimals(min_value="0.000000001", max_value=100, places=9).map(float)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Any well-formed round document."""
    orders = draw(st.none() | st.lists(st.floats(1.5, 64), min_size=1, max_size=3, unique=True))

    def amount(kind: st.SearchStrategy[float]) -> Any:
        return draw(kind) if orders is None else [draw(kind) for _ in orders]

    blocks = [
        {"id": name, "capacity": amount(amounts), "spent": amount(amounts)}
        for name in draw(st.lists(names, min_size=1, max_size=5, unique=True))
    ]
    pipelines = [
        {
            "id": name,
            "analyst": draw(names),
            "submitted": draw(st.floats(-1e6, 1e6)),
            "weight": draw(st.floats(0.01, 100)),
            "loss": draw(st.floats(0.01, 100)),
            "max_multiple": draw(st.none() | st.floats(1, 1e6)),
            "demand": {
                block["id"]: amount(positive)
                for block in draw(st.lists(st.sampled_from(blocks), min_size=1, unique_by=lambda each: each["id"]))
            },
        }
        for name in draw(st.lists(names, max_size=5, unique=True))
    ]
    now = draw(st.floats(0, 1e6))
    return {"format": "dpbalance-round/1", "orders": orders, "now": now, "blocks": blocks, "pipelines": pipelines}


def same(one: Round, other: Round) -> bool:
    return all(np.array_equal(getattr(one, each.name), getattr(other, each.name)) for each in fields(Round))


@given(documents())
def test_a_round_survives_being_written_and_read(document: dict[str, Any]) -> None:
    round_ = round_from_json(document)
    assert same(round_, round_from_json(json.loads(json.dumps(round_to_json(round_)))))


@given(documents(), st.randoms(use_true_random=False))
def test_the_order_of_the_file_does_not_matter(document: dict[str, Any], random: Any) -> None:
    shuffled = json.loads(json.dumps(document))
    random.shuffle(shuffled["blocks"])
    random.shuffle(shuffled["pipelines"])
    for pipeline in shuffled["pipelines"]:
        demand = list(pipeline["demand"].items())
        random.shuffle(demand)
        pipeline["demand"] = dict(demand)
    assert same(round_from_json(document), round_from_json(shuffled))


@pytest.mark.parametrize("make", [worked_example, paper_round])
def test_workloads_survive_a_file(make: Any, tmp_path: Path) -> None:
    write_round(make(), tmp_path / "round.json")
    assert same(make(), read_round(tmp_path / "round.json"))


def test_what_is_left_out_has_the_documented_default() -> None:
    round_ = round_from_json(
        {
            "format": "dpbalance-round/1",
            "blocks": [{"id": "B1", "capacity": 0.7}],
            "pipelines": [{"id": "P1", "analyst": "a", "demand": {"B1": 0.5}}],
        }
    )
    assert round_.orders is None
    assert round_.now == 0.0
    assert round_.submitted.tolist() == [0.0]
    assert round_.spent.tolist() == [[0]]
    assert round_.unlocked.tolist() == round_.capacity.tolist() == [[700_000_000]]
    assert round_.weight.tolist() == round_.loss.tolist() == [1.0]
    assert round_.max_multiple.tolist() == [np.inf]


def test_names_are_in_natural_order() -> None:
    listed = ["P10", "P2", "P1", "Q", "P02", ""]
    assert sorted(listed, key=natural) == ["", "P1", "P02", "P2", "P10", "Q"]


def test_costs_round_up_and_capacities_round_down() -> None:
    round_ = Round.build(
        [Block(id="B", capacity=1e-10, spent=1e-10)], [Pipeline(id="P", analyst="a", demand={"B": 1e-10})]
    )
    assert (round_.capacity.item(), round_.spent.item(), round_.cost.item()) == (0, 1, 1)


def test_a_block_of_which_nothing_is_asked_leaves_the_demand() -> None:
    blocks = [Block(id="B1", capacity=1.0), Block(id="B2", capacity=1.0)]
    round_ = Round.build(blocks, [Pipeline(id="P", analyst="a", demand={"B1": 0.0, "B2": 0.5})])
    assert round_.block.tolist() == [1]


def test_a_round_cannot_be_changed() -> None:
    round_ = worked_example()
    with pytest.raises(ValueError, match="read-only"):
        round_.cost[0] = 0
    with pytest.raises(AttributeError):
        round_.now = 1.0  # type: ignore[misc]


def test_a_very_large_cap_is_no_cap() -> None:
    block = Block(id="B", capacity=1.0)
    round_ = Round.build([block], [Pipeline(id="P", analyst="a", demand={"B": 0.5}, max_multiple=2 * MAX_MULTIPLE)])
    assert round_.max_multiple.tolist() == [np.inf]


def test_an_empty_round_is_a_round() -> None:
    round_ = Round.build([], [])
    assert (round_.blocks, round_.pipelines, round_.analysts) == ((), (), ())


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "\ud800", "x" * 257, 5, None])
def test_a_name_is_one_line_of_printable_text(name: Any) -> None:
    good = Pipeline(id="P", analyst="a", demand={"B": 0.5})
    for blocks, pipelines in (
        ([Block(id=name, capacity=1.0)], []),
        ([Block(id="B", capacity=1.0)], [good, Pipeline(id=name, analyst="a", demand={"B": 0.5})]),
        ([Block(id="B", capacity=1.0)], [Pipeline(id="P", analyst=name, demand={"B": 0.5})]),
    ):
        with pytest.raises(InputError, match="printable text"):
            Round.build(blocks, pipelines)
