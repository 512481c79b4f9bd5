"""What is left of a ledger whose writer is killed again and again? `python ledger_kills.py CONFIG.json` tells it.

Each writer charges claim after claim under the keys k0, k1, .. and tells every answer; it is killed with signal 9 at
some moment, and the next one begins with the claim whose answer nobody saw.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dpbalance.ledger import Ask, Decision, open_ledger

BLOCKS = 6


def decision(number: int) -> Decision:
    cost = {f"d/w{(number + at) % BLOCKS}": (1 + (number + at) % 7) / 1e6 for at in range(3)}
    return Decision.build([Ask(pipeline=f"p{number}", analyst="x", cost=cost)])


def write(config: dict[str, Any], first: int, out: int) -> None:
    """Charge until killed."""
    ledger = open_ledger(config["url"], key_file=config["key_file"])
    number = first
    while True:
        seq = ledger.charge(decision(number), key=f"k{number}").seq
        os.write(out, f"{number} {seq}\n".encode())
        number += 1


def killed(config: dict[str, Any], first: int, after_s: float) -> dict[int, int]:
    """What one writer was answered before it was killed, which is some time after its first answer."""
    read, out = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.close(read)
        try:
            write(config, first, out)
        finally:
            os._exit(1)
    os.close(out)
    told = os.read(read, 1 << 16)
    time.sleep(after_s)
    os.kill(writer, signal.SIGKILL)
    _, status = os.waitpid(writer, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, "the writer ended by itself"
    while part := os.read(read, 1 << 16):
        told += part
    os.close(read)
    whole = told[: told.rfind(b"\n") + 1].decode()
    return {int(number): int(seq) for number, seq in (line.split() for line in whole.splitlines())}


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    random = np.random.default_rng(config["seed"])
    acknowledged: dict[int, int] = {}
    retried_same = 0
    for _ in range(config["kills"]):
        first = max(acknowledged, default=0)  # the last answer that was seen is asked again, too
        answered = killed(config, first, float(random.uniform(0, config["longest_s"])))
        if first in acknowledged:
            assert answered[first] == acknowledged[first], "a retry was charged again"
            retried_same += 1
        acknowledged.update(answered)
    print(json.dumps({"acknowledged": acknowledged, "retried": retried_same}))


if __name__ == "__main__":
    main()
