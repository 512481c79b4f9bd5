"""How are processes of clients let loose on one store, and what did they see?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger_clients
from ledger_clients import claim_of

from dpbalance.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Attempt:
    key: str
    charged: bool
    begin: float
    end: float


def race(
    folder: Path,
    config: dict[str, Any],
    *,
    processes: int = 2,
    clients: int = 64,
    meanwhile: Callable[[], None] | None = None,
) -> list[Attempt]:
    """Every attempt of so many clients, who begin together."""
    running = []
    for number in range(processes):
        path = folder / f"{config['design']}-{number}.json"
        path.write_text(json.dumps({**config, "clients": clients // processes, "name": f"c{number}"}))
        command = [sys.executable, ledger_clients.__file__, str(path)]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    try:
        for each in running:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in running:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        if meanwhile is not None:
            meanwhile()
        told = [each.communicate()[0] for each in running]
    finally:
        for each in running:
            if each.poll() is None:  # something went wrong before they were done
                each.kill()
                each.communicate()
    assert [each.returncode for each in running] == [0] * processes
    return [Attempt(*json.loads(line)) for text in told for line in text.splitlines()]


def overspent(attempts: list[Attempt], scale: float, capacity_units: int) -> list[float]:
    """By how much each overspent block was overspent, as a share of its capacity, if every yes was meant."""
    total: dict[int, int] = {}
    for each in attempts:
        if each.charged:
            for block, units in claim_of(each.key, scale).items():
                total[block] = total.get(block, 0) + units
    return [sum_ / capacity_units - 1 for sum_ in total.values() if sum_ > capacity_units]


def replayed(ledger: Ledger, attempts: list[Attempt], scale: float, capacity_units: int) -> None:
    """Every answer in the order of the numbers: each yes fitted, each no did not, and nobody overtook anybody.

    Real time: what was answered before something else was asked has the smaller number.
    """
    with ledger.store.reading() as reader:
        order = {key: (seq, kind) for key, seq, kind in reader.rows("journal", ["key", "seq", "kind"]) if key}
    assert len({each.key for each in attempts}) == len(attempts)
    left = dict.fromkeys(range(ledger_clients.BLOCKS), capacity_units)
    answered = {each.key: each for each in attempts}
    for key, (_, kind) in sorted(order.items(), key=lambda item: item[1]):
        claim = claim_of(key, scale)
        fits = all(left[block] >= units for block, units in claim.items())
        assert fits == (kind == "charge"), key
        if fits:
            left = {block: units - claim.get(block, 0) for block, units in left.items()}
        if key in answered:
            assert answered[key].charged == fits, key
    assert set(answered) <= set(order)
    begun = sorted(attempts, key=lambda each: each.begin)
    ended = sorted(attempts, key=lambda each: each.end)
    at, newest = 0, 0
    for each in begun:
        while at < len(ended) and ended[at].end < each.begin:
            newest = max(newest, order[ended[at].key][0])
            at += 1
        assert order[each.key][0] > newest, "an answer was overtaken by a later question"
    by_block = {balance.block: int(balance.spent[0]) for balance in ledger.balances()}
    for block, rest in left.items():
        assert by_block[ledger_clients.block_name(block)] == capacity_units - rest
