"""WHO ASKS: analysts' pipelines and how they name the blocks they want."""

from dpbalance.demand.pipeline import Pipeline
from dpbalance.demand.selector import Selector

__all__ = ["Pipeline", "Selector"]
