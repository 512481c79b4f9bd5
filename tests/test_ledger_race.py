"""Do 64 clients in two processes overspend a block? Not in the ledger; and the two wrong designs must, here and now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ledger_clients import BLOCKS, block_name, make_plain
from ledgers import Place
from racing import overspent, race, replayed
from servers import PostgresServer

from dpbalance.market import Block

SECONDS = float(os.environ.get("DPB_RACE_SECONDS", "3"))
SCALE = 6.0 / SECONDS
"""Large enough that blocks run out within the race: nobody overspends what nobody could spend."""


def test_sixty_four_clients_never_overspend(lasting_place: Place, tmp_path: Path) -> None:
    ledger = lasting_place.create()
    ledger.register_devices({"d": ""})
    ledger.register_blocks([Block(id=block_name(at), capacity=1.0) for at in range(BLOCKS)])
    config = {"design": "ledger", "seconds": SECONDS, "scale": SCALE, "isolation": lasting_place.isolation}
    attempts = race(tmp_path, {**config, "url": lasting_place.url, "key_file": str(lasting_place.key_file)})
    assert overspent(attempts, SCALE, 10**9) == []
    assert sum(each.charged for each in attempts) > 100
    assert ledger.verify().demand().clean
    replayed(ledger, attempts, SCALE, 10**9)


@pytest.mark.parametrize("design", ["overwrite", "increment"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_wrong_designs_do_overspend_in_the_same_race(
    design: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: PostgresServer | None = request.getfixturevalue("postgres") if kind == "postgres" else None
    url = server.database() if server else f"sqlite:///{tmp_path / 'plain.db'}"
    make_plain(url, 10**9)
    attempts = race(tmp_path, {"design": design, "seconds": SECONDS, "scale": SCALE, "url": url})
    assert overspent(attempts, SCALE, 10**9), "a race in which nothing goes wrong proves nothing"
