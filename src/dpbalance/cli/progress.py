"""How far is a long command, and how long will it take? A bar on a terminal, else lines, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpbalance.cli.deciding import PATIENCE_S, patience
from dpbalance.clock import stopwatch

Tell = Callable[[int, int], object]
"""To be called with how many are done, of how many."""


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Tell | None]:
    """Nothing for a command that is done at once, and nothing when quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar(what) as tell:
            yield tell
    else:
        with patience(f"still {what}"):
            yield _Lines(what)


@contextmanager
def _bar(what: str) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


class _Lines:
    """One line after two seconds, then each time after twice as long as before."""

    def __init__(self, what: str) -> None:
        self.what, self.begin, self.wait = what, stopwatch(), PATIENCE_S
        self.first: int | None = None
        """What was there already, and says nothing about how fast it goes."""

    def __call__(self, done: int, total: int) -> None:
        passed = stopwatch() - self.begin
        if self.first is None:
            self.first = done
        if passed >= self.wait and self.first < done < total:
            rest = passed * (total - done) / (done - self.first)
            print(f"dpbalance: {self.what}: {done} of {total}, about {rest:.0f} s to go ...", file=sys.stderr)
            self.wait = 2 * passed
