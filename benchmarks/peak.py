"""How much memory did one command need? `python -m benchmarks.peak replay ...` runs it and tells the peak on stderr."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from dpbalance.cli import main


def peak_kib() -> int:
    """The largest resident set of this process, in KiB.

    The kernel's own count is taken first: `getrusage` starts from what the process that launched this one needed.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    finally:
        print(peak_kib(), file=sys.stderr)
