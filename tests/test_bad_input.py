"""Is every bad input refused in one sentence that names the culprit, with the documented exit status?"""

import copy
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpbalance.cli import main
from dpbalance.errors import TABLE

GOOD: dict[str, Any] = {
    "format": "dpbalance-round/1",
    "blocks": [{"id": "B1", "capacity": 1.0}, {"id": "B2", "capacity": 1.0}],
    "pipelines": [
        {"id": "P1", "analyst": "alice", "demand": {"B1": 0.5, "B2": 0.3}},
        {"id": "P2", "analyst": "bob", "demand": {"B1": 0.4}},
    ],
}

STATUS = {row.code: row.exit_status for row in TABLE.values()}


def put(*path: Any) -> Callable[[Any], str]:
    """A document with one value replaced: the last of `path` goes to the place before it."""
    *place, last, value = path

    def change(document: Any) -> str:
        at = document
        for step in place:
            at = at[step]
        at[last] = value
        return json.dumps(document)

    return change


def text(written: str) -> Callable[[Any], str]:
    return lambda document: written


def swap(old: str, new: str) -> Callable[[Any], str]:
    return lambda document: json.dumps(document).replace(old, new)


DEMAND = ("pipelines", 0, "demand")
BAD: dict[str, tuple[Callable[[Any], str], str, str]] = {
    # an amount that is none
    "NaN": (put(*DEMAND, "B1", float("nan")), "DPB-103", "NaN"),
    "infinite": (put(*DEMAND, "B1", float("inf")), "DPB-103", "Infinity"),
    "infinite in digits": (swap("0.5", "1e999"), "DPB-102", "'B1'"),
    "negative demand": (put(*DEMAND, "B1", -0.5), "DPB-102", "'P1': demand of block 'B1'"),
    "1e300": (put(*DEMAND, "B2", 1e300), "DPB-102", "'P1': demand of block 'B2'"),
    "a huge whole number": (put(*DEMAND, "B2", 10**400), "DPB-102", "'P1': demand of block 'B2'"),
    "five thousand digits": (swap("0.5", "9" * 5000), "DPB-103", "integer"),
    "bool": (put(*DEMAND, "B1", True), "DPB-102", "'P1': demand of block 'B1'"),
    "text": (put(*DEMAND, "B1", "0.5"), "DPB-102", "'P1': demand of block 'B1'"),
    "null": (put(*DEMAND, "B1", None), "DPB-102", "'P1': demand of block 'B1'"),
    "an object": (put(*DEMAND, "B1", {"8": 0.5}), "DPB-102", "'P1': demand of block 'B1'"),
    "negative capacity": (put("blocks", 1, "capacity", -1), "DPB-102", "block 'B2': capacity"),
    "text capacity": (put("blocks", 1, "capacity", "1"), "DPB-102", "block 'B2': capacity"),
    "negative spent": (put("blocks", 1, "spent", -1), "DPB-102", "block 'B2': spent"),
    "bool unlocked": (put("blocks", 1, "unlocked", False), "DPB-102", "block 'B2': unlocked"),
    "more unlocked than there is": (put("blocks", 1, "unlocked", 2), "DPB-102", "block 'B2': unlocked"),
    # names
    "unknown block": (put(*DEMAND, "B9", 0.1), "DPB-101", "unknown block 'B9'"),
    "duplicate block": (put("blocks", 1, "id", "B1"), "DPB-101", "block id 'B1' stands twice"),
    "duplicate pipeline": (put("pipelines", 1, "id", "P1"), "DPB-101", "pipeline id 'P1' stands twice"),
    "duplicate key": (swap('"B2": 0.3', '"B1": 0.3'), "DPB-103", "'B1' stands twice"),
    "number as id": (put("blocks", 0, "id", 7), "DPB-101", "block id"),
    "empty id": (put("pipelines", 0, "id", ""), "DPB-101", "pipeline id"),
    "terminal codes in an id": (put("pipelines", 0, "id", "\x1b[2J"), "DPB-101", "pipeline id"),
    "half a letter in an id": (put("pipelines", 0, "id", "\ud800"), "DPB-101", "pipeline id"),
    "analyst is null": (put("pipelines", 0, "analyst", None), "DPB-101", "'P1': analyst"),
    # demands
    "empty demand": (put("pipelines", 0, "demand", {}), "DPB-101", "pipeline 'P1' demands nothing"),
    "demand of zeros": (
        put("pipelines", 0, "demand", {"B1": 0, "B2": 0.0}),
        "DPB-101",
        "pipeline 'P1' demands nothing",
    ),
    "demand is a list": (put("pipelines", 0, "demand", [["B1", 0.5]]), "DPB-103", "pipeline 'P1': demand"),
    # orders
    "no orders": (put("orders", []), "DPB-101", "orders"),
    "order of 1": (put("orders", [1.0, 8.0]), "DPB-101", "orders"),
    "the same order twice": (put("orders", [8.0, 8.0]), "DPB-101", "orders"),
    "an order that is text": (put("orders", ["8"]), "DPB-101", "orders"),
    "orders is a number": (put("orders", 8), "DPB-103", "orders"),
    "orders without lists": (put("orders", [2.0, 8.0]), "DPB-102", "block 'B1': capacity must be a list of 2 numbers"),
    "list without orders": (put(*DEMAND, "B1", [0.5, 0.6]), "DPB-102", "'P1': demand of block 'B1' must be one number"),
    # the other numbers
    "now is text": (put("now", "noon"), "DPB-101", "now"),
    "now is a bool": (put("now", True), "DPB-101", "now"),
    "now is huge": (put("now", 1e308), "DPB-101", "now"),
    "submitted is text": (put("pipelines", 0, "submitted", "noon"), "DPB-101", "'P1': submitted"),
    "max_multiple below 1": (put("pipelines", 0, "max_multiple", 0.5), "DPB-101", "'P1': max_multiple"),
    "max_multiple is text": (put("pipelines", 0, "max_multiple", "many"), "DPB-101", "'P1': max_multiple"),
    "weight 0": (put("pipelines", 0, "weight", 0), "DPB-101", "'P1': weight"),
    "weight negative": (put("pipelines", 0, "weight", -1), "DPB-101", "'P1': weight"),
    "weight too large": (put("pipelines", 0, "weight", 1e13), "DPB-101", "'P1': weight"),
    "loss is a bool": (put("pipelines", 0, "loss", True), "DPB-101", "'P1': loss"),
    "loss negative": (put("pipelines", 0, "loss", -0.5), "DPB-101", "'P1': loss"),
    # shapes
    "unknown field": (put("colour", "red"), "DPB-103", "'colour'"),
    "unknown field of a block": (
        put("blocks", 0, "colour", "red"),
        "DPB-103",
        "block 'B1' has the unknown field 'colour'",
    ),
    "unknown field of a pipeline": (
        put("pipelines", 1, "eps", 1),
        "DPB-103",
        "pipeline 'P2' has the unknown field 'eps'",
    ),
    "another format": (put("format", "dpbalance-round/2"), "DPB-103", "dpbalance-round/2"),
    "format is a list": (put("format", []), "DPB-103", "format"),
    "a list": (text("[]"), "DPB-103", "must be an object"),
    "null document": (text("null"), "DPB-103", "must be an object"),
    "an empty object": (text("{}"), "DPB-103", "lacks the field 'blocks'"),
    "blocks is an object": (put("blocks", {}), "DPB-103", "blocks must be a list"),
    "a block is text": (put("blocks", 1, "B2"), "DPB-103", "blocks[1] must be an object"),
    "a block without capacity": (put("blocks", 1, {"id": "B2"}), "DPB-103", "block 'B2' lacks the field 'capacity'"),
    "a pipeline is null": (put("pipelines", 1, None), "DPB-103", "pipelines[1] must be an object"),
    # not JSON
    "empty": (text(""), "DPB-103", "line 1"),
    "cut off": (lambda document: json.dumps(document)[:-20], "DPB-103", "not JSON"),
    "two documents": (lambda document: json.dumps(document) * 2, "DPB-103", "Extra data"),
    "deep lists": (text("[" * 100_000), "DPB-103", "nests too deeply"),
    "deep objects": (text('{"a":' * 100_000), "DPB-103", "nests too deeply"),
}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and the one line on stderr of a command that must print nothing else."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert len(err) < 500
    return int(ended.value.code or 0), err


