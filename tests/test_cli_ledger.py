"""Do the commands of the ledger do what docs/cli.md promises?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpbalance import worked_example, write_round
from dpbalance.cli.app import app, main
from dpbalance.market import read_round

Printed = Callable[..., str]


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Printed:
    """What a command that must succeed prints, with a ledger in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPBALANCE_DATABASE", f"sqlite:///{tmp_path / 'ledger.db'}")
    write_round(worked_example(), tmp_path / "round.json")

    def run(*arguments: str) -> str:
        ended = CliRunner().invoke(app, list(arguments))
        assert ended.exit_code == 0, (ended.output, ended.exception)
        return ended.stdout

    return run


@pytest.fixture
def charged(printed: Printed, tmp_path: Path) -> Printed:
    """A ledger on which the worked example was decided and charged."""
    printed("ledger", "init")
    printed("ledger", "register", "round.json", "--contributor", "ann")
    (tmp_path / "now.json").write_text(printed("ledger", "snapshot", "round.json"))
    printed("allocate", "now.json", "--out", "allocation.json")
    printed("ledger", "charge", "now.json", "allocation.json", "--key", "k")
    return printed


def refused(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_a_round_is_registered_decided_and_charged(charged: Printed, tmp_path: Path) -> None:
    assert read_round(tmp_path / "now.json").pipelines == worked_example().pipelines
    receipt = json.loads(charged("ledger", "charge", "now.json", "allocation.json", "--key", "k", "--format", "json"))
    assert len(receipt.pop("hash")) == 64
    assert receipt == {"format": "dpbalance-receipt/1", "seq": 4, "kind": "charge", "grants": [1, 2]}
    blocks = json.loads(charged("block", "list", "--format", "json"))["blocks"]
    assert {each["block"]: each["spent"] for each in blocks} == {"B1": 1.0, "B2": pytest.approx(0.7, abs=0.1)}
    assert "Verified: 4 rows, 4 charges on 2 blocks." in charged("ledger", "verify")


def test_a_second_charge_of_the_same_decision_is_refused_with_its_code(
    charged: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused("ledger", "charge", "now.json", "allocation.json") == 5
    assert capsys.readouterr().err.startswith("DPB-203 BudgetExceeded: block 'B1' has 0 left")


def test_a_statement_and_a_block_tell_who_spent_what(charged: Printed) -> None:
    told = charged("ledger", "statement", "--analyst", "bob")
    assert "P3" in told
    assert "P1" not in told
    lines = json.loads(charged("ledger", "statement", "--block", "B1", "--format", "json"))["lines"]
    charges = [line for line in lines if line["block"]]
    assert [(line["grant"], line["cost"], line["order"]) for line in charges] == [(1, 0.5, 8.0), (2, 0.5, 8.0)]
    assert {json.loads(line["reason"])["block"] for line in lines if line not in charges} == {"B1"}
    shown = charged("block", "show", "B1")
    assert "Spent altogether: epsilon 2.214 at delta 1e-05." in shown
    assert json.loads(charged("block", "show", "B1", "--format", "json"))["epsilon"] == pytest.approx(2.214, abs=1e-3)


def test_a_block_is_frozen_by_anybody_and_thawed_by_its_contributor(
    charged: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    charged("block", "freeze", "B1", "B2")
    assert charged("block", "list").count("frozen") == 2
    assert refused("block", "thaw", "B1") == 5
    assert capsys.readouterr().err.startswith("DPB-213 NotAllowed")
    charged("block", "thaw", "B1", "--actor", "contributor:ann", "--key", "t")
    charged("block", "retire", "B2")
    assert [line.split()[1] for line in charged("block", "list").splitlines() if " B" in line][-2:] == [
        "open",
        "retired",
    ]


def test_a_backup_comes_back_and_an_old_one_does_not(charged: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    charged("ledger", "backup", "copy.db")
    assert refused("ledger", "restore", "copy.db", "--database", "sqlite:///back.db", "--at-least-seq", "5") == 7
    assert "1 rows are missing" in capsys.readouterr().err
    charged("ledger", "restore", "copy.db", "--database", "sqlite:///back.db", "--at-least-seq", "4")
    charged("ledger", "verify", "--database", "sqlite:///back.db", "--at-least-seq", "4")
    assert refused("ledger", "verify", "--database", "sqlite:///back.db", "--at-least-seq", "5") == 7


def test_an_export_names_its_files(charged: Printed, tmp_path: Path) -> None:
    files = json.loads(charged("ledger", "export", "out", "--as", "parquet", "--format", "json"))["files"]
    assert all((tmp_path / each).is_file() for each in files)
    assert "out/journal.csv" in charged("ledger", "export", "out")


def test_orders_are_told_once_at_the_beginning(printed: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed("ledger", "init", "--orders", "2,8", "--format", "json"))["orders"] == [2.0, 8.0]
    assert refused("ledger", "register", "round.json") == 4
    assert "the ledger at (2.0, 8.0)" in capsys.readouterr().err
    assert refused("ledger", "init") == 5
    assert refused("ledger", "init", "--orders", "two", "--database", "sqlite:///other.db") == 4


def test_what_is_not_there_is_told_in_one_line(printed: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused("ledger", "verify") == 3
    assert capsys.readouterr().err.startswith("DPB-212 NotInLedger: there is no ledger at")
    assert refused("block", "list", "--database", "mysql://x") == 4
    assert refused("block", "list", "--database", "postgresql://nobody@/none?host=/nowhere") == 7
    assert "DPB-310 LedgerUnavailable" in capsys.readouterr().err


def test_a_ledger_is_held_against_what_was_noted_elsewhere(
    charged: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads(charged("ledger", "verify", "--format", "json"))
    assert (told["seq"], len(told["hash"]), len(told["public_key"])) == (4, 64, 64)
    mark = f"4:{told['hash']}"
    assert mark in charged("ledger", "verify", "--at-least-seq", mark, "--public-key", told["public_key"])
    assert refused("ledger", "verify", "--at-least-seq", f"4:{'0' * 64}") == 7
    assert refused("ledger", "verify", "--public-key", "0" * 64) == 7
    assert refused("ledger", "verify", "--at-least-seq", "four") == 4
    assert "SEQ or SEQ:HASH" in capsys.readouterr().err


def test_init_says_where_the_key_is_and_what_to_note(printed: Printed, tmp_path: Path) -> None:
    told = printed("ledger", "init")
    assert str(tmp_path / "ledger.db.key") in told
    assert "--public-key" in told


def test_what_waits_can_be_seen_and_given_back(charged: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    assert charged("ledger", "outbox") == "1 2\n"
    charged("ledger", "void", "2", "--note", "nobody wants it")
    assert json.loads(charged("ledger", "outbox", "--format", "json"))["grants"] == [1]
    charged("block", "budget", "B1", "--to", "0.75")
    charged("block", "unlock", "B1", "--to", "0.75")
    assert refused("block", "budget", "B1", "--to", "2") == 5
    assert refused("block", "budget", "B1", "--to", "1,2") == 3
    assert refused("ledger", "void", "9") == 3
    assert refused("ledger", "register", "round.json", "--contributor", "bob") == 5
    assert "registered with the contributor 'ann', not 'bob'" in capsys.readouterr().err


def test_a_statement_says_why_something_was_denied(charged: Printed) -> None:
    assert "B1 has" in charged("ledger", "statement", "--pipeline", "P4")


def test_a_snapshot_tells_its_row_and_what_is_closed(charged: Printed) -> None:
    charged("block", "freeze", "B2")
    ended = CliRunner().invoke(app, ["ledger", "snapshot", "round.json"])
    assert ended.stderr == "Taken after row 5 (--seen 5); nothing of these is on offer: B2 is frozen.\n"
    charged("ledger", "charge", "now.json", "allocation.json", "--key", "k", "--seen", "3")
