"""Which schedulers are there, and what can be set on each? Built-in names first, then those other packages add.

Nothing is imported before it is asked for: a name here costs a line, a scheduler costs its solver.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dpbalance.errors import OptionError, UnknownScheduler
from dpbalance.scheduler.protocol import Scheduler

GROUP = "dpbalance.schedulers"

BUILT_IN = {
    "dpbalance": "dpbalance.scheduler.dpbalance:DPBalance",
    "dpf": "dpbalance.scheduler.dpf:DPF",
    "dpk": "dpbalance.scheduler.dpk:DPK",
    "fcfs": "dpbalance.scheduler.fcfs:FCFS",
    "round-robin": "dpbalance.scheduler.round_robin:RoundRobin",
    "optimal": "dpbalance.scheduler.optimal:Optimal",
}
"""No other package may take one of these names."""

WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that can be set on a scheduler."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def allowed(self) -> str:
        """What it can be, in words."""
        return " or ".join(_in_words(each) for each in _kinds(self.type))

    def checked(self, value: Any) -> Any:
        """The value, if it is of a kind this option can be."""
        for kind in _kinds(self.type):
            if get_origin(kind) is Literal:
                accepted = value in get_args(kind) and isinstance(value, str)
            elif kind is float:
                accepted = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
            elif kind is int:
                accepted = isinstance(value, int) and not isinstance(value, bool)
            else:
                accepted = kind is Any or isinstance(value, kind)
            if accepted:
                return float(value) if kind is float else value
        raise self.refused(value)

    def parsed(self, text: str) -> Any:
        """The value that a text on the command line stands for."""
        for kind in _kinds(self.type):
            try:
                return self.checked(_read(kind, text.strip()))
            except (ValueError, OptionError):
                continue
        raise self.refused(text)

    def refused(self, value: Any) -> OptionError:
        return OptionError(f"option {self.name!r} must be {self.allowed}, not {str(value)[:60]!r}")


def scheduler(name: str, **options: Any) -> Scheduler:
    """The scheduler of this name, with these options set.

    >>> scheduler("dpk", recompute_every=1).recompute_every
    1
    """
    factory = _factory(name)
    known = {each.name: each for each in options_of(name)}
    made = factory(**{key: _known(name, known, key).checked(value) for key, value in options.items()})
    if not isinstance(made, Scheduler):
        raise UnknownScheduler(f"scheduler {name!r} cannot decide: it has no method decide(round)")
    return made


def scheduler_names() -> tuple[str, ...]:
    """All names: the built-in ones, then those of other packages."""
    return (*BUILT_IN, *sorted(_added()))


def options_of(name: str) -> tuple[Option, ...]:
    """What can be set on this scheduler; empty for one that is not a dataclass."""
    return fields_as_options(_factory(name))


def fields_as_options(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """What can be set when a dataclass is made, with what stands under each field as its help."""
    if not is_dataclass(factory) or not isinstance(factory, type):
        return ()
    hints, helps = get_type_hints(factory), _helps(factory)
    return tuple(
        Option(
            name=each.name,
            type=hints[each.name],
            default=each.default_factory() if each.default_factory is not MISSING else each.default,
            help=helps.get(each.name, ""),
        )
        for each in fields(factory)
        if each.init
    )


def options_from_text(name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Options as they stand on a command line, with the types this scheduler gives them.

    >>> options_from_text("dpk", {"recompute_every": "1", "beta": "inf"})
    {'recompute_every': 1, 'beta': inf}
    """
    known = {each.name: each for each in options_of(name)}
    return {key: _known(name, known, key).parsed(text) for key, text in texts.items()}


def _known(name: str, known: Mapping[str, Option], key: str) -> Option:
    if key not in known:
        choice = f"it has {', '.join(known)}" if known else "it has no options"
        raise OptionError(f"scheduler {name!r} has no option {key!r}; {choice}")
    return known[key]


def _factory(name: str) -> Callable[..., Any]:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: Callable[..., Any] = getattr(import_module(module), attribute)
        return built_in
    added = _added()
    if name not in added:
        raise UnknownScheduler(
            f"there is no scheduler {str(name)[:60]!r}; known are {', '.join(scheduler_names())}",
            hint="installing the package that adds it",
        )
    try:
        factory = added[name].load()
    except Exception as problem:
        raise UnknownScheduler(f"scheduler {name!r} ({added[name].value}) cannot be loaded: {problem}") from problem
    if not callable(factory):
        raise UnknownScheduler(f"scheduler {name!r} ({added[name].value}) cannot be called to make one")
    made: Callable[..., Any] = factory
    return made


@cache
def _added() -> Mapping[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=GROUP) if each.name not in BUILT_IN}


def _helps(factory: type) -> dict[str, str]:
    """The text under each field, which only the source still has."""
    helps: dict[str, str] = {}
    for each in reversed(factory.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    helps[field.target.id] = inspect.cleandoc(str(text.value.value))
    return helps


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a type, None first: the text 'none' is then no name of a file."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(sorted(alternatives, key=lambda each: (each is not NoneType, each is str)))


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(each) for each in get_args(kind))
    return NAMES.get(kind, str(kind))


def _read(kind: Any, text: str) -> Any:
    """The text as this kind, or ValueError."""
    if kind is NoneType:
        if text.lower() in ("none", "null"):
            return None
        raise ValueError
    if kind is bool:
        if text.lower() in WORDS:
            return WORDS[text.lower()]
        raise ValueError
    return kind(text) if kind in (int, float) else text
