"""WHO DECIDES: one object with one method, decide(round) -> allocation; the room itself makes one by name.

Importing it is light; each scheduler brings its own solver when it is asked for.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from dpbalance.scheduler.options import Options
from dpbalance.scheduler.protocol import Scheduler
from dpbalance.scheduler.registry import Option, options_from_text, options_of, scheduler, scheduler_names

__all__ = ["Option", "Options", "Scheduler", "options_from_text", "options_of", "scheduler", "scheduler_names"]


class _Room(ModuleType):
    """`dpbalance.scheduler` is where schedulers live and, called, how one is made."""

    def __call__(self, name: str, **options: Any) -> Scheduler:
        return scheduler(name, **options)


sys.modules[__name__].__class__ = _Room
