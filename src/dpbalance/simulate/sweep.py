"""What comes out when every scheduler meets every workload? Whatever is finished stays finished, even after kill -9."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from dpbalance.errors import FileFormatError, OptionError
from dpbalance.simulate.cell import Cell, cells, read_cell, run_cell
from dpbalance.simulate.results import Results, needs_polars
from dpbalance.simulate.workers import answers, refuse_unusable

__all__ = ["Cell", "Results", "cells", "sweep"]

SUFFIX = ".json.gz"


def sweep(
    cells: Iterable[Cell],
    out: str | Path | None = None,
    *,
    workers: int | str = 1,
    progress: Callable[[int, int], object] | None = None,
    reference: str | None = None,
) -> Results:
    """Run the cells that `out` does not hold yet, and write the results of all of them there.

    `workers` is a number of processes (1 is this one), "ray" or "ray://host:port". The files are the same bytes
    whoever ran the cells, and however often it was interrupted. `progress` is told how many cells are finished, of how
    many. `reference` names the scheduler that others are compared with: the first cell's unless told otherwise.
    Without `out` the results are kept in memory only.
    """
    wanted = tuple({cell.key: cell for cell in cells}.values())
    if not wanted:
        raise OptionError("a sweep needs at least one cell")
    known = list(dict.fromkeys(cell.scheduler for cell in wanted))
    against = known[0] if reference is None else reference
    if against not in known:
        raise OptionError(f"the reference {against!r} is none of {', '.join(known)}")
    refuse_unusable(workers)
    if out is not None:
        needs_polars()
    shelf = _Shelf(None if out is None else Path(out), wanted)
    missing = [cell for cell in wanted if not shelf.holds(cell)]
    tell = progress or (lambda done, total: None)
    tell(len(wanted) - len(missing), len(wanted))
    with closing(answers(run_cell, missing, workers)) as found:
        for done, (cell, data) in enumerate(found, start=len(wanted) - len(missing) + 1):
            shelf.put(cell, data)
            tell(done, len(wanted))
    results = Results.of(wanted, shelf.get, against)
    if shelf.folder is not None:
        for name, content in results.files():
            write_whole(shelf.folder / name, content)
    return results


def write_whole(path: Path, content: bytes) -> None:
    """All of a file or nothing of it, whatever happens meanwhile."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        raise FileFormatError(f"cannot write {path}: {problem.strerror or problem}") from None


class _Shelf:
    """Finished cells: files in a folder, or kept in memory."""

    def __init__(self, folder: Path | None, wanted: tuple[Cell, ...]) -> None:
        self.folder = folder
        self.memory: dict[str, bytes] = {}
        if folder is not None:
            try:
                (folder / "cells").mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise FileFormatError(f"cannot write into {folder}: {problem.strerror or problem}") from None
            self._refuse_others({cell.key for cell in wanted})

    def get(self, cell: Cell) -> dict[str, Any]:
        if self.folder is None:
            return read_cell(self.memory[cell.key], cell)
        return read_cell(self._path(cell).read_bytes(), cell)

    def put(self, cell: Cell, data: bytes) -> None:
        if self.folder is None:
            self.memory[cell.key] = data
        else:
            write_whole(self._path(cell), data)

    def holds(self, cell: Cell) -> bool:
        """Is it there, and whole? One that was damaged counts as not run."""
        try:
            self.get(cell)
        except (OSError, KeyError, FileFormatError):
            return False
        return True

    def _path(self, cell: Cell) -> Path:
        assert self.folder is not None
        return self.folder / "cells" / f"{cell.key}{SUFFIX}"

    def _refuse_others(self, keys: set[str]) -> None:
        """Results of another sweep are neither mixed with these nor thrown away."""
        assert self.folder is not None
        others = {each.name.removesuffix(SUFFIX) for each in (self.folder / "cells").glob(f"*{SUFFIX}")} - keys
        if others:
            raise OptionError(
                f"{self.folder} holds {len(others)} cells that are not among the {len(keys)} of this sweep",
                hint="another folder, or a sweep that has those cells, too",
            )
