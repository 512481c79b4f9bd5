"""Where are the migrations run? In the transaction of whoever opens the database; Alembic loads this file."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], version_table="service_migration")
context.run_migrations()
