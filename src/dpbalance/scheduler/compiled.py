"""How are the few compiled kernels made, kept, and announced?

Kernels are compiled once per machine and kept beside the source, or in the user's cache when that folder cannot be
written (Numba's own rule), or for this process alone when neither can. `make setup` compiles them
ahead through `warm_up`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import event

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


class _Announcer(event.Listener):  # type: ignore[misc]
    """Says once per process, on stderr, that a kernel is being compiled and that this is a one-time wait."""

    def __init__(self) -> None:
        self.told = False

    def on_start(self, event: Any) -> None:
        if not self.told and event.data["dispatcher"].py_func.__module__.startswith("dpbalance."):
            self.told = True
            print("dpbalance: compiling its kernels, once on this machine (under a minute) ...", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Announcer())


def kernel(function: Kernel) -> Kernel:
    """Compile for one thread, keep on disk; floating point stays strict so that answers repeat exactly."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        # a folder of this process alone: kept kernels are code, and anybody may write into the temporary folder
        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="dpbalance-kernels-")
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]
