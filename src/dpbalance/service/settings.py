"""How are rounds decided, and when? What an operator can change while the service runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpbalance.errors import OptionError
from dpbalance.market.unlocking import AtOnce, ByArrivals, ByTime, Unlocking
from dpbalance.scheduler import Scheduler, scheduler

Number = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Beta = Number | Literal["inf"]


class Strict(BaseModel):
    """No field too many, and no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Arrivals(Strict):
    """Each arriving pipeline opens one of n parts of every block it asks for."""

    rule: Literal["arrivals"]
    n: int = Field(ge=1, le=10**6)
    max_age: Number | None = Field(default=None, description="Seconds after its arrival in which a block opens.")


class Time(Strict):
    """One of `steps` parts every lifetime / steps seconds."""

    rule: Literal["time"]
    lifetime: float = Field(gt=0, le=1e9, allow_inf_nan=False, description="Seconds until a block is open in full.")
    steps: int = Field(ge=1, le=10_000)


class Deciding(Strict):
    """Who decides a round, and by which preferences."""

    scheduler: str = Field(default="dpbalance", min_length=1, max_length=60, pattern="^[a-z0-9-]+$")
    beta: Beta = Field(default=2.2, description="Fairness preference: 0 efficiency only, inf max-min.")
    lam: Beta | None = Field(default=None, description="Efficiency preference, where the scheduler has one.")
    options: dict[str, Any] = Field(default={}, max_length=20, description="Further options of the scheduler.")

    def decider(self) -> Scheduler:
        """The scheduler; an option it does not have is refused, lam too."""
        given = {"beta": float(self.beta)} | ({} if self.lam is None else {"lam": float(self.lam)})
        try:
            json.dumps(self.options, allow_nan=False)
        except ValueError:
            raise OptionError("options must be JSON, without infinities") from None
        if clash := set(given) & set(self.options):
            raise OptionError(f"option {min(clash)!r} is given twice")
        return scheduler(self.scheduler, **given, **self.options)


class Settings(Deciding):
    """Everything an operator can change while the service runs."""

    fallback: str = Field(
        default="fcfs",
        max_length=60,
        pattern="^[a-z0-9-]+$",
        description="Who decides the next round after one that outlived its limit.",
    )
    every: float = Field(default=2.0, ge=0.05, le=1e7, description="Seconds from the start of a round to the next.")
    arrivals: int | None = Field(
        default=None, ge=1, le=10**6, description="A round also begins when so many pipelines have arrived."
    )
    unlocking: Annotated[Arrivals | Time, Field(discriminator="rule")] | None = Field(
        default=None, description="How blocks open; null opens them in full at once."
    )
    timeout: Number | None = Field(default=None, description="Seconds after which a waiting pipeline expires.")
    retire_after: Number | None = Field(default=None, description="Seconds after its arrival when a block retires.")
    round_limit: float = Field(default=60.0, ge=0.5, le=86_400, description="Seconds after which a round is abandoned.")
    lease: float = Field(default=5.0, ge=0.5, le=3600, description="Seconds until another replica may lead.")
    rounds_kept: int = Field(default=10_000, ge=10, le=10**7, description="Rounds that can be shown.")

    @property
    def rule(self) -> Unlocking:
        if isinstance(self.unlocking, Arrivals):
            return ByArrivals(n=self.unlocking.n, max_age=self.unlocking.max_age)
        if isinstance(self.unlocking, Time):
            return ByTime(lifetime=self.unlocking.lifetime, steps=self.unlocking.steps)
        return AtOnce()

    def check(self) -> Settings:
        """Itself, if both schedulers can be made."""
        self.decider()
        scheduler(self.fallback)
        return self


def settings_of(document: Mapping[str, Any]) -> Settings:
    """The settings that were kept, with defaults for what came later."""
    return Settings.model_validate(dict(document))
