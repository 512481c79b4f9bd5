"""How is a server set up? A file, then the environment, then flags: what comes later wins."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from dpbalance.errors import FileFormatError, OptionError

FILE = "dpbalance.toml"
PREFIX = "DPBALANCE_"


class Config(BaseSettings):
    """Everything that stays the same while a server runs."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    database: str = Field(default="sqlite:///dpbalance.db", description="sqlite:///FILE or postgresql://HOST/NAME.")
    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8787, ge=0, le=65535, description="The port; 0 takes a free one.")
    tls_cert: Path | None = Field(default=None, description="Certificate for HTTPS.")
    tls_key: Path | None = Field(default=None, description="Its private key.")
    insecure: bool = Field(default=False, description="Listen off loopback without TLS, behind a proxy that has it.")
    ledger_key: Path | None = Field(default=None, description="The key that signs the ledger's journal.")
    orders: list[float] | None = Field(default=None, description="Renyi orders of a new ledger; none is order 8 alone.")
    first_token_file: Path = Field(default=Path("operator.token"), description="Where the first operator token goes.")
    log: str = Field(default="console", pattern="^(json|console|none)$", description="json, console or none.")
    body_max: int = Field(default=16 * 2**20, ge=1024, description="Bytes one request may carry.")
    bodies_max: int = Field(default=256 * 2**20, ge=1024, description="Bytes all requests under way may carry.")
    body_limit: float = Field(default=30.0, gt=0, description="Seconds until the body of a request must be there.")
    page_max: int = Field(default=500, ge=1, le=10_000, description="Items one page may have.")
    blocks_max: int = Field(default=100_000, ge=1, description="Blocks one pipeline may ask for.")
    demands_max: int = Field(default=2_000_000, ge=1, description="Blocks all pipelines of a request may ask for.")
    pending_max: int = Field(default=100_000, ge=1, description="Pipelines of one analyst that may wait.")
    queue_max: int = Field(default=20_000, ge=1, description="Pipelines that may wait to be written down.")
    rate: float = Field(default=2_000.0, gt=0, description="Requests a second of one token.")
    burst: float = Field(default=4_000.0, ge=1, description="Requests one token may make at once.")
    solve_limit: float = Field(default=30.0, gt=0, description="Seconds for a preview or an explanation.")
    solves_max: int = Field(default=4, ge=1, description="Previews and explanations that may wait.")
    connections_max: int = Field(default=2_000, ge=1, description="Requests under way at once.")
    strangers_max: int = Field(default=200, ge=1, description="Requests without a known token under way at once.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings

    def check(self) -> Config:
        """Itself, if it may listen as it says."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OptionError("TLS needs both a certificate and its key", hint="--tls-cert FILE --tls-key FILE")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise OptionError(f"there is no file {path}")
        if not (_loopback(self.host) or self.tls_cert or self.insecure):
            raise OptionError(
                f"{self.host} can be reached from elsewhere, and tokens would travel in the open",
                hint="--tls-cert FILE --tls-key FILE, or --insecure behind a proxy that has TLS",
            )
        return self


def load_config(file: Path | None = None, **flags: Any) -> Config:
    """Defaults, then the file, then DPBALANCE_* variables, then flags."""
    document = _from_file(file)
    named = {name[len(PREFIX) :].lower() for name in os.environ if name.startswith(PREFIX)}
    below = {name: value for name, value in document.items() if name not in named}
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Config(**{**below, **given}).check()
    except ValidationError as problem:
        first = problem.errors()[0]
        raise OptionError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", hint="dpbalance init") from None


def commented() -> str:
    """A configuration file with every setting and its default."""
    lines = ["# DPBalance server. DPBALANCE_NAME in the environment wins over this file, a flag over both.", ""]
    for name, field in Config.model_fields.items():
        lines += [f"# {field.description}", f"# {name} = {_toml(field.default)}", ""]
    return "\n".join(lines)


def _from_file(file: Path | None) -> dict[str, Any]:
    path = file or Path(os.environ.get(f"{PREFIX}CONFIG", FILE))
    if file is None and not path.is_file():
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise FileFormatError(f"cannot read {path}: {problem}") from None
    unknown = sorted(set(document) - set(Config.model_fields))
    if unknown:
        raise OptionError(f"{path} sets {unknown[0]!r}, which is no setting of a server", hint="dpbalance init")
    return document


def _toml(value: Any) -> str:
    if value is None:
        return '"..."'
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str | Path) else str(value)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
