"""Who spent what, when, and on whose decision? Statements for people, and all tables as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbalance.accounting.people import best_order, epsilon
from dpbalance.amounts import MAX_UNITS
from dpbalance.errors import FileFormatError, NotInLedger, OptionError
from dpbalance.ledger.page import Entries
from dpbalance.ledger.requests import Stage, shown
from dpbalance.ledger.store import Among, Reader, Store
from dpbalance.ledger.tables import tables

if TYPE_CHECKING:
    from dpbalance.ledger.ledger import Ledger

OF = ("device", "block", "analyst", "pipeline")
"""Whose statement there can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One grant on one block, or one denial (with no block)."""

    seq: int
    time: float
    grant: int
    pipeline: str
    analyst: str
    stage: str
    scheduler: str
    actor: str
    block: str | None
    cost: Any
    """In Renyi epsilon: one number, or one for each order."""
    epsilon: float
    """What this charge alone means as (epsilon, delta)."""
    order: float | None
    """The order that proves it."""
    reason: str


def statement(ledger: Ledger, of: Mapping[str, str], delta: float) -> list[Line]:
    """The lines of one device, block, analyst or pipeline, or all, in the order of the journal."""
    if len(of) > 1 or not set(of) <= set(OF):
        raise OptionError(f"a statement is of one of {', '.join(OF)}, not of {', '.join(sorted(of))}")
    with ledger.store.reading() as reader:
        entries, claims = _chosen(reader, dict(of))
        decided = _decided(reader, {claim[1] for claim in claims.values()})
        names = _names(reader, entries)
    lines = []
    meaning: dict[tuple[int, ...], tuple[float, float | None]] = {}
    for grant, block, cost in zip(entries.claim.tolist(), entries.block.tolist(), entries.cost, strict=True):
        amount = tuple(cost.tolist())
        if amount not in meaning:
            meaning[amount] = _meaning(amount, ledger.orders, delta)
        lines.append(_line(claims[grant], decided, names[block], shown(cost, ledger.orders), meaning[amount]))
    charged = set(entries.claim.tolist())
    lines += [_line(claim, decided, None, None, (0.0, None)) for grant, claim in claims.items() if grant not in charged]
    return sorted(lines, key=lambda line: (line.seq, line.grant))


def told_reason(reason: str) -> dict[str, Any]:
    """What a denial says: its reason, and the block with what was asked and left, where one is to blame."""
    told = json.loads(reason) if reason.startswith("{") else {"reason": reason}
    return dict(told) if isinstance(told, dict) else {"reason": reason}


def people(ledger: Ledger, block: str, delta: float) -> float:
    """What has been spent of a block altogether, as the epsilon at this delta."""
    balance = ledger.balances([block])[0]
    return _meaning(tuple(np.minimum(balance.spent, MAX_UNITS).tolist()), ledger.orders, delta)[0]


def export(store: Store, folder: Path, format: str) -> list[Path]:
    """Every table as CSV or Parquet, all as of one moment; amounts in whole units."""
    if format not in ("csv", "parquet"):
        raise OptionError(f"the format of an export is csv or parquet, not {format!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with store.reading() as reader:
            return [
                _export_table(reader, table, list(columns), folder, format)
                for table, columns in tables(store.width).items()
                if table not in ("meta", "head")
            ]
    except OSError as problem:
        raise FileFormatError(f"cannot write to {folder}: {problem.strerror or problem}") from None


def _export_table(reader: Reader, table: str, columns: list[str], folder: Path, format: str) -> Path:
    shown_ = [name for name in columns if name != "sort"]
    path = folder / f"{table}.{format}"
    rows = reader.rows(table, shown_, order=shown_[:2])
    if format == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(shown_)
            writer.writerows(rows)
        return path
    try:
        import polars
    except ImportError:
        raise OptionError(
            "Parquet needs polars, which is not installed", hint="pip install 'dpbalance[results]'"
        ) from None
    kinds: dict[str, Any] = {"int": polars.Int64, "real": polars.Float64, "text": polars.String}
    named = {name: kinds[tables(reader.width)[table][name]] for name in shown_}
    polars.DataFrame(list(rows), schema=named, orient="row").write_parquet(path)
    return path


def _chosen(reader: Reader, of: dict[str, str]) -> tuple[Entries, dict[int, tuple[Any, ...]]]:
    """The charges and the grants and denials that a statement is about."""
    columns = list(tables(reader.width)["claim"])
    kind, name = next(iter(of.items()), ("", ""))
    among: Among | None = None
    if kind in ("block", "device"):
        blocks = _blocks(reader, kind, name)
        entries = reader.entries(("block", list(blocks)))
        among = ("id", np.unique(entries.claim))
    elif kind:
        among = (kind, [name])
    claims = {row[0]: row for row in reader.rows("claim", columns, among=among, order=("id",))}
    if kind in ("block", "device"):
        names = set(blocks.values())
        for row in reader.rows("claim", columns, among=("stage", [int(Stage.DENIED)]), order=("id",)):
            if told_reason(row[-1]).get("block") in names:
                claims[row[0]] = row
    else:
        entries = reader.entries(("claim", list(claims)) if kind else None)
    return entries, claims


def _blocks(reader: Reader, kind: str, name: str) -> dict[int, str]:
    found = [row[0] for row in reader.rows(kind, ["id"], among=("name", [name]))]
    if not found:
        raise NotInLedger(f"{kind} {name[:256]!r} is not in the ledger", hint="dpbalance block list")
    if kind == "block":
        return {found[0]: name}
    return dict(reader.rows("block", ["id", "name"], among=("device", found), order=("id",)))


def _decided(reader: Reader, seqs: Iterable[int]) -> dict[int, tuple[float, str, str]]:
    among: Among = ("seq", sorted(seqs))
    return {
        seq: (time, actor, json.loads(body)["scheduler"])
        for seq, time, actor, body in reader.rows("journal", ["seq", "time", "actor", "body"], among=among)
    }


def _names(reader: Reader, entries: Entries) -> dict[int, str]:
    rows: Iterator[tuple[Any, ...]] = reader.rows("block", ["id", "name"], among=("id", np.unique(entries.block)))
    return dict(rows)


def _meaning(amount: tuple[int, ...], orders: tuple[float, ...] | None, delta: float) -> tuple[float, float | None]:
    if not any(amount):
        return 0.0, None
    return epsilon(amount, orders, delta), best_order(amount, orders, delta)


def _line(
    claim: tuple[Any, ...],
    decided: Mapping[int, tuple[float, str, str]],
    block: str | None,
    cost: Any,
    meaning: tuple[float, float | None],
) -> Line:
    grant, seq, pipeline, analyst, _, stage, reason = claim
    time, actor, scheduler = decided[seq]
    return Line(
        seq=seq,
        time=time,
        grant=grant,
        pipeline=pipeline,
        analyst=analyst,
        stage=Stage(stage).word,
        scheduler=scheduler,
        actor=actor,
        block=block,
        cost=cost,
        epsilon=meaning[0],
        order=meaning[1],
        reason=reason,
    )
