"""The engine for a Ray cluster: as many long-lived workers as fit on its nodes, fed from the process that was started.

That process, the driver, claims cells and writes records as with the other engines; workers only train. A worker is a
Ray actor on a node that the driver chose, so that it keeps its GPU, the data and the weights from cell to cell, and so
that a node that turns out to be of no use can be left out. Ray itself retries nothing: `schedule` does.

Cells wait here, not in Ray: whichever worker is free takes the next one, and a worker that waits for resources that
other work holds keeps no cell back. Idle workers are stopped, so that others get their place.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from mixwell.compare.engines import nodes
from mixwell.compare.engines.base import Event, Failed, Finished, Note, Started, first_line
from mixwell.compare.engines.cluster import Cluster, connect, import_ray
from mixwell.compare.engines.nodes import ClusterNodes, Node
from mixwell.compare.engines.remote import JOB, actor
from mixwell.compare.engines.transfer import FileSender
from mixwell.compare.engines.worker import set_allocator, set_threads
from mixwell.compare.spec import CellSpec
from mixwell.utils.environment import versions

NODE_RETRIES = 5  # a node that goes (spot machines do) says nothing against the cell
WORKER_RETRIES = 2  # a process that dies may be the cell's fault: memory
_IDLE = 5.0  # seconds until a worker without work is stopped
_SLOW_START = 30.0  # seconds without any running cell until the user gets a note
_FAILED_STARTS = 3  # workers that may die before their first answer until a node is left out


@dataclass(eq=False)
class RayWorker:
    """An actor, its node, and what it does: it starts, trains a cell, or waits.

    Attributes:
        node: where it runs.
        handle: of the actor.
        call: the call that it has not answered yet, or None.
        since: when it was started or became idle.
        ready: whether it has answered that it started.
        name: for the user; known when it is ready.
        cell: what it trains, or None.
    """

    node: Node
    handle: Any
    call: Any
    since: float
    ready: bool = False
    name: str = ""
    cell: CellSpec | None = None


class RayEngine:
    """Runs cells on the nodes of a Ray cluster.

    Args:
        cluster: where it is, and what a training takes.
        workers: the most trainings at a time; None for as many as fit.
        threads: of each worker; None for `cluster.cpus_per_run`.
        cache_dir: for tokenised texts and for data that were sent, on the nodes.
        patience: seconds to wait for nodes when the last one is gone.
        job: `module:function` that trains a cell, as `cell.run_cell` does.

    Raises:
        MixwellError: the cluster cannot be reached, or no node has room for a training.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        workers: int | None = None,
        threads: int | None = None,
        cache_dir: str | None = None,
        *,
        patience: float = 300.0,
        job: str = JOB,
    ) -> None:
        self.cluster = cluster or Cluster()
        self.cluster.check()
        self.threads = threads or self.cluster.cpus_per_run
        self._most, self._cache_dir, self._job = workers, cache_dir, job
        self._versions = versions()
        self._ray = import_ray()
        self._actor = self._ray.remote(actor())
        self._files = FileSender(self._ray)
        self._workers: list[RayWorker] = []
        self._queue: deque[CellSpec] = deque()
        self._events: deque[Event] = deque()
        self._last_active = time.monotonic()  # when a cell ran last
        self._connected_here = connect(self._ray, self.cluster.address)
        self.nodes = ClusterNodes(self._ray, self.cluster, self._events, patience)
        try:
            self._check_nodes()
            self.nodes.check_room()
        except BaseException:
            self.close()
            raise

    # --- the interface ---

    @property
    def slots(self) -> int:
        """See `Engine`."""
        self._check_nodes()
        room = sum(node.room for node in self.nodes.usable())
        return room if self._most is None else min(room, self._most)

    def submit(self, spec: CellSpec) -> None:
        """See `Engine`."""
        self._queue.append(spec)

    def wait(self, timeout: float) -> list[Event]:
        """See `Engine`."""
        self._check_nodes()
        self._assign()
        calls = {worker.call: worker for worker in self._workers if worker.call is not None}
        if calls:
            done, _ = self._ray.wait(list(calls), num_returns=1, timeout=0 if self._events else timeout)
            if done:
                done, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
            for call in done:
                self._receive(calls[call])
            self._assign()
        elif not self._events:
            time.sleep(min(timeout, nodes.CHECK_INTERVAL))
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """See `Engine`."""
        for worker in [] if self.nodes.head_lost else list(self._workers):
            self._stop(worker)
        self._files.clear()
        if self._connected_here:
            self._ray.shutdown()

    # --- nodes ---

    def _check_nodes(self) -> None:
        """Update the nodes, every now and then.

        Raises:
            RunError: no node is left to run anything.
        """
        busy = any(worker.cell for worker in self._workers)
        gone = self.nodes.check(busy)
        if gone is None:
            return
        for node in gone:  # Ray reports the cells that ran there
            self._stop_idle(node)
        now = time.monotonic()
        if busy or not self._queue:
            self._last_active = now
        elif self.nodes.usable() and now > self._last_active + _SLOW_START:
            self._last_active = float("inf")  # one note is enough
            self._events.append(
                Note(f"nothing runs yet: workers are starting, or wait for {self.cluster.share} that other work holds")
            )

    def _refuse(self, node: Node, why: str) -> None:
        """Start nothing more on a node; what runs on it may end."""
        self.nodes.refuse(node, why)
        self._stop_idle(node)

    # --- workers ---

    def _assign(self) -> None:
        """Give cells to free workers, start workers that are missing, stop those that are not needed."""
        now = time.monotonic()
        for worker in self._workers:
            if self._queue and worker.ready and worker.cell is None:
                spec = self._queue.popleft()
                self._give(worker, spec)
                self._events.append(Started(spec.key, worker.name))
        if not self._queue:
            for worker in [worker for worker in self._workers if worker.cell is None and now > worker.since + _IDLE]:
                self._stop(worker)
            return
        free = sum(worker.cell is None for worker in self._workers)
        most = self._most or len(self._workers) + len(self._queue)
        for _ in range(min(len(self._queue) - free, most - len(self._workers))):
            usable = self.nodes.usable()
            taken = {node.id: sum(worker.node is node for worker in self._workers) for node in usable}
            node = max(usable, key=lambda node: node.room - taken[node.id], default=None)
            if node is None or node.room <= taken[node.id]:
                return
            self._start(node)

    def _start(self, node: Node) -> None:
        """Start a worker on a node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        environment: dict[str, str] = {}
        set_allocator(environment)
        set_threads(environment, self.threads)  # before anything is imported there
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            if name in os.environ:
                environment[name] = os.environ[name]
        options = {
            "num_cpus": self.cluster.cpus_per_run,
            "num_gpus": self.cluster.gpus_per_run,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
            "runtime_env": {"env_vars": environment},
        }
        handle = self._actor.options(**options).remote()
        call = handle.start.remote(self._versions, self._job, self.threads, self._cache_dir)
        self._workers.append(RayWorker(node, handle, call, time.monotonic()))

    def _give(self, worker: RayWorker, spec: CellSpec) -> None:
        """Let a worker train a cell."""
        names = list(self._files.files(spec))
        if self.cluster.ship_data:
            for name in names:
                self._files.send(spec, name)
        worker.cell = spec
        packages = self._files.packages(spec)
        worker.call = worker.handle.run.remote(spec.to_dict(), names, packages, self.cluster.ship_data)

    def _send_missing(self, worker: RayWorker, spec: CellSpec, names: list[str]) -> None:
        """Give a cell again, with files that its node does not have."""
        for name in names:
            if not self._files.has(name):
                self._events.append(Note(f"{worker.node.name} does not see {name}: it is sent there"))
                self._files.send(spec, name)
        self._give(worker, spec)

    def _stop(self, worker: RayWorker) -> None:
        self._workers.remove(worker)
        with contextlib.suppress(Exception):  # it is gone already
            self._ray.kill(worker.handle)

    def _stop_idle(self, node: Node) -> None:
        """Stop the workers of a node that train nothing."""
        for worker in [worker for worker in self._workers if worker.node is node and worker.cell is None]:
            self._stop(worker)

    def _receive(self, worker: RayWorker) -> None:
        """Handle the answer of a worker."""
        if worker not in self._workers:  # stopped in between
            return
        try:
            answer = self._ray.get(worker.call)
        except Exception as error:
            self._worker_lost(worker, error)
            return
        worker.call, worker.since = None, time.monotonic()
        if not worker.ready:
            worker.ready, worker.name = True, f"{worker.node.name}, process {answer['process']}"
            worker.node.failed_starts = 0
            if answer["refused"]:
                self._refuse(worker.node, answer["refused"])
            return
        (kind, value), spec = answer, worker.cell
        assert spec is not None
        if kind == "missing":
            self._send_missing(worker, spec, value)
            return
        worker.cell = None
        if kind == "refused":  # nothing against the cell: it goes elsewhere
            self._queue.appendleft(spec)
            self._refuse(worker.node, value)
            return
        worker.node.failed_cells.clear()
        self._events.append(Finished(spec.key, value) if kind == "finished" else value)
        if worker.node.refused:
            self._stop(worker)

    def _worker_lost(self, worker: RayWorker, error: Exception) -> None:
        """A worker ended, or its node did."""
        spec, node, why = worker.cell, worker.node, _cause(error)
        self._stop(worker)
        lost = self.nodes.is_lost(node)
        if lost:
            self._stop_idle(node)
        if spec is None:
            node.failed_starts += 1
            if not lost and node.failed_starts >= _FAILED_STARTS:
                self._refuse(node, f"workers do not start there ({why})")
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            self._events.append(Failed(spec.key, f"{node.name}: {why}", str(error)))
        elif lost:
            self._events.append(Failed(spec.key, f"{node.name} was lost", str(error), lost=True, retries=NODE_RETRIES))
        else:
            reason = f"its worker on {node.name} was lost ({why})"
            self._events.append(Failed(spec.key, reason, str(error), lost=True, retries=WORKER_RETRIES))
            # Two different cells in a row point at the node, unless it is the only one.
            node.failed_cells.add(spec.key)
            others = [other for other in self.nodes.usable() if other is not node and other.room]
            if len(node.failed_cells) > 1 and others:
                self._refuse(node, f"its workers keep dying ({why})")


def _cause(error: Exception) -> str:
    """An error of Ray in a few words; its own text runs over many lines."""
    text = " ".join(str(error).split())
    if "OutOfMemory" in type(error).__name__ or "low on memory" in text:
        return "killed for lack of memory; lower --batch-size or raise --cpus-per-run"
    match = re.search(r"(?:Worker exit detail|failed reason|error_message): (.{10,}?)(?:\. |$)", text)
    return match[1][:200] if match else first_line(error)
