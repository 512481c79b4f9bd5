"""Which grants wait, which are under way, and what exactly was each of them charged? Read from the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpbalance.errors import NotInLedger
from dpbalance.execution.plan import Granted
from dpbalance.ledger import Ledger, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """A grant with its stage and the devices of its blocks."""

    granted: Granted
    stage: Stage
    device_of: Mapping[str, str]


def grants_at(ledger: Ledger, stage: Stage) -> list[int]:
    """The numbers of all grants at this stage, ascending."""
    with ledger.store.reading() as reader:
        found: list[int] = reader.numbers("claim", ["id"], among=("stage", [int(stage)]), order=("id",))[:, 0].tolist()
    return found


def charged(ledger: Ledger, grant: int) -> Charged:
    """What was charged for this grant."""
    with ledger.store.reading() as reader:
        columns = ["pipeline", "analyst", "multiple", "stage"]
        rows = list(reader.rows("claim", columns, among=("id", [grant])))
        if not rows:
            raise NotInLedger(f"there is no grant {grant}", hint="dpbalance ledger statement")
        entries = reader.entries(("claim", [grant]))
        blocks = {
            number: (name, device)
            for number, name, device in reader.rows("block", ["id", "name", "device"], among=("id", entries.block))
        }
        numbers = sorted({device for _, device in blocks.values()})
        devices = dict(reader.rows("device", ["id", "name"], among=("id", numbers)))
    pipeline, analyst, multiple, stage = rows[0]
    granted = Granted(
        grant=grant,
        pipeline=pipeline,
        analyst=analyst,
        orders=ledger.orders,
        charged={
            blocks[block][0]: tuple(cost)
            for block, cost in zip(entries.block.tolist(), entries.cost.tolist(), strict=True)
        },
        multiple=float(multiple),
        ledger=ledger.public,
    )
    device_of = {name: devices[device] for name, device in blocks.values()}
    return Charged(granted=granted, stage=Stage(stage), device_of=device_of)
