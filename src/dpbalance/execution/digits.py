"""What do the demonstration and the benchmarks train on? 1,797 handwritten digits of 8 by 8 points.

E. Alpaydin, C. Kaynak (1998), "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, CC BY 4.0:
the test set, as counts from 0 to 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from dpbalance.clock import chance
from dpbalance.execution.agent import Agent, write_block
from dpbalance.execution.models import SOFTMAX, Floats, Labels, ModelSpec

DIGITS = ModelSpec(kind=SOFTMAX, features=64, classes=10)

TOTAL = 1797


def digits(seed: int = 0) -> tuple[Floats, Labels]:
    """All digits, shuffled; points from 0 to 1."""
    with files("dpbalance.execution").joinpath("digits.npz").open("rb") as file, np.load(file) as found:
        x, y = found["x"].astype(np.float64) / 16, found["y"].astype(np.int64)
    order = chance(seed).permutation(len(y))
    return x[order], y[order]


def digit_fleet(
    place: Path, devices: Sequence[str], windows: int, size: int, *, trusted: str, cap: float, seed: int = 0
) -> tuple[Mapping[str, Path], Mapping[str, int], Path]:
    """Devices with digits in folders, enrolled; their folders, their blocks with sizes, and the digits nobody holds."""
    x, y = digits(seed)
    folders, sizes, at = {}, {}, 0
    for device in devices:
        folder = place / "devices" / device
        for window in range(windows):
            block = f"{device}/w{window}"
            write_block(folder, block, x[at : at + size], y[at : at + size])
            sizes[block], at = size, at + size
        Agent.enrol(folder, device, trusted, cap=cap)
        folders[device] = folder
    np.savez_compressed(place / "public.npz", x=x[at:], y=y[at:])
    return folders, sizes, place / "public.npz"
