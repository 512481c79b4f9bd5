"""How do submits come in? Many requests in one transaction: pipelines, numbers and answers commit together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dpbalance.clock import Clock, fresh_seed
from dpbalance.errors import DPBalanceError, InputError
from dpbalance.service.catalogue import Catalogue
from dpbalance.service.database import Database
from dpbalance.service.keeping import PENDING, read_catalogue, remembered, same, shown
from dpbalance.service.models import Ask, Sample, Share
from dpbalance.service.tables import analyst, key, pipeline, state


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """One request, of one pipeline or of many."""

    owner: str
    key: str
    digest: str
    asks: Sequence[tuple[str, Ask]]
    """For which analyst, and what."""
    many: bool
    dry_run: bool


class _Row(dict[str, Any]):
    """A row that reads like one of the database's."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class _Rows(list[_Row]):
    """The rows of one new request."""

    dry_run = False


class Submitting:
    """Takes batches of submits; one thread at a time."""

    def __init__(self, database: Database, clock: Clock, orders: Sequence[float] | None) -> None:
        self._database, self._clock, self._orders = database, clock, orders
        self._catalogue: Catalogue | None = None

    def run(self, batch: Sequence[Submit]) -> list[dict[str, Any] | Exception]:
        """The answer to each; a key that another replica took meanwhile makes each go alone."""
        try:
            return self._run(batch)
        except sa.exc.IntegrityError:
            if len(batch) == 1:
                return self._run(batch)
            return [self.run([each])[0] for each in batch]

    def _run(self, batch: Sequence[Submit]) -> list[dict[str, Any] | Exception]:
        now = self._clock.now()
        with self._database.writing() as connection:
            self._catalogue = catalogue = read_catalogue(connection, self._catalogue)
            known = remembered(connection, [(each.owner, each.key) for each in batch])
            names = {name for each in batch for name, _ in each.asks}
            found = connection.execute(sa.select(analyst.c.name).where(analyst.c.name.in_(names))).scalars()
            analysts = set(found)
            made = [self._rows(each, known, catalogue, analysts, now) for each in batch]
            count = sum(len(rows) for rows in made if isinstance(rows, _Rows) and not rows.dry_run)
            last = 0
            if count:
                taken = state.update().values(pipelines=state.c.pipelines + count).returning(state.c.pipelines)
                last = int(connection.execute(taken).scalar_one())
            answers, rows, keys = self._numbered(batch, made, last - count, now)
            if rows:
                connection.execute(pipeline.insert(), rows)
            if keys:
                connection.execute(key.insert(), keys)
        return answers

    def _rows(
        self,
        one: Submit,
        known: dict[tuple[str, str], tuple[str, str]],
        there: Catalogue,
        analysts: set[str],
        now: float,
    ) -> _Rows | dict[str, Any] | Exception:
        """The rows of a new request, or the answer it had before, or why it is refused."""
        try:
            if (one.owner, one.key) in known:
                return same(known[one.owner, one.key], one.key, one.digest)
            rows = _Rows(self._row(name, ask, there, analysts, now) for name, ask in one.asks)
            rows.dry_run = one.dry_run
            return rows
        except DPBalanceError as problem:
            return problem

    def _row(self, name: str, ask: Ask, there: Catalogue, analysts: set[str], now: float) -> _Row:
        if name not in analysts:
            raise InputError(f"there is no analyst {name!r}", hint="dpbalance analyst add NAME")
        seed = fresh_seed() if isinstance(ask.devices, Share | Sample) else None
        demand = there.demand(ask, seed or 0, self._orders)
        return _Row(
            analyst=name,
            state=PENDING,
            label=ask.label,
            submitted=now,
            weight=ask.weight,
            loss=ask.loss,
            max_multiple=ask.max_multiple,
            deadline=ask.deadline,
            asked=ask.model_dump_json(include={"devices", "windows", "cost", "blocks"}, exclude_none=True),
            demand=json.dumps(demand, separators=(",", ":")),
            seed=seed,
        )

    def _numbered(
        self, batch: Sequence[Submit], made: Sequence[_Rows | dict[str, Any] | Exception], number: int, now: float
    ) -> tuple[list[dict[str, Any] | Exception], list[_Row], list[dict[str, Any]]]:
        answers: list[dict[str, Any] | Exception] = []
        rows: list[_Row] = []
        keys = []
        for one, each in zip(batch, made, strict=True):
            if not isinstance(each, _Rows):
                answers.append(each)
                continue
            for row in each:
                number += not one.dry_run
                row["number"] = 0 if one.dry_run else number
            answer = _answer(one, each)
            answers.append(answer)
            rows += [] if one.dry_run else each
            told = {"owner": one.owner, "key": one.key, "digest": one.digest, "created": now}
            keys.append({**told, "answer": json.dumps(answer)})
        return answers, rows, keys


def _answer(one: Submit, rows: list[_Row]) -> dict[str, Any]:
    if one.many:
        return {"ids": [f"p{row.number}" for row in rows], "dry_run": one.dry_run}
    empty = dict.fromkeys(("reason", "denied_in", "round", "claim", "multiple"))
    return shown(_Row(**rows[0], **empty))
