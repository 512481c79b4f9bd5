"""Is a grant worth what is documented, and more of it worth more?"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.grants import TOLERANCE, WORTH, trained


def mean(budget: float, seeds: int = 6) -> float:
    return float(np.mean([trained(budget, seed) for seed in range(seeds)]))


@pytest.mark.parametrize("budget", [0.1, 1.0, 5.0])
def test_a_grant_trains_a_model_as_good_as_documented(budget: float) -> None:
    assert mean(budget) >= WORTH[budget] - TOLERANCE


def test_a_larger_multiple_trains_a_better_model() -> None:
    found = [mean(0.05 * multiple) for multiple in (1, 2, 4, 10, 40)]
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.2
