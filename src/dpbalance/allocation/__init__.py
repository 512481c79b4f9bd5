"""DECISION AND PROOF: who got what, what that is worth, and a check that trusts no solver."""

from dpbalance.allocation.allocation import Allocation, AnalystShare, Denial, Grant, Shortage
from dpbalance.allocation.certificate import Shares
from dpbalance.allocation.files import allocation_from_json, allocation_to_json, read_allocation, write_allocation
from dpbalance.allocation.metrics import Metrics, fairness
from dpbalance.allocation.proof import Proof
from dpbalance.allocation.valuation import Terms, Valuation

__all__ = [
    "Allocation",
    "AnalystShare",
    "Denial",
    "Grant",
    "Metrics",
    "Proof",
    "Shares",
    "Shortage",
    "Terms",
    "Valuation",
    "allocation_from_json",
    "allocation_to_json",
    "fairness",
    "read_allocation",
    "write_allocation",
]
