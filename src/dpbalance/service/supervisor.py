"""Who watches over the rounds? The web process: it starts them, and again when they end or outlive their limit."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any

from dpbalance.clock import secret, stopwatch
from dpbalance.errors import DPBalanceError, Overloaded, SolverError, TooMany, of_code
from dpbalance.ledger import Ledger
from dpbalance.service.config import Config
from dpbalance.service.metrics import Metrics

GRACE_S = 10.0
"""So long a round that is under way may take to end when the server stops."""

RESTART_S = 0.2
LINE_MAX = 2**24
WORKER = [sys.executable, "-m", "dpbalance.service.worker"]


async def start(config: Config, **asked: Any) -> asyncio.subprocess.Process:
    """A worker that was told what to do."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        *WORKER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_MAX,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the web process, which ends this one in order
    )
    assert process.stdin is not None
    key = None if config.ledger_key is None else str(config.ledger_key)
    line = json.dumps({"database": config.database, "ledger_key": key, **asked})
    process.stdin.write(line.encode() + b"\n")
    await process.stdin.drain()
    return process


async def _ended(process: asyncio.subprocess.Process, grace: float) -> None:
    """Wait for the end of a process, and stop it for good before that takes longer than this."""
    try:
        await asyncio.wait_for(process.wait(), grace)
    except TimeoutError:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Supervisor:
    """One round process at a time."""

    def __init__(self, config: Config, ledger: Ledger, metrics: Metrics, log: Any) -> None:
        self.config, self.ledger, self.metrics, self.log = config, ledger, metrics, log
        self.process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()
        self._stopping = False
        self._deadline: float | None = None
        self._fallback = ""

    @property
    def well(self) -> bool:
        """Whether a round process runs and has said so."""
        return self.ready.is_set() and self.process is not None and self.process.returncode is None

    async def run(self) -> None:
        """Until `stop`, keep a round process going, whatever becomes of one."""
        while not self._stopping:
            try:
                await self._once()
            except Exception as problem:
                self.log.error("rounds", event_="failed", error=f"{type(problem).__name__}: {problem}", exc_info=True)
            if not self._stopping:
                await asyncio.sleep(RESTART_S)

    async def _once(self) -> None:
        holder = f"{socket.gethostname()[:60]}-{os.getpid()}-{secret()[:8]}"
        process = self.process = await start(self.config, do="rounds", holder=holder, fallback=self._fallback)
        self._deadline, self._fallback = None, ""
        watch = asyncio.create_task(self._watch(process))
        try:
            await self._listen(process)
        finally:
            self.ready.clear()
            watch.cancel()
            await _ended(process, GRACE_S if self._stopping else 0.0)
            self.metrics.event({"event": "ended"})
            await asyncio.to_thread(self._release, holder)
            self.log.warning("rounds", event_="ended", status=process.returncode)

    async def stop(self) -> None:
        """Let the round under way end, then end."""
        self._stopping = True
        process = self.process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), GRACE_S)
        except TimeoutError:
            process.kill()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
                if not line:
                    return
                told = json.loads(line)
                self._hear(told["event"], told)
            except (ValueError, KeyError, TypeError) as problem:  # a line too long is one of them
                self.log.warning("rounds", event_="unreadable", error=f"{type(problem).__name__}: {problem}"[:200])

    def _hear(self, kind: str, told: dict[str, Any]) -> None:
        self._deadline = stopwatch() + told["limit"] if kind == "begin" else None
        if kind == "begin":
            return
        self.metrics.event(told)
        if kind in ("ready", "lead", "follow"):
            self.ready.set()
        if kind != "idle":
            kept = {name: value for name, value in told.items() if name not in ("event", "left", "metrics")}
            self.log.info("round" if kind == "round" else f"rounds {kind}", **kept)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """A round that outlives its limit is stopped for good; nothing of it can be charged any more."""
        while True:
            await asyncio.sleep(0.1)
            if self._deadline is not None and stopwatch() > self._deadline:
                self._deadline = None
                self._fallback = "the round before outlived its limit"
                self.metrics.event({"event": "abandoned"})
                self.log.warning("round abandoned", limit="reached")
                process.kill()

    def _release(self, holder: str) -> None:
        try:
            self.ledger.release(holder)
        except DPBalanceError:
            return  # it did not hold the lease, or the lease ends by itself


class Solver:
    """Previews and explanations, one at a time, each in a process that can be stopped."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0
        self._owners: set[str] = set()

    async def once(self, owner: str, **asked: Any) -> dict[str, Any]:
        """One at a time for each token, so that nobody takes all the places."""
        if owner in self._owners:
            raise TooMany("an explanation for this token is under way", hint="the same again when it is there")
        self._owners.add(owner)
        try:
            return await self(**asked)
        finally:
            self._owners.discard(owner)

    async def __call__(self, **asked: Any) -> dict[str, Any]:
        if self._waiting >= self._config.solves_max:
            raise Overloaded("enough previews and explanations are waiting", hint="the same again in a second")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._solved(asked)
        finally:
            self._waiting -= 1

    async def _solved(self, asked: dict[str, Any]) -> dict[str, Any]:
        process = await start(self._config, **asked)
        try:
            assert process.stdout is not None  # stdin stays open: its end would end the process
            out = await asyncio.wait_for(process.stdout.read(), self._config.solve_limit)
        except TimeoutError:
            raise Overloaded(
                f"this takes longer than {self._config.solve_limit:g} s", hint="another scheduler, or fewer pipelines"
            ) from None
        finally:
            await _ended(process, 0.0)
        try:
            told: dict[str, Any] = json.loads(out.splitlines()[-1])
        except (ValueError, IndexError):
            raise SolverError("the decision ended without an answer", hint="the server's log") from None
        if "code" in told:
            raise of_code(told["code"], told["detail"], told["hint"])
        return told
