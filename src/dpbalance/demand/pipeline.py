"""What does one training job ask for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Epsilon = float | Sequence[float]
"""An amount as people write it: one number, or one for each order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A federated training job of one analyst: served in full, or in a multiple of it, or not at all."""

    id: str
    analyst: str
    demand: Mapping[str, Epsilon]
    """The least privacy loss it needs on each block it names, in epsilon."""
    submitted: float | None = None
    """Seconds on the round's clock; None means it came with the round."""
    weight: float = 1.0
    """The analyst's own priority among its pipelines."""
    loss: float = 1.0
    """Matching degree l of data and model: the last released training loss, 1 when nothing is known."""
    max_multiple: float | None = None
    """The largest multiple of the demand it can use; 1 means all or nothing, None no cap."""
