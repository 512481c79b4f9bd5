"""What runs beside the web process? The rounds of one replica, or one preview or explanation; told over pipes.

The first line on stdin says what to do, and the process ends when stdin does; every event is a line of JSON on stdout.
Whatever else is printed here, by a scheduler or by what it calls, goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from dpbalance.clock import Clock, RealClock, stopwatch
from dpbalance.errors import DPBalanceError, Fenced
from dpbalance.ledger import Ledger, open_ledger
from dpbalance.service.database import Database
from dpbalance.service.keeping import read_settings, read_state
from dpbalance.service.rounds import Rounds
from dpbalance.service.settings import Settings
from dpbalance.service.tables import state

Tell = Callable[[dict[str, Any]], None]

TICK_S = 0.05
"""So often the loop looks whether a round is due."""

TROUBLE_S = 0.5
"""So long it waits after something went wrong."""

PRIVATE = 0o077
"""What these processes write is for their owner alone."""


class Loop:
    """Leads when it can, and runs the rounds that are due."""

    def __init__(
        self, database: Database, ledger: Ledger, clock: Clock, holder: str, tell: Tell, fallback: str = ""
    ) -> None:
        self.database, self.ledger, self.clock, self.holder, self.tell = database, ledger, clock, holder, tell
        self.fallback = fallback
        self.stopping = Event()
        self.rounds: Rounds | None = None
        self.lease = 5.0
        self.renewed = -float("inf")
        self.last = -float("inf")
        self.arrived = 0

    def step(self) -> bool:
        """Look once; whether a round was run."""
        with self.database.reading() as connection:
            settings, _ = read_settings(connection)
            row = read_state(connection)
        self.lease = settings.lease
        if not self._lead(settings):
            return False
        now = self.clock.now()
        enough = settings.arrivals is not None and row.pipelines - self.arrived >= settings.arrivals
        if not (row.asked > row.done or now - self.last >= settings.every or enough or now < self.last):
            return False
        self.last, self.arrived = now, row.pipelines
        self._round(settings, int(row.asked))
        return True

    def _round(self, settings: Settings, asked: int) -> None:
        assert self.rounds is not None
        self.tell({"event": "begin", "limit": settings.round_limit})
        told = self.rounds.run(settings, fallback=self.fallback)
        self.fallback = ""
        with self.database.writing() as connection:
            connection.execute(state.update().where(state.c.done < asked).values(done=asked))
        self.tell({"event": "idle"} if told is None else {"event": "round", **told})

    def _lead(self, settings: Settings) -> bool:
        """Take or keep the lease; a new token begins with healing what the one before left."""
        if stopwatch() - self.renewed < settings.lease / 3 and self.rounds is not None:
            return True
        try:
            mine = None if self.rounds is None else self.rounds.token
            token = self.ledger.acquire(self.holder, settings.lease, token=mine)
        except Fenced:
            self._follow()
            return False
        self.renewed = stopwatch()
        if self.rounds is None or self.rounds.token != token:
            rounds = Rounds(self.database, self.ledger, self.clock, token)
            rounds.heal()
            self.rounds = rounds
            self.tell({"event": "lead", "token": token})
        return True

    def _follow(self) -> None:
        if self.rounds is not None:
            self.tell({"event": "follow"})
        self.rounds = None

    def renew(self) -> None:
        """Keep the lease while a long decision is made; kernels let other threads run."""
        while not self.stopping.wait(max(self.lease / 6, TICK_S)):
            rounds = self.rounds
            if rounds is not None and stopwatch() - self.renewed >= self.lease / 3:
                try:
                    self.ledger.acquire(self.holder, self.lease, token=rounds.token)
                    self.renewed = stopwatch()
                except DPBalanceError:
                    continue  # the loop, or the charge itself, finds out

    def forever(self) -> None:
        Thread(target=self.renew, daemon=True).start()
        while not self.stopping.is_set():
            try:
                self.step()
                pause = TICK_S
            except DPBalanceError as problem:
                self.tell({"event": "failed", "why": str(problem)})
                self.rounds = None  # what became of the last write is not known: lead and heal anew
                self.renewed = -float("inf")
                pause = TROUBLE_S
            self.stopping.wait(pause)
        if self.rounds is not None:
            try:
                self.ledger.release(self.holder, token=self.rounds.token)
            except DPBalanceError:
                return  # it ends by itself


def main() -> None:
    """Do what the first line on stdin says."""
    os.umask(PRIVATE)
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(event: dict[str, Any]) -> None:
        try:
            print(json.dumps(event), file=events, flush=True)
        except BrokenPipeError:
            os._exit(0)  # whoever started this process is gone

    asked = json.loads(sys.stdin.readline())
    if asked["do"] != "rounds":
        Thread(target=_until_the_end, args=[lambda: os._exit(0)], daemon=True).start()
    database = Database(asked["database"])
    ledger = open_ledger(asked["database"], key_file=asked["ledger_key"])
    if asked["do"] != "rounds":
        from dpbalance.service.solving import answer

        tell(answer(database, ledger, RealClock(), asked))
        os._exit(0)  # the thread that reads stdin would wait for its end
    loop = Loop(database, ledger, RealClock(), asked["holder"], tell, asked["fallback"])
    Thread(target=_until_the_end, args=[loop.stopping.set], daemon=True).start()
    tell({"event": "ready", "pid": os.getpid()})
    loop.forever()


def _until_the_end(then: Callable[[], object]) -> None:
    """Whoever started this process closes stdin when it wants it to end, or has ended itself."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    then()


if __name__ == "__main__":
    main()
