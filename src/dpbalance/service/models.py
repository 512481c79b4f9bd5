"""What may be asked of the service, and what does it answer? The same values make the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dpbalance.service.settings import Deciding, Strict

PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@~-]{0,99}$"
Name = Annotated[str, StringConstraints(pattern=PATTERN)]
"""What can stand in a path, in a table and in a log without being quoted."""

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
Label = Annotated[str, StringConstraints(max_length=200, pattern=PRINTABLE)]
"""What people call something."""

Number = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]
Amount = Number | Annotated[list[Annotated[float, Field(ge=0, le=10**6)]], Field(min_length=1, max_length=64)]
"""Epsilon at the ledger's order, or one number for each of its orders."""

Weight = Annotated[float, Field(ge=1e-12, le=1e12)]
Role = Literal["analyst", "contributor", "operator", "auditor"]
BULK_MAX = 5_000
"""The most pipelines, devices or blocks one request may bring."""


class Gaussian(Strict):
    recipe: Literal["gaussian"]
    noise_multiplier: float = Field(ge=1e-6, le=1e12)


class Laplace(Strict):
    recipe: Literal["laplace"]
    noise_multiplier: float = Field(ge=1e-6, le=1e12)


class SubsampledGaussian(Strict):
    recipe: Literal["subsampled-gaussian"]
    noise_multiplier: float = Field(ge=1e-6, le=1e12)
    sampling_rate: float = Field(ge=1e-12, le=1)
    steps: int = Field(default=1, ge=1, le=10**12)


Part = Annotated[Gaussian | Laplace | SubsampledGaussian, Field(discriminator="recipe")]


class Composition(Strict):
    recipe: Literal["composition"]
    parts: list[Part] = Field(min_length=1, max_length=20)
    counts: list[Annotated[int, Field(ge=1, le=10**12)]] | None = None


Recipe = Annotated[Gaussian | Laplace | SubsampledGaussian | Composition, Field(discriminator="recipe")]


class Share(Strict):
    share: float = Field(gt=0, le=1, description="Part of all devices, drawn by the service.")


class Sample(Strict):
    sample: int = Field(ge=1, le=10**6, description="So many devices, drawn by the service.")


class Named(Strict):
    named: list[Name] = Field(min_length=1, max_length=10_000)


class Latest(Strict):
    latest: int = Field(ge=1, le=10_000, description="The newest windows of each device.")


class Between(Strict):
    first: Name
    last: Name


class Ask(Strict):
    """A pipeline: devices and windows with a cost on each block, or blocks with a cost of their own."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"analyst": "ana", "devices": "all", "windows": {"latest": 2}, "cost": 0.1, "weight": 2.0},
                {
                    "analyst": "ana",
                    "devices": {"share": 0.5},
                    "windows": {"latest": 1},
                    "cost": {"recipe": "subsampled-gaussian", "noise_multiplier": 1.1, "sampling_rate": 0.01},
                },
                {"analyst": "ana", "blocks": {"phone-1/monday": 0.2}, "max_multiple": 1.0},
            ]
        }
    )
    analyst: Name | None = Field(default=None, description="For whom; an analyst asks for itself.")
    label: Label = Field(default="", description="What people call it.")
    devices: Literal["all"] | Share | Sample | Named | None = None
    windows: Latest | Between | None = None
    cost: Amount | Recipe | None = Field(default=None, description="Epsilon on each block, or a training recipe.")
    blocks: Annotated[dict[str, Amount], Field(min_length=1, max_length=100_000)] | None = None
    weight: Weight = 1.0
    loss: Weight = 1.0
    max_multiple: Annotated[float, Field(ge=1, le=1e9)] | None = None
    deadline: Annotated[float, Field(ge=0, le=1e11)] | None = Field(default=None, description="Unix seconds.")

    @model_validator(mode="after")
    def _one_way(self) -> Ask:
        chosen = [self.devices is not None, self.windows is not None, self.cost is not None]
        if all(chosen) == (self.blocks is not None) or (any(chosen) and not all(chosen)):
            raise ValueError("give devices, windows and cost, or blocks alone")
        return self


class Asks(Strict):
    pipelines: list[Ask] = Field(min_length=1, max_length=BULK_MAX)


class NewAnalyst(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ana", "priority": 2.0}]})
    name: Name
    priority: float = Field(default=1.0, ge=1e-3, le=1e3, description="As how many analysts it counts.")


class Priority(Strict):
    priority: float = Field(ge=1e-3, le=1e3)


class NewDevice(Strict):
    name: Name
    contributor: Name | None = Field(default=None, description="Whose data it holds; a contributor enrols its own.")


class NewDevices(Strict):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"devices": [{"name": "phone-1", "contributor": "maria"}]}]}
    )
    devices: list[NewDevice] = Field(min_length=1, max_length=BULK_MAX)


class NewBlock(Strict):
    device: Name
    window: Name
    budget: Amount


class NewBlocks(Strict):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"blocks": [{"device": "phone-1", "window": "monday", "budget": 1.0}]}]}
    )
    blocks: list[NewBlock] = Field(min_length=1, max_length=BULK_MAX)


class BlockChange(Strict):
    """Another budget, or another state: thawing and raising is the contributor's."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"budget": 0.5}, {"state": "frozen"}]})
    budget: Amount | None = None
    state: Literal["open", "frozen", "retired"] | None = None

    @model_validator(mode="after")
    def _one_change(self) -> BlockChange:
        if (self.budget is None) == (self.state is None):
            raise ValueError("give either budget or state")
        return self


