"""Who runs the cells? This process, some processes of this machine, or Ray; always with one thread each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

from dpbalance.errors import DPBalanceError, OptionError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

RAY = "ray"
RAY_ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""A local Ray reports to nobody, and listens on the loopback interface alone, as it always does on those two."""

RAY_AHEAD = 1000
"""Items handed to Ray before the first answer is back."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Many small problems side by side: more threads would only stand in each other's way."""


def answers(
    function: Callable[[Item], Answer], items: Sequence[Item], workers: int | str
) -> Generator[tuple[Item, Answer]]:
    """Each item with the function's answer, as they come; the first failure ends it. Close it when done."""
    if isinstance(workers, str) and items:
        yield from _with_ray(function, items, None if workers == RAY else workers)
    elif isinstance(workers, int) and min(workers, len(items)) > 1:
        yield from _with_processes(function, items, min(workers, len(items)))
    else:
        for item in items:
            yield item, function(item)


def refuse_unusable(workers: int | str) -> None:
    """Say at once what cannot work."""
    if isinstance(workers, str):
        if workers != RAY and not workers.startswith("ray://"):
            raise OptionError(f"workers must be a number, ray, or ray://HOST:PORT, not {workers[:60]!r}")
        _ray()
    elif isinstance(workers, bool) or workers < 1:
        raise OptionError(f"workers must be at least 1, not {workers!r}")


def _with_processes(
    function: Callable[[Item], Answer], items: Sequence[Item], workers: int
) -> Generator[tuple[Item, Answer]]:
    from dpbalance.scheduler.warm_up import warm_up

    warm_up()  # one process compiles the kernels, the others find them on disk
    with one_thread_each():
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_follow_parent)
        try:
            running = {pool.submit(function, item): item for item in items}
            for future in as_completed(running):
                yield running.pop(future), future.result()
        except BrokenProcessPool:
            raise DPBalanceError(
                "a worker process ended without an answer: killed, or out of memory",
                hint="fewer workers; with the same folder, what is finished is not run again",
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """A worker ends without a word on Ctrl-C, and when the process that started it has been killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _with_ray(
    function: Callable[[Item], Answer], items: Sequence[Item], address: str | None
) -> Generator[tuple[Item, Answer]]:
    ray = _ray()
    where: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    with one_thread_each():
        try:
            ray.init(**where, log_to_driver=False, logging_level="ERROR")
        except ConnectionError as problem:
            raise OptionError(f"there is no Ray that answers at {address}: {problem}") from None
        try:
            task = ray.remote(function)
            waiting = iter(items)
            running = {task.remote(item): item for item in islice(waiting, RAY_AHEAD)}
            while running:
                (ready,), _ = ray.wait(list(running), num_returns=1)
                try:
                    yield running.pop(ready), ray.get(ready)
                except ray.exceptions.RayTaskError as problem:
                    raise problem.cause from None  # ours, as it would have been raised here
                running |= {task.remote(item): item for item in islice(waiting, 1)}
        finally:
            ray.shutdown()


def _ray() -> Any:
    for name, setting in RAY_ALONE.items():
        os.environ.setdefault(name, setting)  # read when Ray is imported
    try:
        import ray
    except ImportError:
        raise OptionError("to run on Ray it has to be installed", hint="pip install 'dpbalance[ray]'") from None
    return ray


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes that are started meanwhile use one thread."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
