"""Which tables did a ledger begin with? The first version; a later one never edits this file."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables for the number of orders this ledger counts at."""
    width: int = context.config.attributes["width"]

    def whole(name: str, **more: Any) -> sa.Column[int]:
        return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False, **more)

    def text(name: str, **more: Any) -> sa.Column[str]:
        return sa.Column(name, sa.Text, nullable=False, **more)

    def amounts(name: str) -> list[sa.Column[int]]:
        return [whole(f"{name}_{at}") for at in range(width)]

    def real(name: str) -> sa.Column[float]:
        return sa.Column(name, sa.Double, nullable=False)

    op.create_table("meta", text("name", primary_key=True), text("value"))
    numbers: list[Any] = [whole(each) for each in ("devices", "blocks", "claims")]
    op.create_table(
        "head", whole("seq"), text("hash"), whole("token"), text("holder"), real("until"), *numbers,
        postgresql_with={"fillfactor": 10},
    )  # fmt: skip
    op.create_table("device", whole("id", primary_key=True), text("name", unique=True), text("contributor"))
    sort = sa.Column("sort", sa.LargeBinary, nullable=False, unique=True)
    op.create_table("block", whole("id", primary_key=True), text("name", unique=True), sort, whole("device"))
    holds = " OR ".join(f"spent_{at} <= unlocked_{at}" for at in range(width))
    bounds = " AND ".join(f"unlocked_{at} <= capacity_{at} AND spent_{at} >= 0" for at in range(width))
    op.create_table(
        "balance",
        whole("block", primary_key=True),
        whole("state"),
        *amounts("spent"),
        *amounts("unlocked"),
        *amounts("capacity"),
        sa.CheckConstraint(holds, name="balance_holds"),
        sa.CheckConstraint(bounds, name="balance_in_bounds"),
        postgresql_with={"fillfactor": 50},  # room for a new version of each row beside the old one
    )
    keys: list[Any] = [whole("block", primary_key=True), whole("seq", primary_key=True), whole("state")]
    op.create_table("term", *keys, *amounts("unlocked"), *amounts("capacity"))
    op.create_table(
        "journal",
        whole("seq", primary_key=True),
        real("time"),
        text("kind"),
        text("actor"),
        sa.Column("key", sa.Text, unique=True),
        text("digest"),
        text("body"),
        text("prev"),
        text("hash", unique=True),
        text("signature"),
    )
    names: list[Any] = [whole("seq", index=True), text("pipeline", index=True), text("analyst", index=True)]
    op.create_table("claim", whole("id", primary_key=True), *names, real("multiple"), whole("stage"), text("reason"))
    op.create_table(
        "entry", whole("claim", primary_key=True), whole("block", primary_key=True, index=True), *amounts("cost")
    )


def downgrade() -> None:
    """A ledger is never taken back to before it was one."""
    raise NotImplementedError