class NewToken(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "analyst", "name": "ana"}]})
    role: Role
    name: Name = Field(description="The analyst or contributor it speaks for; anything for the other roles.")
    label: Label = ""
    seconds: Annotated[float, Field(gt=0, le=1e9)] | None = Field(default=None, description="How long it is valid.")


class Preview(Deciding):
    model_config = ConfigDict(json_schema_extra={"examples": [{"scheduler": "dpbalance", "beta": 0.5}]})


class Pipeline(BaseModel):
    id: str
    analyst: str
    label: str
    state: Literal["pending", "granted", "running", "completed", "failed", "voided", "cancelled", "expired"]
    submitted: float
    weight: float
    loss: float
    max_multiple: float | None
    deadline: float | None
    asked: dict[str, Any]
    seed: int | None = Field(description="What the devices were drawn with.")
    denial: dict[str, Any] | None = Field(description="Why the last round did not serve it.")
    round: int | None = Field(description="The round that granted it.")
    grant: int | None
    multiple: float | None


class Pipelines(BaseModel):
    items: list[Pipeline]
    next: str | None = None


class Accepted(BaseModel):
    """What many pipelines are called, in the order in which they were given."""

    ids: list[str]
    dry_run: bool = False


class Analyst(BaseModel):
    name: str
    priority: float
    created: float


class Analysts(BaseModel):
    items: list[Analyst]
    next: str | None = None


class Device(BaseModel):
    name: str
    contributor: str


class Devices(BaseModel):
    items: list[Device]
    next: str | None = None


class Block(BaseModel):
    id: str
    device: str
    window: str
    state: Literal["open", "frozen", "retired"]
    arrived: float
    spent: Any
    unlocked: Any
    capacity: Any


class Blocks(BaseModel):
    items: list[Block]
    next: str | None = None


class Count(BaseModel):
    count: int
    dry_run: bool = False


class Round(BaseModel):
    number: int
    state: Literal["charging", "decided", "refused", "abandoned"]
    started: float
    seconds: float | None
    scheduler: str | None = None
    metrics: dict[str, Any] | None = None
    pending: int = 0
    granted: int = 0
    denied: dict[str, int] = {}
    notes: list[str] = []


class Rounds(BaseModel):
    items: list[Round]
    next: str | None = None


class Decided(Round):
    grants: list[dict[str, Any]]
    denials: list[dict[str, Any]] = Field(description="Those whose reason is new since the round before.")


class Ran(BaseModel):
    done: bool
    round: int | None = Field(description="The newest round; none when nothing was ever pending.")


class Compared(BaseModel):
    """What would be decided now, and against the present settings."""

    scheduler: str
    metrics: dict[str, Any]
    present: dict[str, Any]
    analysts: list[dict[str, Any]]
    grants: list[dict[str, Any]]


class Grant(BaseModel):
    grant: int
    pipeline: str
    analyst: str
    state: str
    round: int | None
    multiple: float


class Grants(BaseModel):
    items: list[Grant]
    next: str | None = None


class GrantShown(Grant):
    cost: dict[str, Any]


class Statement(BaseModel):
    lines: list[dict[str, Any]]


class Token(BaseModel):
    id: str
    role: Role
    name: str
    label: str
    created: float
    expires: float | None
    revoked: float | None


class Tokens(BaseModel):
    items: list[Token]
    next: str | None = None


class MadeToken(Token):
    secret: str | None = Field(description="Shown once: asked again under the same key, it is null.")


class Whoami(BaseModel):
    role: Role
    name: str


class Health(BaseModel):
    ok: bool
    checks: dict[str, str] = {}


class Problem(BaseModel):
    """RFC 9457, with the code of the errors table."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    errors: list[dict[str, Any]] = []
