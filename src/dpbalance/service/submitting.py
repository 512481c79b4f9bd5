"""How do submits come in? Many requests in one transaction: pipelines, numbers and answers commit together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dpbalance.clock import Clock, fresh_seed
from dpbalance.errors import DPBalanceError, InputError, LedgerUnavailable, TooLarge, TooMany
from dpbalance.service.catalogue import Catalogue
from dpbalance.service.config import Config
from dpbalance.service.database import Database
from dpbalance.service.keeping import DECIDING, PENDING, chunks, read_catalogue, remembered, same, shown
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

    def __init__(self, database: Database, clock: Clock, orders: Sequence[float] | None, config: Config) -> None:
        self._database, self._clock, self._orders = database, clock, orders
        self._config = config
        self._catalogue: Catalogue | None = None

    def run(self, batch: Sequence[Submit]) -> list[dict[str, Any] | Exception]:
        """The answer to each. Where one breaks the transaction, as by a key another replica took, each goes alone."""
        try:
            return self._run(batch)
        except LedgerUnavailable:
            raise
        except Exception as problem:
            if len(batch) > 1:
                return [self.run([each])[0] for each in batch]
            return self._run(batch) if isinstance(problem, sa.exc.IntegrityError) else [problem]

    def _run(self, batch: Sequence[Submit]) -> list[dict[str, Any] | Exception]:
        now = self._clock.now()
        with self._database.writing() as connection:
            self._catalogue = catalogue = read_catalogue(connection, self._catalogue)
            known = remembered(connection, [(each.owner, each.key) for each in batch])
            names = {name for each in batch for name, _ in each.asks}
            waiting = self._waiting(connection, sorted(names))
            shared: dict[str, str] = {}
            made = [self._rows(each, known, catalogue, waiting, shared, now) for each in batch]
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

    @staticmethod
    def _waiting(connection: sa.Connection, names: Sequence[str]) -> dict[str, int]:
        """How many pipelines wait of each of these analysts, as far as they are there."""
        found: dict[str, int] = {}
        for some in chunks(names):
            there = connection.execute(sa.select(analyst.c.name).where(analyst.c.name.in_(some))).scalars()
            found.update(dict.fromkeys(there, 0))
            mine = pipeline.c.state.in_([PENDING, DECIDING]) & pipeline.c.analyst.in_(some)
            counted = sa.select(pipeline.c.analyst, sa.func.count()).where(mine).group_by(pipeline.c.analyst)
            found.update({name: count for name, count in connection.execute(counted) if name in found})
        return found

    def _bound(self, one: Submit, there: Catalogue, waiting: dict[str, int]) -> None:
        """Before anything is drawn or written out: is this more than one may ask for?"""
        total = 0
        for at, (_, ask) in enumerate(one.asks):
            size = there.size(ask)
            total += size
            if size > self._config.blocks_max:
                raise TooLarge(f"pipeline {at} asks for {size} blocks, of which it may {self._config.blocks_max}")
        if total > self._config.demands_max:
            raise TooLarge(f"all ask for {total} blocks, of which one request may {self._config.demands_max}")
        more = Counter(name for name, _ in one.asks)
        for name, count in more.items():
            if waiting.get(name, 0) + count > self._config.pending_max:
                raise TooMany(f"{waiting.get(name, 0)} pipelines of {name} wait, of {self._config.pending_max} at most")
        if not one.dry_run:
            waiting.update({name: waiting[name] + count for name, count in more.items() if name in waiting})

    def _rows(
        self,
        one: Submit,
        known: dict[tuple[str, str], tuple[str, str]],
        there: Catalogue,
        waiting: dict[str, int],
        shared: dict[str, str],
        now: float,
    ) -> _Rows | dict[str, Any] | Exception:
        """The rows of a new request, or the answer it had before, or why it is refused."""
        try:
            if (one.owner, one.key) in known:
                return same(known[one.owner, one.key], one.key, one.digest)
            self._bound(one, there, waiting)
            rows = _Rows(self._row(name, ask, there, waiting, shared, now) for name, ask in one.asks)
            rows.dry_run = one.dry_run
            return rows
        except DPBalanceError as problem:
            return problem

    def _row(
        self, name: str, ask: Ask, there: Catalogue, waiting: dict[str, int], shared: dict[str, str], now: float
    ) -> _Row:
        if name not in waiting:
            raise InputError(f"there is no analyst {name!r}", hint="dpbalance analyst add NAME")
        seed = fresh_seed() if isinstance(ask.devices, Share | Sample) else None
        if ask.deadline is not None and ask.deadline <= now:
            raise InputError(f"the deadline {ask.deadline:.0f} has passed: it is {now:.0f}")
        asked = ask.model_dump_json(include={"devices", "windows", "cost", "blocks"}, exclude_none=True)
        demand = shared.get(asked) if seed is None else None
        if demand is None:
            demand = json.dumps(there.demand(ask, seed or 0, self._orders), separators=(",", ":"))
            shared.update({asked: demand} if seed is None else {})
        return _Row(
            analyst=name,
            state=PENDING,
            label=ask.label,
            submitted=now,
            weight=ask.weight,
            loss=ask.loss,
            max_multiple=ask.max_multiple,
            deadline=ask.deadline,
            asked=asked,
            demand=demand,
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
