"""Which tables did the service begin with? The first version; a later one never edits this file."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _whole(name: str, *, optional: bool = False, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=optional, primary_key=key, autoincrement=False)


def _text(name: str, **more: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text, **{"nullable": False, **more})


def _real(name: str, *, optional: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=optional)


def upgrade() -> None:
    """Make the tables and the one row of the state."""
    counters = ("pipelines", "rounds", "blocks", "asked", "done", "opened_through", "moved_through", "version")
    state = op.create_table(
        "service_state", _whole("id", key=True), *(_whole(each) for each in counters), _text("settings")
    )
    op.bulk_insert(state, [{"id": 1, **dict.fromkeys(counters, 0), "settings": "{}"}])
    op.create_table("service_analyst", _text("name", primary_key=True), _real("priority"), _real("created"))
    op.create_table(
        "service_token",
        _text("id", primary_key=True),
        _text("hash", unique=True),
        *(_text(each) for each in ("role", "name", "label")),
        _real("created"),
        _real("expires", optional=True),
        _real("revoked", optional=True),
    )
    op.create_table(
        "service_key",
        _text("owner", primary_key=True),
        _text("key", primary_key=True),
        _text("digest"),
        _text("answer", nullable=True),
        sa.Column("created", sa.Double, nullable=False, index=True),
    )
    op.create_table(
        "service_pipeline",
        _whole("number", key=True),
        *(_text(each) for each in ("analyst", "state", "label")),
        *(_real(each) for each in ("submitted", "weight", "loss")),
        *(_real(each, optional=True) for each in ("max_multiple", "deadline")),
        *(_text(each) for each in ("asked", "demand")),
        _whole("seed", optional=True),
        _text("reason", nullable=True),
        *(_whole(each, optional=True) for each in ("denied_in", "round", "claim")),
        _real("multiple", optional=True),
    )
    op.create_index("service_pipeline_analyst", "service_pipeline", ["analyst", "number"])
    op.create_index("service_pipeline_state", "service_pipeline", ["state", "number"])
    op.create_index("service_pipeline_claim", "service_pipeline", ["claim"])
    op.create_table(
        "service_round",
        _whole("number", key=True),
        sa.Column("state", sa.Text, nullable=False, index=True),
        _real("started"),
        _real("seconds", optional=True),
        _text("document"),
    )
    op.create_table(
        "service_block",
        _whole("number", key=True),
        *(_text(each) for each in ("device", "period")),
        _real("arrived"),
        *(_whole(each) for each in ("opened", "parts")),
        sa.UniqueConstraint("device", "period"),
    )


def downgrade() -> None:
    """What was acknowledged is never taken back."""
    raise NotImplementedError
