"""Who may use which devices' data, so that privacy budget is spent efficiently and shared fairly?

    round_ = dpbalance.read_round("round.json")
    allocation = dpbalance.scheduler("dpbalance", beta=2.2).decide(round_)
    allocation.check()

Names are loaded when they are first used, so importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpbalance.allocation import Allocation, Terms, read_allocation, write_allocation
    from dpbalance.demand import Pipeline
    from dpbalance.errors import (
        AmountError,
        BudgetExceeded,
        DPBalanceError,
        FileFormatError,
        InputError,
        OptionError,
        RecipeError,
        SolverError,
        UnknownScheduler,
    )
    from dpbalance.ledger import Ledger, create_ledger, open_ledger
    from dpbalance.market import Block, Round, paper_round, read_round, worked_example, write_round
    from dpbalance.scheduler import Scheduler, scheduler

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "AmountError",
    "Block",
    "BudgetExceeded",
    "DPBalanceError",
    "FileFormatError",
    "InputError",
    "Ledger",
    "OptionError",
    "Pipeline",
    "RecipeError",
    "Round",
    "Scheduler",
    "SolverError",
    "Terms",
    "UnknownScheduler",
    "__version__",
    "create_ledger",
    "open_ledger",
    "paper_round",
    "read_allocation",
    "read_round",
    "scheduler",
    "worked_example",
    "write_allocation",
    "write_round",
]

_ROOMS = {
    "allocation": ("Allocation", "Terms", "read_allocation", "write_allocation"),
    "demand": ("Pipeline",),
    "errors": (
        "AmountError",
        "BudgetExceeded",
        "DPBalanceError",
        "FileFormatError",
        "InputError",
        "OptionError",
        "RecipeError",
        "SolverError",
        "UnknownScheduler",
    ),
    "ledger": ("Ledger", "create_ledger", "open_ledger"),
    "market": ("Block", "Round", "paper_round", "read_round", "worked_example", "write_round"),
    "scheduler": ("Scheduler",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "scheduler":  # the room itself, which can be called
        return import_module("dpbalance.scheduler")
    if name in _HOME:
        value = getattr(import_module(f"dpbalance.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'dpbalance' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
