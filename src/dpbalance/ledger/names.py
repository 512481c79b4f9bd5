"""Which number does a name have? Remembered for as long as the journal still holds the row it was read at.

Names never change and there are only more of them, so what was read once stays true, until somebody puts an older
ledger in this one's place. Therefore everything remembered has a mark: number and hash of the row at which it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from dpbalance.errors import LedgerDamaged, NotInLedger
from dpbalance.ledger.page import Head
from dpbalance.ledger.requests import Mark
from dpbalance.ledger.store import CHUNK, Reader, Store
from dpbalance.market.round import Indices

NAMES_MAX = 200_000
"""Numbers of so many blocks are remembered by name; more are looked up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All blocks in the order of a Round, with their numbers."""

    names: tuple[str, ...] = ()
    ids: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(slots=True, kw_only=True)
class Known:
    """What is remembered of one history; another history gets another object."""

    mark: Mark | None = None
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The number of each block, and of its device."""
    catalogue: Catalogue = field(default_factory=Catalogue)


class Names:
    """What one process remembers of the names in a ledger."""

    def __init__(self) -> None:
        self.known = Known()
        self._lock = Lock()

    def forget(self) -> None:
        """Read everything again."""
        self.known = Known()

    def ids(self, store: Store, names: Sequence[str]) -> tuple[Indices, Mark | None]:
        """The numbers of these blocks, and the row until which they were read."""
        known = self.known
        if names is known.catalogue.names:
            return known.catalogue.ids, known.mark
        try:
            found = [known.numbers[name][0] for name in names]
        except KeyError:
            with store.reading() as reader:
                both, mark = self.look_up(reader, names)
            return np.array([number for number, _ in both], dtype=np.int64), mark
        return np.array(found, dtype=np.int64), known.mark

    def look_up(self, reader: Reader, names: Sequence[str]) -> tuple[list[tuple[int, int]], Mark]:
        """The number and the device of each of these blocks, and the row until which they were read."""
        head = reader.head()
        known = self._current(reader)
        missing = [name for name in names if name not in known.numbers]
        found = {}
        for at in range(0, len(missing), CHUNK):
            rows = reader.rows("block", ["name", "id", "device"], among=("name", missing[at : at + CHUNK]))
            found.update({name: (number, device) for name, number, device in rows})
        for name in missing:
            if name not in found:
                raise NotInLedger(f"block {str(name)[:256]!r} is not in the ledger", hint="dpbalance block list")
        if len(known.numbers) + len(found) > NAMES_MAX:
            kept = {name: known.numbers[name] for name in names if name not in found}
            known = self.known = Known(mark=known.mark, numbers=kept, catalogue=known.catalogue)
        mark = self._marked(known, head)  # before the names, so that whoever finds one finds a mark that covers it
        known.numbers.update(found)
        return [known.numbers[name] for name in names], mark

    def all_blocks(self, reader: Reader, head: Head) -> Catalogue:
        """Every block."""
        known = self._current(reader)
        catalogue, count = known.catalogue, head.blocks
        if len(catalogue.ids) != count:
            rows = list(reader.rows("block", ["name", "id"], order=("sort",)))
            names, ids = zip(*rows, strict=True) if rows else ((), ())
            catalogue = Catalogue(names=names, ids=np.array(ids, dtype=np.int64))
            if len(ids) != count or not np.array_equal(np.sort(catalogue.ids), np.arange(1, count + 1)):
                raise LedgerDamaged(
                    f"the ledger counts {count} blocks and has {len(ids)}", hint="dpbalance ledger verify"
                )
            self._marked(known, head)
            known.catalogue = catalogue
        return catalogue

    def _current(self, reader: Reader) -> Known:
        """What is remembered, if it is of the history that this reader sees."""
        known = self.known
        if known.mark is not None and not reader.holds(known.mark):
            known = self.known = Known()
        return known

    def _marked(self, known: Known, head: Head) -> Mark:
        with self._lock:
            if known.mark is None or known.mark[0] < head.seq:
                known.mark = (head.seq, head.hash)
            return known.mark


def device_numbers(reader: Reader, names: Sequence[str]) -> dict[str, int]:
    """The numbers of those of these devices that are in the ledger."""
    return {
        name: number
        for at in range(0, len(names), CHUNK)
        for name, number in reader.rows("device", ["name", "id"], among=("name", names[at : at + CHUNK]))
    }
