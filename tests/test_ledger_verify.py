"""Does verification notice what it is there for? Every row that somebody else changed, and nothing where nobody did."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from ledgers import asking, spend, stocked

from dpbalance.errors import DPBalanceError, LedgerDamaged
from dpbalance.ledger import Ask, Decision, create_ledger, open_ledger
from dpbalance.ledger.journal import new_signer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with some of everything."""
    path = tmp_path / "ledger.db"
    with create_ledger(f"sqlite:///{path}") as ledger:
        a, b, c = stocked(ledger)
        asks = [Ask(pipeline=f"p{at}", analyst="x", cost={a: 0.1, b: 0.2}) for at in range(2)]
        ledger.charge(Decision.build(asks))
        spend(ledger, {c: 0.4})
        ledger.dispatch([1])
        ledger.void([3])
        with pytest.raises(DPBalanceError):
            spend(ledger, {a: 2.0})
        ledger.freeze([c])
        ledger.acquire("one", 10.0)
    return path


def damaged(path: Path, *statements: str) -> str:
    """The first problem after these statements."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA ignore_check_constraints = 1")
    for statement in statements:
        assert connection.execute(statement).rowcount > 0
    connection.commit()
    connection.close()
    with open_ledger(f"sqlite:///{path}") as ledger:
        verdict = ledger.verify()
        with pytest.raises(LedgerDamaged) as refusal:
            verdict.demand()
    return refusal.value.message


def test_nothing_is_wrong_where_nobody_changed_anything(path: Path) -> None:
    with open_ledger(f"sqlite:///{path}") as ledger:
        verdict = ledger.verify()
    assert (verdict.clean, verdict.seq, verdict.rows, verdict.blocks, verdict.entries) == (True, 10, 10, 3, 5)


TAMPERED = {
    "a row of the journal": ["UPDATE journal SET actor = 'nobody' WHERE seq = 5"],
    "a body": ["UPDATE journal SET body = replace(body, 'by hand', 'by foot') WHERE seq = 4"],
    "a time": ["UPDATE journal SET time = time + 1 WHERE seq = 3"],
    "a signature": ["UPDATE journal SET signature = substr(signature, 2) || '0' WHERE seq = 6"],
    "a dropped row": ["DELETE FROM journal WHERE seq = 5"],
    "the dropped last row": ["DELETE FROM journal WHERE seq = 10"],
    "swapped rows": [
        "UPDATE journal SET seq = 100 WHERE seq = 5",
        "UPDATE journal SET seq = 5 WHERE seq = 6",
        "UPDATE journal SET seq = 6 WHERE seq = 100",
    ],
    "a balance": ["UPDATE balance SET spent_0 = spent_0 - 1 WHERE block = 1"],
    "an overspent balance": ["UPDATE balance SET spent_0 = 2000000000 WHERE block = 1"],
    "a budget": ["UPDATE balance SET capacity_0 = capacity_0 + 1 WHERE block = 2"],
    "a thawed block": ["UPDATE balance SET state = 0 WHERE block = 3"],
    "a dropped balance": ["DELETE FROM balance WHERE block = 3"],
    "a charge": ["UPDATE entry SET cost_0 = cost_0 - 1 WHERE claim = 1 AND block = 1"],
    "a charge and its balance": [
        "UPDATE entry SET cost_0 = cost_0 - 1 WHERE claim = 1 AND block = 1",
        "UPDATE balance SET spent_0 = spent_0 - 1 WHERE block = 1",
    ],
    "a dropped charge": ["DELETE FROM entry WHERE claim = 2 AND block = 2"],
    "a made up charge": ["INSERT INTO entry VALUES (4, 1, 5)"],
    "a charge of nobody": ["INSERT INTO entry VALUES (77, 1, 5)"],
    "a grant": ["UPDATE claim SET analyst = 'y' WHERE id = 2"],
    "a dropped denial": ["DELETE FROM claim WHERE id = 4"],
    "a made up grant": ["INSERT INTO claim VALUES (5, 10, 'p', 'x', 1.0, 1, '')"],
    "a voided grant": [
        "UPDATE claim SET stage = 5 WHERE id = 2",
        "UPDATE balance SET spent_0 = 100000000 WHERE block = 1",
        "UPDATE balance SET spent_0 = 200000000 WHERE block = 2",
    ],
    "a stage": ["UPDATE claim SET stage = 1 WHERE id = 1"],
    "a budget row": ["UPDATE term SET capacity_0 = capacity_0 + 1 WHERE block = 1"],
    "a made up budget row": ["INSERT INTO term VALUES (6, 1, 0, 1000000000, 1000000000)"],
    "a block's name": ["UPDATE block SET name = 'd1/w9' WHERE id = 1"],
    "a block's place": ["UPDATE block SET sort = x'00' WHERE id = 1"],
    "a block's device": ["UPDATE block SET device = 2 WHERE id = 1"],
    "a contributor": ["UPDATE device SET contributor = 'bob' WHERE id = 1"],
    "a made up device": ["INSERT INTO device VALUES (3, 'd3', '')"],
    "the head": ["UPDATE head SET seq = 9"],
    "the lease": ["UPDATE head SET token = 7"],
    "the holder": ["UPDATE head SET holder = ''"],
    "the end of the lease": ["UPDATE head SET until = 0"],
    "how many devices": ["UPDATE head SET devices = 9"],
    "how many grants": ["UPDATE head SET claims = 50"],
    "what the ledger counts at": ["UPDATE meta SET value = '[64.0]' WHERE name = 'orders'"],
    "an old backup that nobody brought back": [
        "INSERT INTO meta SELECT 'restored', '4:' || hash FROM journal WHERE seq = 4"
    ],
}


@pytest.mark.parametrize("what", TAMPERED)
def test_whatever_somebody_changed_is_noticed(path: Path, what: str) -> None:
    assert damaged(path, *TAMPERED[what])


def test_the_first_bad_row_is_named(path: Path) -> None:
    assert damaged(path, "UPDATE journal SET kind = 'void' WHERE seq = 6").startswith(
        "row 6 of the journal: the row is"
    )


def test_whoever_rewrites_the_chain_needs_the_key(path: Path) -> None:
    """A forger who recomputes every hash is found by the signatures."""
    from dataclasses import astuple, replace

    from dpbalance.ledger.page import JournalRow

    connection = sqlite3.connect(path)
    names = list(JournalRow.__dataclass_fields__)
    found = connection.execute("SELECT * FROM journal ORDER BY seq").fetchall()
    rows = [JournalRow(**dict(zip(names, row, strict=True))) for row in found]
    forger, before = new_signer(None)[0], "0" * 64
    for row in rows:
        told = replace(row, prev=before, actor="nobody" if row.seq == 4 else row.actor)
        sealed = forger.seal(told) if row.seq >= 4 else row
        connection.execute("UPDATE journal SET hash = 'x' || seq WHERE seq = ?", (row.seq,))
        connection.execute("DELETE FROM journal WHERE seq = ?", (row.seq,))
        connection.execute(f"INSERT INTO journal VALUES ({', '.join('?' * 10)})", astuple(sealed))
        before = sealed.hash
    connection.execute("UPDATE head SET hash = ?", (before,))
    connection.commit()
    connection.close()
    with open_ledger(f"sqlite:///{path}") as ledger, pytest.raises(LedgerDamaged, match=r"row 4 .* signature"):
        ledger.verify().demand()


def test_a_file_that_is_no_ledger_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked at as one" * 99)
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    for name in ("text.db", "empty.db"):
        with pytest.raises(LedgerDamaged):
            open_ledger(f"sqlite:///{tmp_path / name}")


def test_a_decision_needs_names_that_are_there(path: Path) -> None:
    with open_ledger(f"sqlite:///{path}") as ledger, pytest.raises(DPBalanceError, match="not in the ledger"):
        ledger.charge(asking({"d7/w7": 0.1}), token=1)
