"""PROMISED AND SPENT: the ledger that cannot overspend, its rules, and the stores that keep it."""

from dpbalance.ledger.ledger import Balance, Ledger, Receipt, Snapshot
from dpbalance.ledger.opening import create_ledger, open_ledger
from dpbalance.ledger.requests import Ask, Decision, Stage, State

__all__ = [
    "Ask",
    "Balance",
    "Decision",
    "Ledger",
    "Receipt",
    "Snapshot",
    "Stage",
    "State",
    "create_ledger",
    "open_ledger",
]
