"""What happens in a round? Blocks open, pipelines expire, one decision is made, charged and recorded.

A round can be stopped between any two lines. What is to be charged is written down first, under a number that is also
the ledger's key; whoever leads next asks the ledger for that key, and only then knows what to write behind it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from dpbalance.allocation import Allocation
from dpbalance.clock import Clock, stopwatch
from dpbalance.demand import Pipeline
from dpbalance.errors import BlockClosed, BudgetExceeded, DPBalanceError
from dpbalance.ledger import Decision, Ledger, Snapshot, Stage, State
from dpbalance.service.catalogue import block_name
from dpbalance.service.database import Database
from dpbalance.service.keeping import DECIDING, GRANTED, PENDING, add_blocks, chunks, forget, read_settings, read_state
from dpbalance.service.opening import open_blocks, retire_blocks
from dpbalance.service.settings import Deciding, Settings
from dpbalance.service.tables import analyst, block, pipeline, round_, state

ATTEMPTS = 3
"""So often a round is decided again because nothing that was chosen can be charged any more."""

DROPS_MAX = 20
"""So often what is left of one decision is charged again without the grants the ledger refused."""

LATER = {Stage.DISPATCHED: "running", Stage.COMPLETED: "completed", Stage.FAILED: "failed", Stage.VOIDED: "voided"}
"""What becomes of a granted pipeline, by the stage of its grant in the ledger."""

MOVES_MAX = 10_000
"""Rows of the journal that are looked through at once for grants that moved on."""


class Pending:
    """The pipelines that wait, read once and kept; pipelines never change, there are only more and fewer of them."""

    def __init__(self) -> None:
        self.pipelines: dict[int, Pipeline] = {}
        self.reasons: dict[int, str] = {}

    def refresh(self, connection: sa.Connection) -> None:
        """Let go of those that wait no more, and read those that are new."""
        waiting = pipeline.c.state == PENDING
        still = set(connection.execute(sa.select(pipeline.c.number).where(waiting)).scalars())
        for gone in self.pipelines.keys() - still:
            del self.pipelines[gone], self.reasons[gone]
        new = still - self.pipelines.keys()
        if not new:
            return
        names = ("number", "analyst", "submitted", "weight", "loss", "max_multiple", "demand", "reason")
        chosen = sa.select(*(pipeline.c[each] for each in names)).where(waiting & (pipeline.c.number >= min(new)))
        for row in connection.execute(chosen.order_by(pipeline.c.number)):
            if row.number in new:
                self.pipelines[row.number] = Pipeline(
                    id=f"p{row.number}",
                    analyst=row.analyst,
                    demand=json.loads(row.demand),
                    submitted=row.submitted,
                    weight=row.weight,
                    loss=row.loss,
                    max_multiple=row.max_multiple,
                )
                self.reasons[row.number] = "" if row.reason is None else json.loads(row.reason)["reason"]


def priorities_of(connection: sa.Connection, among: set[str]) -> dict[str, float]:
    """Analysts that count as more or less than one, of those who have something pending."""
    rows = connection.execute(sa.select(analyst.c.name, analyst.c.priority).where(analyst.c.priority != 1.0))
    return {name: priority for name, priority in rows if name in among}


def decided(snapshot: Snapshot, by: Deciding) -> Allocation:
    """A checked decision of one of these schedulers."""
    allocation = by.decider().decide(snapshot.round)
    if type(allocation) is not Allocation or allocation.round is not snapshot.round:
        raise DPBalanceError(f"{by.scheduler} returned a {type(allocation).__name__} that is no decision on this round")
    allocation.check()
    return allocation


def taken(database: Database, ledger: Ledger, pending: Pending, now: float) -> Snapshot | None:
    """The present state as a round, or None when nothing is pending."""
    with database.reading() as connection:
        pending.refresh(connection)
        listed = list(pending.pipelines.values())
        priorities = priorities_of(connection, {each.analyst for each in listed})
    return ledger.snapshot(listed, now=now, priorities=priorities) if listed else None


def granted(allocation: Allocation) -> list[dict[str, Any]]:
    """What is granted, as a round records it."""
    return [
        {"pipeline": each.pipeline, "analyst": each.analyst, "multiple": each.multiple} for each in allocation.grants
    ]


def narrowed(document: dict[str, Any], gone: set[str], why: str) -> dict[str, Any]:
    """The record of a round without these grants: a part of what fits fits too."""
    grants = [each for each in document["grants"] if each["pipeline"] not in gone]
    dropped = len(document["grants"]) - len(grants)
    if not dropped:
        return document
    notes = [*document["notes"], f"{dropped} of {len(document['grants'])} grants were left out: {why}"]
    return {**document, "grants": grants, "granted": len(grants), "notes": notes}


def part(decision: Decision, names: set[str]) -> Decision:
    """The charges of these pipelines alone."""
    keep = np.array([each in names for each in decision.pipelines], dtype=bool)
    if keep.all():
        return decision
    rows = keep[decision.owner]
    used, block_ = np.unique(decision.block[rows], return_inverse=True)
    kept = np.flatnonzero(keep).tolist()
    return replace(
        decision,
        pipelines=tuple(decision.pipelines[at] for at in kept),
        analysts=tuple(decision.analysts[at] for at in kept),
        multiples=tuple(decision.multiples[at] for at in kept),
        blocks=tuple(decision.blocks[at] for at in used.tolist()),
        owner=(np.cumsum(keep) - 1)[decision.owner[rows]],
        block=block_,
        cost=decision.cost[rows],
    )


class Rounds:
    """The hands of whoever holds the lease under this token."""

    def __init__(self, database: Database, ledger: Ledger, clock: Clock, token: int) -> None:
        self.database, self.ledger, self.clock, self.token = database, ledger, clock, token
        self.pending = Pending()

    def heal(self) -> None:
        """Finish or undo what another leader left half done, and take in blocks the ledger alone knows."""
        self._heal_rounds()
        self._take_in_blocks()

    def _take_in_blocks(self) -> None:
        """Whoever wrote a block to the ledger may have been stopped before it was known here."""
        with self.database.reading() as connection:
            known = read_state(connection).blocks
        if self.ledger.head().blocks != known:
            with self.ledger.store.reading() as reader:
                devices: dict[int, str] = dict(reader.rows("device", ["id", "name"]))
                listed = [
                    (devices[device], name.removeprefix(devices[device]).removeprefix("/"))
                    for name, device in reader.rows("block", ["name", "device"])
                ]
            with self.database.writing() as connection:
                parts = read_settings(connection)[0].rule.parts
                add_blocks(connection, listed, self.clock.now(), parts)

    def run(self, settings: Settings, *, fallback: str = "") -> dict[str, Any] | None:
        """One round; what is to be told of it, or None when nothing was pending. `fallback` is why another decides."""
        began, now = stopwatch(), self.clock.now()
        self._heal_rounds()  # one that was paused may wake up, and write down what it may not charge any more
        self._take_in_blocks()
        self._housekeeping(settings, now)
        open_blocks(self.database, self.ledger, settings.rule, now)
        retire_blocks(self.database, self.ledger, settings.retire_after, now)
        by: Deciding = Deciding(scheduler=settings.fallback) if fallback else settings
        for attempt in range(ATTEMPTS):
            snapshot = taken(self.database, self.ledger, self.pending, now)
            if snapshot is None:
                return None
            before = stopwatch()
            try:
                allocation = decided(snapshot, by)
            except Exception as problem:  # a scheduler may come from anywhere; another decides instead
                if fallback:
                    raise
                fallback = " ".join(str(problem).split())[:300]
                by = Deciding(scheduler=settings.fallback)
                allocation = decided(snapshot, by)
            solve = stopwatch() - before
            document = self._document(allocation, snapshot, fallback)
            done = self._carry(Decision.of(allocation), document, snapshot.seq, now, attempt + 1 == ATTEMPTS)
            if done is not None:
                number, document, claims = done
                self._settle(number, document, claims, stopwatch() - began)
                return self._told(number, document, snapshot, solve, stopwatch() - began, attempt)
        raise DPBalanceError(f"the state changed under {ATTEMPTS} decisions in a row", hint="the next round")

    def _housekeeping(self, settings: Settings, now: float) -> None:
        """Whoever waited too long leaves; grants that moved on are told; old rounds and keys are let go of."""
        late = pipeline.c.deadline < now
        if settings.timeout is not None:
            late = late | (pipeline.c.submitted < now - settings.timeout)
        with self.database.writing() as connection:
            gone = pipeline.update().where((pipeline.c.state == PENDING) & late).values(state="expired")
            connection.execute(gone)
            row = read_state(connection)
            connection.execute(round_.delete().where(round_.c.number <= row.rounds - settings.rounds_kept))
            forget(connection, now)
            self._moves(connection, int(row.moved_through))

    def _moves(self, connection: sa.Connection, through: int) -> None:
        last = min(self.ledger.head().seq, through + MOVES_MAX)
        if last == through:
            return
        with self.ledger.store.reading() as reader:
            among = ("seq", list(range(through + 1, last + 1)))
            rows = list(reader.rows("journal", ["kind", "body"], among=among, order=("seq",)))
        words = {each.word: LATER[each] for each in LATER}
        for kind, body in rows:
            for part in chunks(json.loads(body)["grants"]) if kind in words else ():
                mine = pipeline.c.claim.in_(part)
                connection.execute(pipeline.update().where(mine).values(state=words[kind]))
        connection.execute(state.update().values(moved_through=last))

    def _document(self, allocation: Allocation, snapshot: Snapshot, fallback: str) -> dict[str, Any]:
        """What is kept of a round: everything it granted, and each denial whose reason is new."""
        denials, counts = [], Counter[str]()
        for each in allocation.denied:
            counts[each.reason] += 1
            if self.pending.reasons.get(int(each.pipeline[1:])) != each.reason:
                first = asdict(each.shortages[0]) if each.shortages else {}
                denials.append({"pipeline": each.pipeline, "analyst": each.analyst, "reason": each.reason, **first})
        grants = granted(allocation)
        notes = [*allocation.notes, *([f"decided by the fallback: {fallback}"] if fallback else [])]
        return {
            "scheduler": allocation.scheduler,
            "options": {name: str(value) for name, value in allocation.options.items()},
            "metrics": asdict(allocation.metrics),
            "pending": len(allocation.round.pipelines),
            "granted": len(grants),
            "denied": dict(counts),
            "notes": notes,
            "seen": snapshot.seq,
            "grants": grants,
            "denials": denials,
        }

    def _carry(
        self, decision: Decision, document: dict[str, Any], seen: int, now: float, last: bool
    ) -> tuple[int, dict[str, Any], range] | None:
        """Charge all of a decision that can still be charged; None if that is nothing, unless this is the last time.

        Whoever takes a pipeline back or closes a block meanwhile keeps nobody waiting but those whom it concerns.
        """
        for _ in range(DROPS_MAX):
            intended = self._intend(document, now, last)
            if intended is None:
                return None
            number, document = intended
            claims = self._charge(number, decision, document, seen)
            if claims is not None:
                return number, document, claims
            culprits = self._culprits(number, part(decision, {each["pipeline"] for each in document["grants"]}))
            document = narrowed(document, culprits, "a block was closed or spent meanwhile")
            if not document["grants"] and not last:
                return None
        return None

    def _intend(self, document: dict[str, Any], now: float, last: bool) -> tuple[int, dict[str, Any]] | None:
        """The number under which this is charged, and what of it still waits; None if that is nothing."""
        numbers = [int(each["pipeline"][1:]) for each in document["grants"]]
        in_time = pipeline.c.deadline.is_(None) | (pipeline.c.deadline >= self.clock.now())
        with self.database.writing() as connection:
            taken_ = state.update().values(rounds=state.c.rounds + 1).returning(state.c.rounds)
            number = int(connection.execute(taken_).scalar_one())
            still: set[int] = set()
            for some in chunks(numbers):
                mine = (pipeline.c.state == PENDING) & in_time & pipeline.c.number.in_(some)
                chosen = pipeline.update().where(mine).values(state=DECIDING, round=number)
                still.update(connection.execute(chosen.returning(pipeline.c.number)).scalars())
            if numbers and not still and not last:
                connection.rollback()
                return None
            gone = {f"p{each}" for each in numbers if each not in still}
            document = narrowed(document, gone, "they wait no more")
            row = {"number": number, "state": "charging", "started": now, "document": json.dumps(document)}
            connection.execute(round_.insert(), row)
        return number, document

    def _charge(self, number: int, decision: Decision, document: dict[str, Any], seen: int) -> range | None:
        """The numbers of the grants; None where the ledger holds what the snapshot did not show."""
        if not document["grants"] and not document["denials"]:
            return range(0)  # nothing new: there is nothing to record in the ledger
        names = {each["pipeline"] for each in document["grants"]}
        decision = replace(part(decision, names), denied=tuple(document["denials"]))
        order = {each: at for at, each in enumerate(decision.pipelines)}
        document["grants"].sort(key=lambda each: order[each["pipeline"]])
        try:
            receipt = self.ledger.charge(decision, key=f"round-{number}", token=self.token, seen=seen)
        except (BudgetExceeded, BlockClosed) as refusal:
            self._undo(number, "refused", {**document, "notes": [*document["notes"], str(refusal)]})
            return None
        return receipt.grants

    def _culprits(self, number: int, decision: Decision) -> set[str]:
        """Grants on the block the ledger named when it refused this round, or on one that cannot hold them now."""
        with self.ledger.store.reading() as reader:
            seqs = [seq for (seq,) in reader.rows("journal", ["seq"], among=("key", [f"round-{number}"]))]
            told = {reason for (reason,) in reader.rows("claim", ["reason"], among=("seq", seqs)) if reason}
        named = {each.get("block") for each in map(json.loads, told) if each.get("reason") == "refused"}
        asked = np.zeros((len(decision.blocks), decision.cost.shape[1]))
        np.add.at(asked, decision.block, decision.cost)
        bad = [
            each.block in named or each.state != State.OPEN or not (each.spent + more <= each.unlocked).any()
            for each, more in zip(self.ledger.balances(list(decision.blocks)), asked, strict=True)
        ]
        return {decision.pipelines[at] for at in decision.owner[np.array(bad, dtype=bool)[decision.block]].tolist()}

    def _settle(self, number: int, document: dict[str, Any], grants: range, seconds: float | None) -> None:
        """Write behind the charge what it came to."""
        with self.database.writing() as connection:
            if document["grants"]:
                mine = (pipeline.c.number == sa.bindparam("n")) & (pipeline.c.state == DECIDING)
                put = pipeline.update().where(mine)
                put = put.values(state=GRANTED, claim=sa.bindparam("c"), multiple=sa.bindparam("m"))
                rows = [
                    {"n": int(each["pipeline"][1:]), "c": grant, "m": each["multiple"]}
                    for each, grant in zip(document["grants"], grants, strict=True)
                ]
                connection.execute(put, rows)
            if document["denials"]:
                why = pipeline.update().where(pipeline.c.number == sa.bindparam("n"))
                told = ("reason", "block", "asked", "left", "short")
                rows = [
                    {
                        "n": int(each["pipeline"][1:]),
                        "r": json.dumps({name: each[name] for name in told if name in each}),
                    }
                    for each in document["denials"]
                ]
                connection.execute(why.values(reason=sa.bindparam("r"), denied_in=number), rows)
            done = round_.update().where(round_.c.number == number)
            connection.execute(done.values(state="decided", seconds=seconds))
        for each in document["denials"]:
            self.pending.reasons[int(each["pipeline"][1:])] = each["reason"]

    def _undo(self, number: int, word: str, document: dict[str, Any]) -> None:
        with self.database.writing() as connection:
            mine = (pipeline.c.round == number) & (pipeline.c.state == DECIDING)
            connection.execute(pipeline.update().where(mine).values(state=PENDING, round=None))
            row = {"state": word, "document": json.dumps(document)}
            connection.execute(round_.update().where(round_.c.number == number).values(row))

    def _heal_rounds(self) -> None:
        with self.database.reading() as connection:
            half = connection.execute(sa.select(round_).where(round_.c.state == "charging")).all()
        for row in half:
            self._heal_round(int(row.number), json.loads(row.document))

    def _heal_round(self, number: int, document: dict[str, Any]) -> None:
        """The ledger knows whether this was charged; no earlier leader can charge it any more."""
        with self.ledger.store.reading() as reader:
            found = list(reader.rows("journal", ["seq", "kind"], among=("key", [f"round-{number}"])))
            charged = bool(found) and found[0][1] == "charge"
            rows = reader.rows("claim", ["id", "pipeline"], among=("seq", [found[0][0]])) if charged else iter(())
            claim = {name: grant for grant, name in rows}
        if not charged and (document["grants"] or document["denials"]):
            self._undo(number, "refused" if found else "abandoned", document)
            return
        document["grants"].sort(key=lambda each: claim[each["pipeline"]])
        first = min((claim[each["pipeline"]] for each in document["grants"]), default=0)
        self._settle(number, document, range(first, first + len(document["grants"])), None)

    def _told(
        self, number: int, document: dict[str, Any], snapshot: Snapshot, solve: float, seconds: float, attempt: int
    ) -> dict[str, Any]:
        """What metrics and logs want to know of a round."""
        with self.database.reading() as connection:
            rows = connection.execute(sa.select(block.c.device, block.c.period, block.c.arrived))
            arrived = {block_name(device, period): moment for device, period, moment in rows}
        view = snapshot.round
        rest = np.maximum(view.capacity - view.spent, 0).max(axis=1) / 1e9
        age = np.array([view.now - arrived.get(name, view.now) for name in view.blocks])
        bins = {"hour": 3600.0, "day": 86_400.0, "week": 604_800.0, "older": np.inf}
        left, least = {}, -np.inf
        for name, most in bins.items():
            left[name] = float(rest[(age > least) & (age <= most)].sum())
            least = most
        oldest = float(view.now - view.submitted.min())
        kept = ("scheduler", "pending", "granted", "denied", "metrics", "notes")
        return {
            "round": number,
            "seconds": seconds,
            "solve_seconds": solve,
            "again": attempt,
            "oldest_wait_seconds": oldest,
            "left": left,
            **{name: document[name] for name in kept},
        }
