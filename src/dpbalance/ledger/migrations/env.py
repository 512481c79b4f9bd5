"""Where are the migrations run? In the transaction of whoever makes or opens the ledger; Alembic loads this file."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
