"""WHAT HOLDS: the paper's economic properties of a decision, what fairness costs, and why a pipeline was denied."""

from dpbalance.audit.divisible import Divisible, divisible_findings
from dpbalance.audit.explain import Explanation, explain
from dpbalance.audit.finding import Finding
from dpbalance.audit.properties import Audit, audit
from dpbalance.audit.tradeoff import Extremes, Point, Slope, extremes, frontier, slope

__all__ = [
    "Audit",
    "Divisible",
    "Explanation",
    "Extremes",
    "Finding",
    "Point",
    "Slope",
    "audit",
    "divisible_findings",
    "explain",
    "extremes",
    "frontier",
    "slope",
]
