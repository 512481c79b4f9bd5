"""What does the service keep beside the ledger? Who asked for what, how far it came, and what is set."""

from __future__ import annotations

import sqlalchemy as sa

meta = sa.MetaData()


def _whole(name: str, *, optional: bool = False, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=optional, primary_key=key, autoincrement=False)


def _text(name: str, *, optional: bool = False, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=optional, primary_key=key)


def _real(name: str, *, optional: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=optional)


state = sa.Table(
    "service_state",
    meta,
    _whole("id", key=True),
    _whole("pipelines"),
    _whole("rounds"),
    _whole("blocks"),
    _whole("asked"),
    _whole("done"),
    _whole("opened_through"),
    _whole("moved_through"),
    _whole("version"),
    _text("settings"),
)
"""One row. Numbers are given out under its lock, so whoever has seen number n has seen all before it."""

analyst = sa.Table("service_analyst", meta, _text("name", key=True), _real("priority"), _real("created"))

token = sa.Table(
    "service_token",
    meta,
    _text("id", key=True),
    _text("hash"),
    _text("role"),
    _text("name"),
    _text("label"),
    _real("created"),
    _real("expires", optional=True),
    _real("revoked", optional=True),
)

key = sa.Table(
    "service_key",
    meta,
    _text("owner", key=True),
    _text("key", key=True),
    _text("digest"),
    _text("answer", optional=True),
    _real("created"),
)
"""What came of a request under an Idempotency-Key; no answer yet while it is under way."""

pipeline = sa.Table(
    "service_pipeline",
    meta,
    _whole("number", key=True),
    _text("analyst"),
    _text("state"),
    _text("label"),
    _real("submitted"),
    _real("weight"),
    _real("loss"),
    _real("max_multiple", optional=True),
    _real("deadline", optional=True),
    _text("asked"),
    _text("demand"),
    _whole("seed", optional=True),
    _text("reason", optional=True),
    _whole("denied_in", optional=True),
    _whole("round", optional=True),
    _whole("claim", optional=True),
    _real("multiple", optional=True),
)

round_ = sa.Table(
    "service_round",
    meta,
    _whole("number", key=True),
    _text("state"),
    _real("started"),
    _real("seconds", optional=True),
    _text("document"),
)

block = sa.Table(
    "service_block",
    meta,
    _whole("number", key=True),
    _text("device"),
    _text("period"),
    _real("arrived"),
    _whole("opened"),
    _whole("parts"),
)
"""When each block came, and how many parts of it are open; what is spent of it only the ledger knows."""
