"""How does an engine reach a device? In its own process, or at the socket of an agent that serves.

A message is one line of JSON and so many bytes after it. Whoever can open the socket may speak: it lies in the device's
own folder and is readable by its owner only, and a plan counts by its signature, not by who brought it.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dpbalance.clock import Clock
from dpbalance.errors import EngineError, FileFormatError, PlanRefused
from dpbalance.execution.agent import STATE, Agent
from dpbalance.execution.form import canonical, parsed
from dpbalance.execution.models import Floats
from dpbalance.execution.signature import Envelope

SOCKET = "agent.sock"

ANSWER_SECONDS = 60.0
"""A device that takes longer for one answer is lost to the run."""

FAILED = "this device could not do what it was asked"
"""All that leaves a device of a problem it has with itself."""

MESSAGE_BYTES_MAX = 2**30
LINE_BYTES_MAX = 16 * 2**20


class Stream(Protocol):
    """What can be read from and written to."""

    def readline(self, size: int, /) -> bytes: ...

    def read(self, size: int, /) -> bytes: ...

    def write(self, content: bytes, /) -> int: ...

    def flush(self) -> None: ...


class Link(Protocol):
    """A device, as an engine sees it."""

    def accept(self, envelope: Envelope) -> object: ...

    def answer(self, run: str, number: int, parameters: Floats) -> bytes: ...

    def loss(self, run: str, parameters: Floats) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The line before the bytes: `what` is accept, answer, loss, sent or refused."""

    what: str
    run: str = ""
    number: int = 0
    envelope: Envelope | None = None
    note: str = ""
    length: int = 0


class Remote(ABC):
    """An agent that is asked by messages."""

    def accept(self, envelope: Envelope) -> object:
        return self._ask(Message(what="accept", envelope=envelope), b"")

    def answer(self, run: str, number: int, parameters: Floats) -> bytes:
        return self._ask(Message(what="answer", run=run, number=number), _bytes(parameters))

    def loss(self, run: str, parameters: Floats) -> bytes:
        return self._ask(Message(what="loss", run=run), _bytes(parameters))

    @abstractmethod
    def _ask(self, message: Message, body: bytes) -> bytes: ...


class Served(Remote):
    """An agent in another process on this machine."""

    def __init__(self, folder: Path, seconds: float = ANSWER_SECONDS) -> None:
        self._folder, self._seconds = folder, seconds

    def _ask(self, message: Message, body: bytes) -> bytes:
        """Asked again once if the agent goes away meanwhile: it answers the same, or what it had not sent yet."""
        try:
            return self._ask_once(message, body)
        except (OSError, EOFError) as problem:
            if isinstance(problem, TimeoutError):
                raise EngineError(f"the agent in {self._folder} takes longer than {self._seconds:g} s") from None
        try:
            return self._ask_once(message, body)
        except (OSError, EOFError) as problem:
            raise EngineError(f"the agent in {self._folder} does not answer: {problem}") from None

    def _ask_once(self, message: Message, body: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as speaking, address_of(self._folder / STATE, SOCKET) as address:
            speaking.settimeout(self._seconds)
            speaking.connect(address)
            with speaking.makefile("rwb") as file:
                send(file, message, body)
                heard, content = receive(file)
        if heard.what != "sent":
            raise PlanRefused(heard.note)
        return content


def linked(folder: Path, clock: Clock | None = None) -> Link:
    """The agent that serves this folder, or one made here for it."""
    if (folder / STATE / SOCKET).exists():
        return Served(folder)
    return Agent(folder, clock=clock)


def serve(agent: Agent, ready: Callable[[], None] = lambda: None, times: int | None = None) -> None:
    """Answer whoever asks, one after the other, until stopped."""
    path = agent.folder / STATE / SOCKET
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        with address_of(agent.folder / STATE, SOCKET) as address:
            before = os.umask(0o177)
            try:
                listening.bind(address)
            finally:
                os.umask(before)
        listening.listen(64)
        ready()
        try:
            while times is None or times > 0:
                speaking, _ = listening.accept()
                times = None if times is None else times - 1
                with speaking, speaking.makefile("rwb") as file:
                    speaking.settimeout(ANSWER_SECONDS)
                    _answer(agent, file)
        finally:
            path.unlink(missing_ok=True)


def _answer(agent: Agent, file: Stream) -> None:
    try:
        message, body = receive(file)
        try:
            content = _done(agent, message, body)
        except PlanRefused as refusal:
            send(file, Message(what="refused", note=refusal.message), b"")
        except Exception:
            # the text of a problem may hold what a record holds: it stays here
            send(file, Message(what="refused", note=FAILED), b"")
        else:
            send(file, Message(what="sent"), content)
    except Exception:
        return  # whoever asked has gone, or never spoke our language; the answer, if any, is kept for the next time


def _done(agent: Agent, message: Message, body: bytes) -> bytes:
    if message.what == "accept" and message.envelope is not None:
        agent.accept(message.envelope)
        return b""
    if len(body) % 8:
        raise PlanRefused("a model must be whole numbers of eight bytes")
    parameters = np.frombuffer(body, dtype="<f8").astype(np.float64)
    if message.what == "answer":
        return agent.answer(message.run, message.number, parameters)
    if message.what == "loss":
        return agent.loss(message.run, parameters)
    raise PlanRefused(f"no agent knows what {message.what[:60]!r} is")


def send(file: Stream, message: Message, body: bytes) -> None:
    """Write a message."""
    told = {name: getattr(message, name) for name in Message.__slots__}
    envelope = message.envelope
    told["envelope"] = envelope and {"document": envelope.document, "signature": envelope.signature}
    file.write(canonical({**told, "length": len(body)}) + b"\n" + body)
    file.flush()


def receive(file: Stream) -> tuple[Message, bytes]:
    """Read a message to its end."""
    line = file.readline(LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        raise EOFError("it went silent")
    message = parsed(Message, line, "message")
    if not 0 <= message.length <= MESSAGE_BYTES_MAX:
        raise FileFormatError(f"a message of {message.length} bytes is too long")
    body = file.read(message.length)
    if len(body) != message.length:
        raise EOFError("it went silent in the middle of a message")
    return message, body


def _bytes(parameters: Floats) -> bytes:
    return np.ascontiguousarray(parameters, dtype="<f8").tobytes()


@contextmanager
def address_of(folder: Path, name: str) -> Iterator[str]:
    """A socket by a short name: a path of more than about a hundred characters cannot be one."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{name}" if Path("/proc/self/fd").is_dir() else str(folder / name)
    finally:
        os.close(handle)
