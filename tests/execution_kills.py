"""A scheduler that dies at a step: `python execution_kills.py PLACE STEP`, run by the tests in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from fleets import Fleet

from dpbalance.execution import plan_signer
from dpbalance.feedback.settle import step
from dpbalance.ledger import open_ledger


def main(place: Path, at: str) -> None:
    """Carry on with the ledger in this place until the step, and die there."""
    fleet = Fleet(place=place, signer=plan_signer(place / "plan.key"))

    def stop(name: str) -> None:
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    runner = fleet.runner()
    if at == "started":
        begin = runner.start

        def started(plan: object) -> None:
            begin(plan)  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGKILL)

        runner.start = started  # type: ignore[method-assign, assignment]
    with open_ledger(f"sqlite:///{place / 'ledger.db'}") as ledger:
        step(ledger, fleet.desk(), runner, stop=stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
