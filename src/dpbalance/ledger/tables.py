"""Which tables does a ledger have? The same in every store; amounts have one column for each order."""

from __future__ import annotations

import re
from typing import Literal

from dpbalance.errors import InputError

Kind = Literal["int", "real", "text", "bytes"]
Columns = dict[str, Kind]

FORMAT = "dpbalance-ledger/1"

ORDERS_MAX = 64
"""More orders than anybody counts at; each is three columns of the balance."""


def tables(width: int) -> dict[str, Columns]:
    """Every table with its columns, for so many orders; rows of all but head and balance are never edited, except
    for the stage of a claim, which is a balance of the journal, too.
    """
    return {
        "meta": {"name": "text", "value": "text"},
        "head": {
            "seq": "int",
            "hash": "text",
            "token": "int",
            "holder": "text",
            "until": "real",
            "devices": "int",
            "blocks": "int",
            "claims": "int",
        },
        "device": {"id": "int", "name": "text", "contributor": "text"},
        "block": {"id": "int", "name": "text", "sort": "bytes", "device": "int"},
        "balance": {"block": "int", "state": "int", **_each("spent", width), **_bounds(width)},
        "term": {"seq": "int", "block": "int", "state": "int", **_bounds(width)},
        "journal": {
            "seq": "int",
            "time": "real",
            "kind": "text",
            "actor": "text",
            "key": "text",
            "digest": "text",
            "body": "text",
            "prev": "text",
            "hash": "text",
            "signature": "text",
        },
        "claim": {
            "id": "int",
            "seq": "int",
            "pipeline": "text",
            "analyst": "text",
            "multiple": "real",
            "stage": "int",
            "reason": "text",
        },
        "entry": {"claim": "int", "block": "int", **_each("cost", width)},
    }


def amounts(name: str, width: int) -> tuple[str, ...]:
    """The columns of an amount."""
    return tuple(f"{name}_{at}" for at in range(width))


def checks(width: int) -> dict[str, str]:
    """What the database itself refuses in a balance, whoever writes it: more spent than unlocked at every order."""
    holds = " OR ".join(f"spent_{at} <= unlocked_{at}" for at in range(width))
    bounds = " AND ".join(f"unlocked_{at} <= capacity_{at} AND spent_{at} >= 0" for at in range(width))
    return {"balance_holds": holds, "balance_in_bounds": bounds}


def sort_key(name: str) -> bytes:
    """Bytes that compare as `natural` names do, so that an index keeps blocks in the order of a Round.

    >>> sorted(["d10/w1", "d9/w2", "d9", "e"], key=sort_key)
    ['d9', 'd9/w2', 'd10/w1', 'e']
    """
    parts = re.split(r"(\d+)", name)
    made = bytearray(parts[0].encode() + b"\0")
    for digits, text in zip(parts[1::2], parts[2::2], strict=True):
        number = str(int(digits)).encode()
        made += len(number).to_bytes(2, "big") + number + text.encode() + b"\0"
    return bytes(made + b"\0\0" + name.encode())


def check_width(orders: tuple[float, ...] | None) -> int:
    """How many orders, which must not be too many."""
    width = 1 if orders is None else len(orders)
    if width > ORDERS_MAX:
        raise InputError(f"a ledger counts at {ORDERS_MAX} orders at most, not {width}")
    return width


def _each(name: str, width: int) -> Columns:
    return dict.fromkeys(amounts(name, width), "int")


def _bounds(width: int) -> Columns:
    return {**_each("unlocked", width), **_each("capacity", width)}
