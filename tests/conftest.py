"""What do all tests share? Where the reference cases are, and the folder of helpers on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
from ledgers import KINDS, Place, made_place
from servers import PostgresServer

# machines differ in speed; a property that holds slowly still holds
settings.register_profile("steady", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def cases() -> Path:
    """The reference cases beside the checkout."""
    folder = Path(__file__).parents[2] / "shared" / "cases"
    assert folder.is_dir(), f"the reference cases are expected in {folder}"
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL, started when the first test of this worker asks for it."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a ledger, in each kind of store."""
    with made_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres")) as place:
        yield place


@pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
def lasting_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The same where a ledger outlives its process."""
    with made_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres")) as place:
        yield place
