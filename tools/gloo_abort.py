"""A worker of a DDP training on CPU can end with SIGABRT after its last line: shown here without mixwell.

    python tools/gloo_abort.py [--runs 40]

gloo's worker thread drops the last collective a moment after it is done. What it drops holds a Python object (in the
state of the thread that asked for it), so it needs the interpreter's lock; once the interpreter ends, asking for the
lock ends the thread, in the middle of a destructor, and C++ calls that `terminate called without an active exception`.
The backtrace of a core dump:

    PyThread_exit_thread < take_gil < pybind11::gil_scoped_acquire < ConcretePyInterpreterVTable::decref <
    c10::SafePyObject < at::ThreadLocalState::~ThreadLocalState < c10d::ProcessGroupGloo::AsyncWork::~AsyncWork

`destroy_process_group` does not help while the DDP module still holds the group. When that is deleted first, the group
goes with `destroy_process_group`, which waits for its threads. This script counts how workers end in both ways.
"""

from __future__ import annotations

import argparse
import collections
import os
import socket
import subprocess
import sys

WORKER = """
import os
import torch
from torch import distributed

torch.set_num_threads(1)
distributed.init_process_group("gloo")
wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]))
for step in range(2):
    wrapped(torch.randn(4, 64)).sum().backward()
if "DELETE" in os.environ:
    del wrapped
distributed.destroy_process_group()
"""


def ends(more: dict[str, str]) -> list[int]:
    """The exit codes of two workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER], env={**common, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]  # fmt: skip
    return [worker.wait() for worker in workers]


def main() -> None:
    """Count how workers end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="of two workers, in each way (40)")
    runs = parser.parse_args().runs
    ways: dict[str, dict[str, str]] = {"module kept": {}, "module deleted": {"DELETE": "1"}}
    counts = {name: collections.Counter[int]() for name in ways}
    for _ in range(runs):  # in turn, as the load of the machine has a part in it
        for name, more in ways.items():
            counts[name].update(ends(more))
    for name, count in counts.items():
        print(f"{name}: {count[-6]} of {2 * runs} workers aborted; exit codes {dict(count)}")


if __name__ == "__main__":
    main()
