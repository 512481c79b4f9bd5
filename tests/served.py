"""How does a test run a real server? As a process of its own on a free port, stopped by its own number."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from dpbalance.client import Client

READY_S = 60.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Served:
    """One server: a web process with its round process."""

    def __init__(self, folder: Path, database: str = "", scheme: str = "http", **settings: Any) -> None:
        self.folder, self.port = folder, free_port()
        self.database = database or f"sqlite:///{folder / 'budget.db'}"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.log = folder / f"log-{self.port}"
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        self.clients: list[Client] = []
        self.start()

    def start(self) -> None:
        told = {
            "DATABASE": self.database,
            "PORT": str(self.port),
            "LOG": "json",
            "FIRST_TOKEN_FILE": str(self.folder / "operator.token"),
            "LEDGER_KEY": str(self.folder / "ledger.key"),
            **{name.upper(): str(value) for name, value in self.settings.items()},
        }
        environment = {**os.environ, **{f"DPBALANCE_{name}": value for name, value in told.items()}}
        command = [sys.executable, "-m", "dpbalance", "serve"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)
        until = time.monotonic() + READY_S
        while not self.is_ready():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", trust_env=False, verify=False).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def token(self) -> str:
        return (self.folder / "operator.token").read_text().strip()

    def client(self, token: str = "", **more: Any) -> Client:
        self.clients.append(Client(self.url, token or self.token, **more))
        return self.clients[-1]

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [each for each in lines if each["event"] == name]

    @property
    def rounds_pid(self) -> int:
        return int(self.events("rounds ready")[-1]["pid"])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, as an operator would."""
        for each in self.clients:
            each.close()
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


def until(seconds: float, holds: Any) -> float:
    """How long it took until this held."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began
