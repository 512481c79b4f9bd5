"""Which of the paper's economic properties does this allocation have, in both views, and what shows it?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpbalance.allocation import Allocation
from dpbalance.audit.divisible import Divisible, divisible_findings
from dpbalance.audit.finding import Finding
from dpbalance.audit.granted import LIMIT_S, Granted, granted_findings
from dpbalance.audit.lies import Progress, divisible_lies, granted_lies
from dpbalance.audit.restated import Decide
from dpbalance.audit.survives import surviving_findings
from dpbalance.audit.tradeoff import Slope, slope

FORMAT = "dpbalance-audit/1"

LIES = 20
"""Random lies tried for each analyst, beside the paper's three ways at five sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Everything found about one allocation."""

    allocation: Allocation
    findings: tuple[Finding, ...]
    slope: Slope | None
    """How efficiency moves with beta at step 1's answer; None where there is no such answer."""
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The `dpbalance-audit/1` document."""
        return {
            "format": FORMAT,
            "scheduler": self.allocation.scheduler,
            "findings": [asdict(each) for each in self.findings],
            "tradeoff": None if self.slope is None else asdict(self.slope),
            "notes": list(self.notes),
        }


def audit(
    allocation: Allocation,
    decide: Decide | None = None,
    *,
    lies: int = LIES,
    limit_s: float = LIMIT_S,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Look at every property. `decide` is the scheduler's own, asked again with lies; without it none are tried.

    All questions about what was granted have `limit_s` seconds together.

    >>> from dpbalance.market import worked_example
    >>> from dpbalance.scheduler import scheduler
    >>> decider = scheduler("dpbalance")
    >>> found = audit(decider.decide(worked_example()), decider.decide).findings
    >>> [(each.property, each.answer) for each in found[:3]]
    [('pareto-efficiency', 'holds'), ('sharing-incentive', 'holds'), ('sharing-incentive-entitled', 'holds')]
    """
    findings: list[Finding] = []
    notes: list[str] = []
    market = Divisible.of_allocation(allocation)
    tangent = None
    if market is None:
        notes.append(f"{allocation.scheduler} divides nothing between analysts, so only what it granted is looked at")
    elif allocation.shares is not None and allocation.shares.as_printed:
        notes.append("the printed constraint was used: its shares are more than there is, and are not looked at")
        market = None
    else:
        findings += divisible_findings(market)
        if decide is not None and market.analysts:
            findings += divisible_lies(market, lies, seed, progress)
        tangent = slope(market)
    granted = Granted.of_allocation(allocation)
    findings += granted_findings(granted, limit_s)
    findings += surviving_findings(granted, market)
    if decide is None:
        notes.append("no lies were tried: there is no scheduler to ask again")
    else:
        findings += granted_lies(allocation, decide, lies, seed, progress)
    if allocation.round.orders is not None:
        notes.append("with several orders another one may allow more: as granted, what is not refuted is not-found")
    if not allocation.valuation.feasible.any():
        notes.append("no pipeline of this round can be met, so there is nothing to share")
    return Audit(allocation=allocation, findings=tuple(findings), slope=tangent, notes=tuple(notes))
