"""What a worker process of an engine does.

Modules that import torch are imported inside functions here, after signals, threads and the device are set.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import MutableMapping
from multiprocessing.connection import Connection, wait
from typing import Any

from mixwell.compare.engines.base import failure_of
from mixwell.compare.spec import CellSpec


def set_threads(environment: MutableMapping[str, str], threads: int) -> None:
    """Keep the thread pools of all libraries to a worker's share of the cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        environment[name] = str(threads)
    environment["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"


def set_allocator(environment: MutableMapping[str, str]) -> None:
    """Let the C library keep memory that tensors gave back, unless the user has set that: each step needs it again.

    By default glibc asks the system for every large block anew and gives it back, and most of the time of small models
    goes into fresh pages. The values change no result. They count for a process that starts after they are set.
    """
    environment.setdefault("MALLOC_MMAP_MAX_", "0")
    environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(64 << 30))


def set_device(environment: MutableMapping[str, str], number: int, devices: int) -> None:
    """Give each worker a device of its own, in turn, when there are several."""
    if devices < 2:
        return
    named = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = named or [str(device) for device in range(devices)]
    environment["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]


def prepare(threads: int) -> None:
    """Set the threads and import what training needs.

    Args:
        threads: for torch and the other libraries.
    """
    set_threads(os.environ, threads)
    import torch
    from tqdm.std import tqdm  # type: ignore[import-untyped,unused-ignore]

    torch.set_num_threads(threads)
    tqdm.set_lock(threading.RLock())  # its own lock is a semaphore that a killed process leaves behind
    from mixwell.compare.cell import preload

    preload()


def run_worker(connection: Connection, number: int, threads: int, devices: int, cache_dir: str | None) -> None:
    """Run cells as they come, until the parent is gone or ends this process.

    Args:
        connection: cells come in, `("started", None)`, `("finished", result)` and `("failed", event)` go out.
        number: of the worker.
        threads: for torch and the other libraries.
        devices: how many GPUs there are.
        cache_dir: for tokenised texts.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends at once: a worker holds neither locks nor files half written
    threading.Thread(target=_die_with_parent, daemon=True).start()
    set_device(os.environ, number, devices)
    prepare(threads)
    from mixwell.compare.cell import Cache, run_cell

    cache = Cache(cache_dir)
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if message is None:
            return
        spec = CellSpec.from_dict(message)
        connection.send(("started", None))
        answer: tuple[str, Any]
        try:
            answer = ("finished", run_cell(spec, cache))
        except Exception as error:
            answer = ("failed", failure_of(spec.key, error))
            cache = Cache(cache_dir)  # the model may be half trained, or have filled the memory
        connection.send(answer)


def _die_with_parent() -> None:
    """End when the parent was killed: nobody would take the result, and its cell is free for others."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
