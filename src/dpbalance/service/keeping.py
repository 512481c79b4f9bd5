"""What stands in the service's tables, and how is a request that comes twice answered once?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa

from dpbalance.errors import KeyReused, NotNow
from dpbalance.service.catalogue import Catalogue
from dpbalance.service.database import Database
from dpbalance.service.settings import Settings, settings_of
from dpbalance.service.tables import block, key, pipeline, state

PENDING, DECIDING, GRANTED = "pending", "deciding", "granted"
SHOWN = {DECIDING: PENDING}
"""While a round is charged for it, a pipeline is still pending to everybody else."""

PARAMETERS_MAX = 5_000
"""The most values one statement names."""

Value = TypeVar("Value")

KEYS_KEPT_S = 7 * 86_400.0
"""So long the answer to an Idempotency-Key is remembered."""


class Keys:
    """Which Idempotency-Keys are under way in this process."""

    def __init__(self) -> None:
        self._under_way: set[tuple[str, str]] = set()

    @contextmanager
    def under_way(self, owner: str, name: str) -> Iterator[None]:
        """Refuse the same key of the same token until the first request has its answer."""
        if (owner, name) in self._under_way:
            raise NotNow(f"a request with the key {name!r} is under way", hint="the same again in a second")
        self._under_way.add((owner, name))
        try:
            yield
        finally:
            self._under_way.discard((owner, name))


def once(
    database: Database, owner: str, name: str, digest: str, now: float, work: Callable[[sa.Connection], dict[str, Any]]
) -> dict[str, Any]:
    """Do this under a key, or say again what came of it; the key and what was done commit together."""
    for last in (False, True):
        with database.reading() as connection:
            answer = remembered(connection, [(owner, name)]).get((owner, name))
        if answer is not None:
            return same(answer, name, digest)
        try:
            with database.writing() as connection:
                connection.execute(
                    key.insert(), {"owner": owner, "key": name, "digest": digest, "answer": "{}", "created": now}
                )
                made = work(connection)
                mine = (key.c.owner == owner) & (key.c.key == name)
                connection.execute(key.update().where(mine).values(answer=json.dumps(made)))
                return made
        except sa.exc.IntegrityError:  # another replica was faster: what it did is the answer
            if last:
                raise
    raise AssertionError


def remembered(connection: sa.Connection, asked: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Digest and answer of the keys that are known."""
    chosen = sa.select(key.c.owner, key.c.key, key.c.digest, key.c.answer)
    rows = connection.execute(chosen.where(key.c.key.in_([name for _, name in asked])))
    wanted = set(asked)
    return {(owner, name): (digest, answer) for owner, name, digest, answer in rows if (owner, name) in wanted}


def same(answer: tuple[str, str], name: str, digest: str) -> dict[str, Any]:
    """The first answer, for the same request only."""
    if answer[0] != digest:
        raise KeyReused(f"the key {name!r} was used for another request", hint="a new key")
    told: dict[str, Any] = json.loads(answer[1])
    return told


def forget(connection: sa.Connection, now: float) -> None:
    """Let go of answers that nobody will ask for again."""
    connection.execute(key.delete().where(key.c.created < now - KEYS_KEPT_S))


def request_digest(*parts: str) -> str:
    """What must be the same when a key comes again."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_state(connection: sa.Connection) -> sa.Row[Any]:
    return connection.execute(sa.select(state)).one()


def read_settings(connection: sa.Connection) -> tuple[Settings, int]:
    """The settings and their version."""
    row = read_state(connection)
    return settings_of(json.loads(row.settings)), int(row.version)


def read_catalogue(connection: sa.Connection, known: Catalogue | None) -> Catalogue:
    """The blocks there are; read again only when there are more than before."""
    version = int(read_state(connection).blocks)
    if known is not None and known.version == version:
        return known
    rows = connection.execute(sa.select(block.c.device, block.c.period).where(block.c.number <= version))
    return Catalogue(((device, period) for device, period in rows), version)


def add_blocks(connection: sa.Connection, rows: list[tuple[str, str]], now: float, parts: int) -> None:
    """Blocks the ledger has taken in; those that are known stay as they are."""
    known: set[tuple[str, str]] = set()
    for part in chunks(sorted({device for device, _ in rows})):
        found = connection.execute(sa.select(block.c.device, block.c.period).where(block.c.device.in_(part)))
        known.update((device, period) for device, period in found)
    new = [each for each in dict.fromkeys(rows) if each not in known]
    if not new:
        return
    taken = state.update().values(blocks=state.c.blocks + len(new)).returning(state.c.blocks)
    first = connection.execute(taken).scalar_one() - len(new) + 1
    opened = {"arrived": now, "opened": 1 if parts == 1 else 0, "parts": parts}
    connection.execute(
        block.insert(),
        [
            {"number": first + at, "device": device, "period": period, **opened}
            for at, (device, period) in enumerate(new)
        ],
    )


def chunks(listed: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """Parts of a list that a database takes as the parameters of one statement."""
    for at in range(0, len(listed), PARAMETERS_MAX):
        yield listed[at : at + PARAMETERS_MAX]


def shown(row: Any) -> dict[str, Any]:
    """A pipeline as the API tells of it."""
    return {
        "id": f"p{row.number}",
        "analyst": row.analyst,
        "label": row.label,
        "state": SHOWN.get(row.state, row.state),
        "submitted": row.submitted,
        "weight": row.weight,
        "loss": row.loss,
        "max_multiple": row.max_multiple,
        "deadline": row.deadline,
        "asked": json.loads(row.asked),
        "seed": row.seed,
        "denial": None if row.reason is None else {**json.loads(row.reason), "round": row.denied_in},
        "round": row.round if row.claim is not None else None,
        "grant": row.claim,
        "multiple": row.multiple,
    }


SHOWN_COLUMNS = [each for each in pipeline.c if each.name != "demand"]
