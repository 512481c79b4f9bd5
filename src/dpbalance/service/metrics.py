"""What does the service tell of itself? Prometheus, from its requests and from the events of its rounds."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The numbers of one server process."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter("dpbalance_requests", "Requests answered.", ["method", "path", "status"], registry=own)
        self.request_seconds = Histogram(
            "dpbalance_request_seconds", "Time to answer.", ["method", "path"], buckets=SECONDS, registry=own
        )
        self.rounds = Counter("dpbalance_rounds", "Rounds by how they ended.", ["ended"], registry=own)
        self.round_seconds = Histogram("dpbalance_round_seconds", "Whole rounds.", buckets=SECONDS, registry=own)
        self.solve_seconds = Histogram("dpbalance_solve_seconds", "Deciding alone.", buckets=SECONDS, registry=own)
        self.charges = Counter("dpbalance_charges", "Pipelines granted and charged.", registry=own)
        self.denials = Counter("dpbalance_denials", "Pipelines not served in a round.", ["reason"], registry=own)
        self.left = Gauge("dpbalance_budget_left", "Epsilon left, by age of the block.", ["age"], registry=own)
        self.queue = Gauge("dpbalance_queue_length", "Pipelines that wait to be written down.", registry=own)
        self.pending = Gauge("dpbalance_pending", "Pipelines in the last round.", registry=own)
        self.starvation = Gauge("dpbalance_oldest_wait_seconds", "How long the oldest has waited.", registry=own)
        self.leads = Gauge("dpbalance_leads", "1 while this replica holds the lease.", registry=own)

    def event(self, told: dict[str, Any]) -> None:
        """Take in what the round process told."""
        kind = told["event"]
        if kind == "lead":
            self.leads.set(1)
        elif kind in ("follow", "ended"):
            self.leads.set(0)
        elif kind in ("abandoned", "failed"):
            self.rounds.labels(kind).inc()
        elif kind == "round":
            self.rounds.labels("decided").inc()
            self.round_seconds.observe(told["seconds"])
            self.solve_seconds.observe(told["solve_seconds"])
            self.charges.inc(told["granted"])
            for reason, count in told["denied"].items():
                self.denials.labels(reason).inc(count)
            for age, amount in told["left"].items():
                self.left.labels(age).set(amount)
            self.pending.set(told["pending"])
            self.starvation.set(told["oldest_wait_seconds"])
        elif kind == "idle":
            self.pending.set(0)
            self.starvation.set(0)

    def text(self) -> bytes:
        return generate_latest(self.registry)
