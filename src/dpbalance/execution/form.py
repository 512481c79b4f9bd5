"""How does a value become text, and text a value that can be trusted in form? Canonical JSON, read strictly."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from dpbalance.clock import secret_name
from dpbalance.errors import FileFormatError

Value = TypeVar("Value")

DOCUMENT_BYTES_MAX = 16 * 2**20
"""Longer documents are refused before they are read."""


def canonical(value: Any) -> bytes:
    """The one way to write a value, so that its hash and its signature are always the same."""
    told = dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def parsed(kind: type[Value], text: bytes, what: str) -> Value:
    """The value this text says: every field there, none too many, each of its type."""
    if len(text) > DOCUMENT_BYTES_MAX:
        raise FileFormatError(f"{what} is longer than {DOCUMENT_BYTES_MAX} bytes")
    try:
        document = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as problem:
        raise FileFormatError(f"{what} is not JSON: {str(problem)[:100]}") from None
    made: Value = _made(kind, document, what)
    return made


def write_durably(path: Path, content: bytes) -> None:
    """All of it is on disk under this name, or nothing is."""
    half = path.with_name(f".{path.name}.{secret_name(4)}")
    try:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
        sync_folder(path.parent)
    except OSError:
        half.unlink(missing_ok=True)
        raise


def append_durably(handle: int, end: int, content: bytes) -> None:
    """Write this after the first `end` bytes and wait until it is on disk; what failed half-way is taken back."""
    try:
        os.ftruncate(handle, end)
        os.lseek(handle, end, os.SEEK_SET)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    except OSError:
        with suppress(OSError):  # whoever writes next cuts it off, too
            os.ftruncate(handle, end)
        raise


def sync_folder(folder: Path) -> None:
    """Names that were made in this folder survive a power cut from here on."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _made(kind: Any, found: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        names = {each.name for each in dataclasses.fields(kind)}
        if not isinstance(found, dict) or set(found) != names:
            odd = sorted(set(found) ^ names)[:3] if isinstance(found, dict) else "no object"
            raise FileFormatError(f"{where}: expected the fields of {kind.__name__}, found otherwise {odd}")
        return kind(**{name: _made(_hints(kind)[name], found[name], f"{where}.{name}") for name in sorted(names)})
    origin = get_origin(kind)
    if origin is UnionType:
        if found is None and NoneType in get_args(kind):
            return None
        return _made(next(each for each in get_args(kind) if each is not NoneType), found, where)
    if origin is tuple:
        if not isinstance(found, list):
            raise FileFormatError(f"{where} must be a list, not {str(found)[:60]!r}")
        return tuple(_made(get_args(kind)[0], each, f"{where}[{at}]") for at, each in enumerate(found))
    return _plain(kind, found, where)


def _plain(kind: Any, found: Any, where: str) -> Any:
    checks: dict[Any, Callable[[], bool]] = {
        str: lambda: isinstance(found, str),
        int: lambda: isinstance(found, int) and not isinstance(found, bool),
        float: lambda: isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found),
    }
    if not checks[kind]():
        raise FileFormatError(f"{where} must be {kind.__name__}, not {str(found)[:60]!r}")
    return kind(found)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a field stands twice")
    return made
