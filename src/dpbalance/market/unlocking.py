"""How much of a block's capacity may be used by now? At once, in parts as pipelines arrive, or in parts as time passes.

A rule cuts every capacity into `parts` equal parts and says how many of them are open; whoever holds the blocks keeps
that count. k parts of a capacity are `capacity * k // parts` whole units, so rounding never opens what is not there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpbalance.amounts import Units
from dpbalance.errors import FileFormatError, InputError
from dpbalance.market.files import fields
from dpbalance.market.round import Floats, Indices, checked_number

MAX_PARTS = 10**6
"""The most parts a capacity can be cut into; finer ones would be a few units each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce:
    """A block is open in full from its arrival on."""

    rule: ClassVar[str] = "none"
    parts: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ByArrivals:
    """Each arriving pipeline opens one part of every block it asks for."""

    rule: ClassVar[str] = "arrivals"

    n: int
    """Arrivals after which a block is open in full."""
    max_age: float | None = None
    """Seconds after its arrival in which a block opens; None means without end."""

    def __post_init__(self) -> None:
        _check_parts(self.n, "n")
        if self.max_age is not None:
            checked_number(self.max_age, "unlock: max_age", least=0.0)

    @property
    def parts(self) -> int:
        return self.n

    def opens(self, age: Floats) -> npt.NDArray[np.bool_]:
        """Blocks of which an arrival opens a part, by their age in seconds."""
        return np.greater_equal(age, 0) & np.less_equal(age, np.inf if self.max_age is None else self.max_age)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTime:
    """One part every lifetime / steps seconds; the first of them so long after the block's arrival."""

    rule: ClassVar[str] = "time"

    lifetime: float
    """Seconds after its arrival when a block is open in full."""
    steps: int

    def __post_init__(self) -> None:
        _check_parts(self.steps, "steps")
        if not checked_number(self.lifetime, "unlock: lifetime", least=0.0) > 0:
            raise InputError(f"unlock: lifetime must be above 0 seconds, not {self.lifetime!r}")

    @property
    def parts(self) -> int:
        return self.steps

    def first(self, arrived: Floats) -> Floats:
        """When each block opens its first part."""
        return arrived + self.lifetime / self.steps

    def passed(self, due: Floats, opened: Indices, now: float) -> tuple[Floats, Indices]:
        """When the next part is due and how many are open, after every event before `now`.

        An event at `now` itself comes after whatever else happens then. Times are sums, step after step, as an
        event loop makes them: a product would differ in the last digit and open a part one round too early or late.
        """
        while (ripe := (due < now) & (opened < self.steps)).any():
            due = np.where(ripe, due + self.lifetime / self.steps, due)
            opened = opened + ripe
        return due, opened


Unlocking = AtOnce | ByArrivals | ByTime

RULES: dict[str, type[ByArrivals] | type[ByTime]] = {each.rule: each for each in (ByArrivals, ByTime)}


def portion(capacity: Units, opened: Indices, parts: int) -> Units:
    """capacity * opened // parts for each block and order, without leaving 64 bits on the way.

    >>> portion(np.array([[10**15]]), np.array([999_999]), 10**6).tolist()
    [[999999000000000]]
    """
    whole, rest = np.divmod(capacity, parts)
    return whole * opened[:, None] + rest * opened[:, None] // parts


def unlocking_from_json(value: Any) -> Unlocking:
    """The rule written in a trace; null opens everything at once."""
    if value is None:
        return AtOnce()
    name = value.get("rule") if isinstance(value, dict) else value
    if not isinstance(name, str) or name not in RULES:
        raise FileFormatError(f"unlock must be null or have a rule of {', '.join(RULES)}, not {str(name)[:60]!r}")
    known = dataclasses.fields(RULES[name])
    required = {each.name for each in known if each.default is dataclasses.MISSING}
    fields(value, "unlock", {"rule", *(each.name for each in known)}, {"rule", *required})
    return RULES[name](**{key: each for key, each in value.items() if key != "rule"})


def unlocking_to_json(unlock: Unlocking) -> Mapping[str, Any] | None:
    """The rule as a trace writes it."""
    return None if isinstance(unlock, AtOnce) else {"rule": unlock.rule, **asdict(unlock)}


def _check_parts(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARTS:
        raise InputError(f"unlock: {what} must be a whole number from 1 to {MAX_PARTS}, not {str(value)[:60]!r}")
