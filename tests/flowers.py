"""How does a test get a real SuperLink with SuperNodes, and devices with agents behind them?"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from fleets import Fleet

from dpbalance.clock import Deadline, RealClock
from dpbalance.execution import LocalRunner
from dpbalance.execution.flower_engine import CONNECTION, environment, install, write_connection
from dpbalance.execution.runs import Courier

WHERE = Path(os.environ.get("DPB_FLOWER", Path(__file__).parents[1] / ".venv" / "flower"))
"""Flower's own environment; made by the first test that needs it."""


def installed() -> Path:
    """Flower's environment, made once."""
    if not (WHERE / "bin" / "flower-superlink").exists():
        install(WHERE)
    return WHERE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(kw_only=True)
class Garden:
    """A SuperLink, a SuperNode and an agent for each device, in process groups of their own, so that all of it ends."""

    fleet: Fleet
    binaries: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.fleet.place / "flower"

    def start(self) -> None:
        self.ports = {name: free_port() for name in ("fleet", *self.fleet.folders)}
        write_connection(self.home, f"127.0.0.1:{self.ports['fleet']}", None)
        self.superlink()
        for device in self.fleet.folders:
            self.agent(device)
            self.node(device)

    def superlink(self) -> None:
        self._run(
            "superlink",
            str(self.binaries / "bin" / "flower-superlink"),
            *("--insecure", "--host", "127.0.0.1", "--port", str(self.ports["fleet"])),
            *("--database", str(self.home / "state.db"), "--disable-runtime-dependency-installation"),
        )
        self.wait_for(self.ports["fleet"])

    def node(self, device: str) -> None:
        state = self.fleet.folders[device] / ".dpbalance"
        self._run(
            f"node {device}",
            str(self.binaries / "bin" / "flower-supernode"),
            *("--insecure", "--superlink", f"127.0.0.1:{self.ports['fleet']}", "--port", str(self.ports[device])),
            *("--node-config", f'device="{device}" agent="{state}"'),
        )

    def agent(self, device: str) -> None:
        folder = self.fleet.folders[device]
        program = "from dpbalance.cli import main; main()"
        command = [sys.executable, "-c", program, "agent", "--device", device, "--blocks", str(folder), "--serve"]
        self._run(f"agent {device}", *command)
        self.until((folder / ".dpbalance" / "agent.sock").exists)

    def runner(self, **more: float) -> LocalRunner:
        courier = Courier(
            environment=str(self.binaries),
            home=str(self.home),
            connection=CONNECTION,
            answer_seconds=more.pop("answer", 20.0),
        )
        public = self.fleet.runner()._public
        place = self.fleet.place / "runs"
        return LocalRunner(place, {}, public=public, courier=courier, **more)  # type: ignore[arg-type]

    def kill(self, name: str) -> None:
        """All at once, and whatever it started."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def wait_for(self, port: int) -> None:
        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.until(answers)

    @staticmethod
    def until(condition: object, seconds: float = 60.0) -> None:
        deadline = Deadline(seconds)
        while not condition():  # type: ignore[operator]
            assert not deadline.passed
            RealClock().sleep(0.05)

    def _run(self, name: str, *command: str) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        told = {**environment(str(self.home)), "PATH": f"{self.binaries / 'bin'}:{os.environ['PATH']}"}
        with (self.home / f"{name.replace(' ', '-')}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=told, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
