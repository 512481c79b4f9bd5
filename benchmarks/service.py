"""How many submits and status reads does a server take beside its rounds? `python -m benchmarks.service`.

One process sends, over plain sockets, at a steady rate and never waiting for answers on other connections; what is
reported is what came back. PostgreSQL comes from its wheel. Everything shares the cores of one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from served import Served
from servers import PostgresServer

from dpbalance.client import Client
from dpbalance.ledger import open_ledger

CONNECTIONS = 16
PENDING = 5_000
ANALYSTS = 20


@dataclass(slots=True)
class Sent:
    """What came back of one kind of request."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)

    def row(self, wall: float) -> dict[str, Any]:
        ordered = sorted(self.seconds) or [0.0]
        at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in QUANTILES.items()}
        good = sum(count for status, count in self.statuses.items() if status < 300)
        return {
            "answered": len(self.seconds),
            "good": good,
            "per_second": round(good / wall, 1),
            "statuses": self.statuses,
            **{f"{name}_ms": round(value * 1000, 1) for name, value in at.items()},
        }


QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


async def _ask(reader: Any, writer: Any, request: bytes) -> tuple[int, bytes]:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    lower = head.lower()
    start = lower.index(b"content-length:") + 15
    length = int(lower[start : lower.index(b"\r\n", start)])
    return status, await reader.readexactly(length)


async def _send(port: int, rate: float, seconds: float, make: Any, sent: Sent) -> None:
    """So many requests a second over a few connections; one that is late does not wait for its turn again."""
    turn = iter(range(int(rate * seconds)))
    began = time.perf_counter()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in turn:
            wait = began + at / rate - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            before = time.perf_counter()
            status, body = await _ask(reader, writer, make(at))
            sent.seconds.append(time.perf_counter() - before)
            sent.statuses[status] = sent.statuses.get(status, 0) + 1
            if status == 201:
                sent.ids.append(json.loads(body)["id"])
        writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


def load(arguments: argparse.Namespace) -> None:
    """The process that sends."""
    ids = json.loads(Path(arguments.ids).read_text())
    host = "Host: localhost\r\nAuthorization: Bearer "
    head, seeing = (f"{host}{token}\r\n" for token in arguments.token.split(","))
    body = json.dumps({"devices": {"sample": 5}, "windows": {"latest": 2}, "cost": 50.0})

    def submit(at: int) -> bytes:
        more = f"Idempotency-Key: s-{arguments.begin}-{at}\r\nContent-Type: application/json\r\n"
        more += f"Content-Length: {len(body)}"
        return f"POST /v1/pipelines HTTP/1.1\r\n{head}{more}\r\n\r\n{body}".encode()

    def status(at: int) -> bytes:
        return f"GET /v1/pipelines/{ids[at * 7919 % len(ids)]} HTTP/1.1\r\n{seeing}\r\n".encode()

    submits, reads = Sent(), Sent()

    async def both() -> float:
        began = time.perf_counter()
        await asyncio.gather(
            _send(arguments.port, arguments.submits, arguments.seconds, submit, submits),
            _send(arguments.port, arguments.reads, arguments.seconds, status, reads),
        )
        return time.perf_counter() - began

    import uvloop

    wall = uvloop.run(both())
    told = {"wall": wall, "submits": submits.row(wall), "reads": reads.row(wall), "ids": submits.ids}
    print(json.dumps(told))


def stocked(served: Served) -> tuple[Client, str, list[str], float]:
    """A market, and 5,000 pipelines that wait because they ask for more than a block will ever hold."""
    client = served.client()
    client.enrol({f"d{at}": None for at in range(100)})
    client.add_blocks([(f"d{at}", f"w{window:02}", 10.0) for at in range(100) for window in range(20)])
    for at in range(ANALYSTS):
        client.create_token("analyst", f"a{at}")
    mine = client.create_token("analyst", "a0", label="load")["secret"]
    ask = {"devices": {"sample": 5}, "windows": {"latest": 2}, "cost": 50.0}
    began = time.perf_counter()
    ids = client.submit_many([{**ask, "analyst": f"a{at % ANALYSTS}"} for at in range(PENDING)])
    return client, mine, ids, time.perf_counter() - began


def memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def measure(served: Served, arguments: argparse.Namespace) -> dict[str, Any]:
    """Bulk, then the load, then a count of everything that was acknowledged."""
    client, analyst, ids, bulk = stocked(served)
    client.run_round()
    (served.folder / "ids").write_text(json.dumps(ids))
    secret = f"{analyst},{client.create_token('auditor', 'load')['secret']}"
    rows, acknowledged, memory = [], list(ids), []
    assert served.process is not None
    began = time.monotonic()
    while not rows or time.monotonic() - began < arguments.minutes * 60:
        command = [
            sys.executable, "-m", "benchmarks.service", "--load", "--port", str(served.port), "--token", secret,
            "--ids", str(served.folder / "ids"), "--seconds", str(arguments.seconds), "--begin", str(len(rows)),
            "--submits", str(arguments.submits), "--reads", str(arguments.reads),
        ]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        told = json.loads(ended.stdout)
        acknowledged += told.pop("ids")
        rows.append(told)
        if arguments.minutes:  # keep as many pending as before: the load itself must not grow the rounds
            gone = [each["id"] for each in client.pages("/v1/pipelines", state="pending", analyst="a0")][250:]
            for each in gone:
                client.cancel(each)
        memory.append((memory_mib(served.process.pid), memory_mib(served.rounds_pid)))
    listed = [each["id"] for each in client.pages("/v1/pipelines", limit=500)]
    rounds = served.events("round")
    with open_ledger(served.database, key_file=served.folder / "ledger.key") as ledger:
        clean = ledger.verify().clean
    return {
        "bulk_seconds": round(bulk, 2),
        "load": rows if arguments.minutes else rows[0],
        "acknowledged": len(acknowledged),
        "found": len(set(listed)),
        "lost": len(set(acknowledged) - set(listed)),
        "rounds": len(rounds),
        "round_seconds_max": max(each["seconds"] for each in rounds),
        "pending_in_rounds": max(each["pending"] for each in rounds),
        "memory_mib": [tuple(round(part, 1) for part in each) for each in memory],
        "ledger_clean": clean,
    }


def markdown(found: dict[str, Any]) -> str:
    first = found["load"][0] if isinstance(found["load"], list) else found["load"]
    rows = [
        ("single submits a second", ">= 250", first["submits"]["per_second"]),
        ("p99 of a submit, ms", "<= 150", first["submits"]["p99_ms"]),
        ("status reads a second", ">= 600", first["reads"]["per_second"]),
        ("p99 of a status read, ms", "<= 150", first["reads"]["p99_ms"]),
        ("5,000 pipelines in one request, s", "<= 3", found["bulk_seconds"]),
        ("lost submits", "0", found["lost"]),
    ]
    lines = ["| what | bar | measured |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service")
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sqlite", action="store_true", help="SQLite instead of PostgreSQL")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--minutes", type=float, default=0.0, help="again and again, to see whether memory stays flat")
    parser.add_argument("--submits", type=float, default=260.0, help="a second")
    parser.add_argument("--reads", type=float, default=620.0, help="a second")
    parser.add_argument("--out", type=Path, default=Path("out"))
    for name in ("--port", "--token", "--ids", "--begin"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments)
        return
    server = None if arguments.sqlite else PostgresServer()
    with tempfile.TemporaryDirectory() as folder:
        served = Served(Path(folder), "" if server is None else server.database(), log="json", rate=5_000, burst=5_000)
        try:
            found = measure(served, arguments)
        finally:
            served.stop()
            if server is not None:
                server.stop()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "service.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "service.md").write_text(markdown(found), encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
