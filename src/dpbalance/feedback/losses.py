"""How useful is data to a model that trained before? Released losses become l of the next round, and fade.

Only losses that were released count: from public data, or noised and paid for by the grant. A model whose loss is high
has more to learn, as in Oort (Lai et al. 2021), so its l is higher. l is the loss over what knowing nothing would lose,
ln(classes): 1 is where everybody begins, and where an old loss comes back to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dpbalance.demand.pipeline import Pipeline
from dpbalance.errors import FileFormatError
from dpbalance.execution.form import canonical, write_durably
from dpbalance.execution.runs import Outcome

LEAST, MOST = 0.05, 2.0
"""No released loss counts less or more than this: one lucky or unlucky run decides no round."""

HALF_LIFE_SECONDS = 86400.0
"""After so long a loss counts half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The last released loss of a family of pipelines."""

    loss: float
    classes: int
    time: float
    kind: str
    """`public` or `noised`."""


class Losses:
    """The last released loss of each family, in one file."""

    def __init__(self, path: Path, *, half_life: float = HALF_LIFE_SECONDS) -> None:
        self._path, self._half_life = path, half_life
        self._known: dict[str, Released] = {}
        if path.exists():
            try:
                self._known = {name: Released(**each) for name, each in json.loads(path.read_bytes()).items()}
            except (ValueError, TypeError, AttributeError) as problem:
                raise FileFormatError(f"{path} holds no losses: {problem}") from None

    def record(self, family: str, outcome: Outcome, now: float) -> None:
        """Keep what a run released, if it released anything."""
        result = outcome.result
        if result is None or result.loss is None or not math.isfinite(result.loss):
            return
        made = Released(
            loss=result.loss, classes=outcome.plan.model.classes, time=now, kind=result.loss_kind or "public"
        )
        self._known[family] = made
        told = {
            name: {field: getattr(each, field) for field in Released.__slots__} for name, each in self._known.items()
        }
        write_durably(self._path, canonical(told))

    def matching(self, family: str, now: float) -> float:
        """l of a pipeline of this family: 1 when nothing is known."""
        known = self._known.get(family)
        if known is None:
            return 1.0
        relative = min(max(known.loss / math.log(known.classes), LEAST), MOST)
        faded = math.exp2(-max(0.0, now - known.time) / self._half_life)
        return 1.0 + (relative - 1.0) * faded

    def put_into(self, pipelines: Iterable[Pipeline], family: Callable[[str], str], now: float) -> list[Pipeline]:
        """The pipelines with the l that is known of their families."""
        return [replace(each, loss=self.matching(family(each.id), now)) for each in pipelines]
