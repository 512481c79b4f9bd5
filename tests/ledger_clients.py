"""What do many clients at once do to one store? `python ledger_clients.py CONFIG.json` runs some of them in a process.

Each client charges three of the blocks again and again. The design says how: `ledger` is ours, `for-update` locks rows
in one order and adds, and two are wrong on purpose: `overwrite` and `increment` read and check before they write.
One line comes out for each attempt: key, whether it was charged, when it was asked and when answered.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread, local
from typing import Any

import numpy as np
import psycopg

from dpbalance.errors import BudgetExceeded, LedgerUnavailable
from dpbalance.ledger import Ask, Decision, open_ledger

BLOCKS = 20
EACH = 3
CAPACITY = 1.0

Claim = dict[int, int]
"""Whole units by the number of the block."""

Attempt = Callable[[str, Claim], bool]


def claim_of(key: str, scale: float) -> Claim:
    """What is asked under a key, the same whenever it is asked: three blocks, some thousandths of the scale each."""
    random = np.random.default_rng(list(key.encode()))
    blocks = np.sort(random.choice(BLOCKS, EACH, replace=False))
    return {int(block): int(random.integers(1, 10)) * round(scale * 1e6) for block in blocks}


def block_name(number: int) -> str:
    return f"d/w{number}"


def by_ledger(config: dict[str, Any]) -> Attempt:
    """Ours; asks again with the same key where the answer was lost."""
    ledger = open_ledger(config["url"], key_file=config["key_file"], isolation=config.get("isolation", "locks"))

    def attempt(key: str, claim: Claim) -> bool:
        cost = {block_name(block): units / 1e9 for block, units in claim.items()}
        decision = Decision.build([Ask(pipeline=key, analyst="x", cost=cost)])
        while True:
            try:
                ledger.charge(decision, key=key)
                return True
            except BudgetExceeded:
                return False
            except LedgerUnavailable:
                time.sleep(0.05)

    return attempt


def by_plain_postgres(config: dict[str, Any]) -> Attempt:
    """One connection for each client, and one transaction for each claim on the table `plain`."""
    mine, design = local(), config["design"]

    def attempt(key: str, claim: Claim) -> bool:
        if not hasattr(mine, "connection"):
            mine.connection = psycopg.connect(config["url"])
        lock = " FOR UPDATE" if design == "for-update" else ""
        with mine.connection.transaction(), mine.connection.cursor() as cursor:
            text = f"SELECT id, spent, capacity FROM plain WHERE id = ANY(%s) ORDER BY id{lock}"
            rows = cursor.execute(text, [list(claim)]).fetchall()
            if any(spent + claim[block] > capacity for block, spent, capacity in rows):
                return False
            for block, spent, _ in rows:
                if design == "overwrite":
                    cursor.execute("UPDATE plain SET spent = %s WHERE id = %s", [spent + claim[block], block])
                else:
                    cursor.execute("UPDATE plain SET spent = spent + %s WHERE id = %s", [claim[block], block])
                cursor.execute("INSERT INTO plain_entry VALUES (%s, %s, %s)", [key, block, claim[block]])
        return True

    return attempt


def by_plain_sqlite(config: dict[str, Any]) -> Attempt:
    """The same in a file: what is read is old by the time it is written."""
    mine, design = local(), config["design"]

    def attempt(key: str, claim: Claim) -> bool:
        if not hasattr(mine, "connection"):
            mine.connection = sqlite3.connect(
                config["url"].removeprefix("sqlite:///"), timeout=60, isolation_level=None
            )
        connection = mine.connection
        text = f"SELECT id, spent, capacity FROM plain WHERE id IN ({', '.join(map(str, claim))})"
        rows = connection.execute(text).fetchall()
        if any(spent + claim[block] > capacity for block, spent, capacity in rows):
            return False
        connection.execute("BEGIN IMMEDIATE")
        for block, spent, _ in rows:
            if design == "overwrite":
                connection.execute("UPDATE plain SET spent = ? WHERE id = ?", [spent + claim[block], block])
            else:
                connection.execute("UPDATE plain SET spent = spent + ? WHERE id = ?", [claim[block], block])
            connection.execute("INSERT INTO plain_entry VALUES (?, ?, ?)", [key, block, claim[block]])
        connection.execute("COMMIT")
        return True

    return attempt


def make_plain(url: str, capacity_units: int) -> None:
    """The tables of the designs that are not ours."""
    tables = (
        "CREATE TABLE plain (id bigint PRIMARY KEY, spent bigint NOT NULL, capacity bigint NOT NULL)",
        "CREATE TABLE plain_entry (key text, block bigint, cost bigint)",
        *(f"INSERT INTO plain VALUES ({block}, 0, {capacity_units})" for block in range(BLOCKS)),
    )
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA journal_mode = WAL")
    else:
        connection = psycopg.connect(url)
    for each in tables:
        connection.execute(each)
    connection.commit()
    connection.close()


def run(config: dict[str, Any]) -> list[tuple[str, bool, float, float]]:
    """All attempts of the clients of this process."""
    if config["design"] == "ledger":
        attempt = by_ledger(config)
    else:
        attempt = (by_plain_sqlite if config["url"].startswith("sqlite") else by_plain_postgres)(config)
    made: list[tuple[str, bool, float, float]] = []
    ready = Barrier(config["clients"] + 1)

    def client(number: int) -> None:
        mine, at = [], 0
        ready.wait()
        while time.monotonic() < until and at < config.get("claims_each", 10**9):
            key = f"{config['name']}-{number}-{at}"
            claim = claim_of(key, config["scale"])
            begin = time.monotonic()
            charged = attempt(key, claim)
            mine.append((key, charged, begin, time.monotonic()))
            at += 1
        made.extend(mine)

    threads = [Thread(target=client, args=(number,)) for number in range(config["clients"])]
    until = float("inf")
    for each in threads:
        each.start()
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + config["seconds"]
    ready.wait()
    for each in threads:
        each.join()
    return made


if __name__ == "__main__":
    for row in run(json.loads(Path(sys.argv[1]).read_text())):
        print(json.dumps(row))
