"""How are devices reached that are far away? Through Flower, in a virtual environment of its own.

Flower only carries messages. The worker of a run is the same as for devices on this machine; it has Flower run a
courier app, and asks its devices at the courier's socket. So plans, receipts, quorum, results and settlement do not
depend on what Flower says of a run, which is not to be trusted: a client that raised and a node that was killed both
end as completed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import as_file, files
from pathlib import Path

from dpbalance.clock import Deadline, RealClock
from dpbalance.errors import EngineError, PlanRefused
from dpbalance.execution.link import ANSWER_SECONDS, Link, Message, Remote, address_of, receive, send
from dpbalance.execution.runs import Courier

CONNECTION = "dpbalance"
"""What the connection is called in Flower's own configuration."""

HOME = "home"
"""Folder of that configuration, inside the environment."""

GATEWAY = "gateway.sock"

SUBMIT_SECONDS, BEGIN_SECONDS = 60.0, 60.0
"""How long Flower may take to accept a run, and to begin with it."""

FIND_SECONDS = 60.0
"""How long the courier looks for the node of a device, as `NODES_SECONDS` in it says, too."""

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def environment(home: str) -> dict[str, str]:
    """Every Flower command runs in this: it calls nobody."""
    return {**os.environ, **QUIET, "FLWR_HOME": home}


def install(folder: Path) -> Path:
    """Make Flower's virtual environment; the folder."""
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, text=True)
        with as_file(files("dpbalance.execution.flower").joinpath("pins.txt")) as pins:
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "-r", str(pins)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        said = getattr(problem, "stderr", None) or str(problem)
        raise EngineError(f"Flower could not be installed in {folder}: {said.strip()[-300:]}") from None
    return folder


def courier_of(folder: Path, *, answer_seconds: float = ANSWER_SECONDS) -> Courier:
    """How to reach devices with the Flower in this folder."""
    if not (folder / "bin" / "flwr").exists():
        raise EngineError(f"there is no Flower in {folder}", hint="dpbalance engine install flower")
    home = folder / HOME
    if not (home / "config.toml").exists():
        raise EngineError(
            f"the Flower in {folder} is connected to no SuperLink", hint="dpbalance engine connect ADDRESS"
        )
    return Courier(
        environment=str(folder.absolute()),
        home=str(home.absolute()),
        connection=CONNECTION,
        answer_seconds=answer_seconds,
    )


def write_connection(home: Path, address: str, certificate: Path | None, name: str = CONNECTION) -> None:
    """Tell Flower's commands where the SuperLink is. Without a certificate only one on this machine is accepted."""
    host = address.rpartition(":")[0]
    if certificate is None and host not in ("127.0.0.1", "localhost", "::1", "[::1]"):
        raise EngineError(
            f"a SuperLink at {host} must be reached with TLS; only one on this machine may do without",
            hint="--certificate FILE",
        )
    trusted = "insecure = true" if certificate is None else f"root-certificates = {json.dumps(str(certificate))}"
    home.mkdir(parents=True, exist_ok=True)
    text = f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{address}"\n{trusted}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


@contextmanager
def couriers(courier: Courier, folder: Path, devices: Sequence[str], seconds: float) -> Iterator[Mapping[str, Link]]:
    """Links to these devices while the courier app runs; it is told to end in the end."""
    _submit(courier, folder, seconds)
    deadline = Deadline(BEGIN_SECONDS)
    while not (folder / GATEWAY).exists():
        if deadline.passed:
            raise EngineError(f"Flower accepted the run and did not begin it within {BEGIN_SECONDS:g} s")
        RealClock().sleep(0.1)
    try:
        yield {device: Carried(folder, device, courier.answer_seconds) for device in devices}
    finally:
        with suppress(EngineError):
            _through(folder, "", b"", 1.0)
        (folder / GATEWAY).unlink(missing_ok=True)


class Carried(Remote):
    """An agent behind a Flower node."""

    def __init__(self, folder: Path, device: str, seconds: float) -> None:
        self._folder, self._device, self._seconds = folder, device, seconds

    def _ask(self, message: Message, body: bytes) -> bytes:
        asked = io.BytesIO()
        send(asked, message, body)
        answer = _through(self._folder, self._device, asked.getvalue(), self._seconds)
        try:
            heard, content = receive(io.BytesIO(answer))
        except EOFError as problem:
            raise EngineError(f"the agent of {self._device} does not answer: {problem}") from None
        if heard.what != "sent":
            raise PlanRefused(heard.note)
        return content


def _submit(courier: Courier, folder: Path, seconds: float) -> None:
    app = folder / "app"
    (app / "courier").mkdir(parents=True, exist_ok=True)
    source = files("dpbalance.execution.flower")
    (app / "pyproject.toml").write_text(source.joinpath("app.toml").read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("server_app.py", "client_app.py"):
        text = source.joinpath(name).read_text(encoding="utf-8")
        (app / "courier" / name).write_text(text, encoding="utf-8")
    (app / "courier" / "__init__.py").write_text('"""A courier."""\n', encoding="utf-8")
    told = f"gateway={json.dumps(str((folder / GATEWAY).resolve()))} seconds={float(seconds)}"
    binary = Path(courier.environment) / "bin" / "flwr"
    command = [str(binary), "run", str(app), courier.connection, "-c", told, "--format", "json"]
    search = os.pathsep.join([str(binary.parent), os.environ.get("PATH", "")])
    try:
        done = subprocess.run(
            command,
            env={**environment(courier.home), "PATH": search},
            capture_output=True,
            text=True,
            timeout=SUBMIT_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout[done.stdout.find("{") :] or "{}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise EngineError(f"Flower did not take the run: {str(problem)[:300]}") from None
    if not answer.get("success"):
        raise EngineError(f"Flower did not take the run: {str(answer or done.stderr)[-300:]}")
    shutil.rmtree(app)


def _through(folder: Path, device: str, body: bytes, seconds: float) -> bytes:
    """One ask at the courier's socket."""
    try:
        with socket.socket(socket.AF_UNIX) as speaking, address_of(folder, GATEWAY) as address:
            speaking.settimeout(seconds + FIND_SECONDS + 5 if device else seconds)
            speaking.connect(address)
            with speaking.makefile("rwb") as file:
                told = {"device": device, "seconds": seconds, "length": len(body)}
                file.write(json.dumps(told).encode() + b"\n" + body)
                file.flush()
                answer = json.loads(file.readline() or b"{}")
                content = file.read(answer.get("length", 0))
    except (OSError, ValueError) as problem:
        raise EngineError(f"the courier to {device} does not answer: {problem}") from None
    if device and not content:
        raise EngineError(f"{device} is not reached: {answer.get('note') or 'it said nothing'}")
    return content