@pytest.mark.parametrize("name", BAD)
def test_a_bad_round_is_refused_in_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, code, culprit = BAD[name]
    path = tmp_path / "round.json"
    path.write_text(change(copy.deepcopy(GOOD)))
    status, line = refused(capsys, "allocate", str(path))
    assert line.startswith(code + " ")
    assert str(path) in line
    assert culprit in line
    assert status == STATUS[code]


def test_the_good_round_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "round.json"
    path.write_text(json.dumps(GOOD))
    with pytest.raises(SystemExit) as ended:
        main(["allocate", str(path)])
    assert not ended.value.code


@pytest.mark.parametrize(
    ("content", "culprit"),
    [(b"\x00\xff\xfe\x80" * 100, "not UTF-8"), (b"\x00" * 100, "not JSON"), ("{}".encode("utf-16"), "not UTF-8")],
)
def test_rubbish_is_refused(content: bytes, culprit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "round.json"
    path.write_bytes(content)
    status, line = refused(capsys, "allocate", str(path))
    assert (status, culprit in line) == (3, True)


@pytest.mark.parametrize("rubbish", [b"x", b"[", b'"', b"9"])
def test_a_hundred_megabytes_of_rubbish_are_refused(
    rubbish: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "round.json"
    path.write_bytes(rubbish * 100_000_000)
    status, line = refused(capsys, "allocate", str(path))
    path.unlink()
    assert (status, line.startswith("DPB-103")) == (3, True)


@pytest.mark.parametrize("path", ["no-such-file.json", "/", "", "a\0b", "x" * 300])
def test_a_path_without_a_file_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = refused(capsys, "allocate", path or "")
    assert (status, line.startswith("DPB-103 FileFormatError: cannot read")) == (3, True)


def test_rubbish_on_stdin_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    status, line = refused(capsys, "allocate", "-")
    assert (status, "stdin is not UTF-8" in line) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "code", "culprit"),
    [
        (["--scheduler", "nobody"], "DPB-105", "nobody"),
        (["--beta", "-1"], "DPB-104", "beta"),
        (["--beta", "nan"], "DPB-104", "beta"),
        (["--beta", "much"], "DPB-104", "beta"),
        (["--lam", "-1"], "DPB-104", "lam"),
        (["--lam", "much"], "DPB-104", "lam"),
        (["--option", "tau=0"], "DPB-104", "tau"),
        (["--option", "colour=red"], "DPB-104", "colour"),
        (["--option", "colour"], "DPB-104", "colour"),
        (["--option", "=red"], "DPB-104", "=red"),
        (["--beta", "1", "--option", "beta=2"], "DPB-104", "twice"),
        (["--scheduler", "fcfs", "--lam", "1"], "DPB-104", "lam"),
    ],
)
def test_a_bad_option_is_refused(
    arguments: list[str], code: str, culprit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "round.json"
    path.write_text(json.dumps(GOOD))
    status, line = refused(capsys, "allocate", str(path), *arguments)
    assert line.startswith(code + " ")
    assert culprit in line
    assert status == STATUS[code]


@pytest.mark.parametrize(
    "arguments",
    [["allocate"], ["no-such-command"], ["allocate", "x", "--no-such-option"], ["allocate", "x", "--format", "xml"]],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert "Traceback" not in err


def test_a_real_process_shows_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "round.json"
    path.write_text("[" * 100_000)
    command = [sys.executable, "-c", "from dpbalance.cli import main; main()", "allocate", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (3, "", 1)
