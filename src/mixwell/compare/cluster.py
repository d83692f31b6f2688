"""The engine for a Ray cluster: as many long-lived workers as fit on its nodes, fed from the process that was started.

That process, the driver, claims cells and writes records as with the other engines; workers only train. A worker is a
Ray actor on a node that the driver chose, so that it keeps its GPU, the data and the weights from cell to cell, and so
that a node that turns out to be of no use can be left out. Ray itself retries nothing: `schedule` does.

Cells wait here, not in Ray: whichever worker is free takes the next one, and a worker that waits for resources that
other work holds keeps no cell back. Workers without work are given up, so that others get their place.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.compare import worker
from mixwell.compare.engine import Event, Failed, Finished, Note, Started, first_line
from mixwell.compare.parcels import Parcel, pack
from mixwell.compare.remote import JOB, PATHS, actor
from mixwell.compare.spec import CellSpec
from mixwell.errors import OptionError, RunError

NODE_RETRIES = 5  # a node that goes (spot machines do) says nothing against the cell
WORKER_RETRIES = 2  # a process that dies may be the cell's fault: memory

_LOOK = 2.0  # seconds between looks at the nodes
_IDLE = 5.0  # seconds until a worker without work is given up
_ABSENT = 60.0  # seconds until a node that did not answer is used again, should Ray still count it in
_HEAD = 20.0  # seconds that the head may be silent; after 60 Ray ends the process
_SLOW = 30.0  # seconds without any cell running until the user is told
_STARTS = 3  # workers that may die before their first word until a node is left out
_NO_CLUSTER = (
    "--address auto: this machine belongs to no Ray cluster; run `ray start --head`, or `ray start --address "
    "HEAD:6379` to join one, or name the head with --address HOST:PORT"
)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and what a training takes of it.

    Attributes:
        address: `HOST:PORT` of the head, `auto` for the cluster that this machine belongs to, or `local` to start one.
        cpus_per_run: cores of a training, and its threads.
        gpus_per_run: 1, or a share such as 0.5 that lets several trainings have one GPU; 0 trains on CPUs.
        ship_data: send data and weights through the object store even to nodes that have something at their paths.
    """

    address: str = "auto"
    cpus_per_run: int = 1
    gpus_per_run: float = 0.0
    ship_data: bool = False

    def check(self) -> None:
        """Check what can be checked before anything is planned.

        Raises:
            OptionError: an option is out of range, or Ray is not installed.
            RunError: nothing answers at the address.
        """
        if self.cpus_per_run < 1:
            raise OptionError(f"--cpus-per-run must be at least 1, got {self.cpus_per_run}")
        if not 0 <= self.gpus_per_run <= 1:
            raise OptionError(
                f"--gpus-per-run must lie from 0 to 1, got {self.gpus_per_run:g}; a training uses one GPU or a share"
            )
        if "://" in self.address:
            raise OptionError(
                f"--address {self.address}: Ray Client is not supported; run mixwell on a node of the cluster with "
                f"--address auto, for instance through `ray job submit`"
            )
        ray = _ray()
        if self.address == "auto":
            _check_running(ray)
        if self.address in ("auto", "local"):
            return
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise OptionError(f"--address {self.address}: expected HOST:PORT (Ray's port is 6379), auto or local")
        try:
            ray_there = _speaks_ray(host.strip("[]"), int(port))
        except OSError as error:
            raise RunError(
                f"--address {self.address}: nothing answers there ({error.strerror or error}); see that `ray start "
                f"--head` ran on that machine and that the port is right and open"
            ) from error
        if not ray_there:
            raise RunError(
                f"--address {self.address}: something answers there, but no Ray cluster; give the port of `ray start "
                f"--head` (6379 unless told otherwise), not that of the dashboard"
            )

    def fits(self, resources: Mapping[str, float]) -> int:
        """How many trainings a node with these resources has room for."""
        room = resources.get("CPU", 0.0) // self.cpus_per_run
        if self.gpus_per_run:
            # A training cannot have parts of two GPUs.
            room = min(room, resources.get("GPU", 0.0) * int(1 / self.gpus_per_run + 1e-9))
        return int(room)

    @property
    def share(self) -> str:
        """What a training takes, in words."""
        gpus = f" and {self.gpus_per_run:g} GPU" if self.gpus_per_run else ""
        return f"{self.cpus_per_run} CPU{'s' if self.cpus_per_run > 1 else ''}{gpus}"


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise OptionError('--engine ray needs the package ray; run `pip install "mixwell[ray]"`') from error
    return ray


def _check_running(ray: Any) -> None:
    """Raise `RunError` unless this machine belongs to a cluster that answers.

    Ray remembers the cluster that ran last, and would wait for 40 seconds if that is gone.
    """
    if ray.is_initialized():
        return
    try:
        host, _, port = ray._private.services.canonicalize_bootstrap_address("auto").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:  # of Ray, too: ConnectionError
        raise RunError(_NO_CLUSTER) from error
    except (AttributeError, ValueError):  # another version of Ray: `ray.init` will tell
        return


def _speaks_ray(host: str, port: int) -> bool:
    """Whether a server may be the head of a cluster; Ray itself would try for half a minute.

    Raises:
        OSError: there is no server.
    """
    with socket.create_connection((host, port), timeout=5) as link:
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return True
        # Servers of gRPC begin with a frame of settings (type 4), as HTTP/2 asks for.
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        try:
            return link.recv(9)[3:4] == b"\x04"
        except OSError:
            return False


# --- in the driver ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Node:
    """A node, why it is not used any more, and what went wrong on it since the last success."""

    id: str
    address: str
    port: int
    room: int
    refused: str = ""
    starts: int = 0
    suspects: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"node {self.address} ({self.id[:6]})"  # several may have one address


@dataclass(eq=False)
class _Worker:
    """An actor, its node, and what it is at: its first word, a cell, or nothing."""

    node: _Node
    handle: Any
    call: Any
    since: float
    greeted: bool = False
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
        from mixwell import runs

        self.cluster = cluster or Cluster()
        self.cluster.check()
        self.threads = threads or self.cluster.cpus_per_run
        self._most, self._cache_dir, self._patience, self._job = workers, cache_dir, patience, job
        self._versions = runs.versions()
        self._ray = _ray()
        self._actor = self._ray.remote(actor())
        self._nodes: dict[str, _Node] = {}
        self._workers: list[_Worker] = []
        self._queue: deque[CellSpec] = deque()
        self._events: deque[Event] = deque()
        self._absent: dict[str, float] = {}  # nodes that do not answer, and until when that is held against them
        self._parcels: dict[str, Parcel] = {}
        self._files: dict[tuple[Any, str], dict[str, str]] = {}
        self._first, self._looked = True, -_LOOK
        self._without: float | None = None  # since when there is no node
        self._active = time.monotonic()  # when a cell ran last
        self._ours = _connect(self._ray, self.cluster.address)
        host, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._heard, self._deaf = time.monotonic(), False  # when the head was heard last
        try:
            self._look()
            if not any(node.room for node in self._nodes.values()):
                raise RunError(self._no_room())
        except BaseException:
            self.close()
            raise

    # --- the interface ---

    @property
    def slots(self) -> int:
        """See `Engine`."""
        self._look()
        room = sum(node.room for node in self._usable())
        return room if self._most is None else min(room, self._most)

    def submit(self, spec: CellSpec) -> None:
        """See `Engine`."""
        self._queue.append(spec)

    def wait(self, timeout: float) -> list[Event]:
        """See `Engine`."""
        self._look()
        self._assign()
        calls = {each.call: each for each in self._workers if each.call is not None}
        if calls:
            done, _ = self._ray.wait(list(calls), num_returns=1, timeout=0 if self._events else timeout)
            if done:
                done, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
            for call in done:
                self._hear(calls[call])
            self._assign()
        elif not self._events:
            time.sleep(min(timeout, _LOOK))
        found = list(self._events)
        self._events.clear()
        return found

    def close(self) -> None:
        """See `Engine`."""
        for each in [] if self._deaf else list(self._workers):
            self._give_up(each)
        self._parcels.clear()
        if self._ours:
            self._ray.shutdown()
            _mute(self._ray, False)

    # --- nodes ---

    def _usable(self) -> list[_Node]:
        return [node for node in self._nodes.values() if not node.refused]

    def _look(self) -> None:
        """See which nodes there are, every now and then.

        Raises:
            RunError: no node is left to run anything.
        """
        moment = time.monotonic()
        if moment < self._looked + _LOOK:
            return
        self._looked = moment
        if not self._head_answers(moment):
            return
        first, self._first = self._first, False
        alive = {each["NodeID"]: each for each in self._ray.nodes() if each["Alive"]}
        for node in [node for key, node in self._nodes.items() if key not in alive]:
            self._forget(node)
        for key, each in alive.items():
            if moment < self._absent.get(key, 0.0):
                continue
            room = self.cluster.fits(each["Resources"])
            if key in self._nodes:
                self._nodes[key].room = room
            elif room:
                self._nodes[key] = _Node(key, each["NodeManagerAddress"], each["NodeManagerPort"], room)
                if not first:
                    self._events.append(Note(f"{self._nodes[key].name} has joined, with room for {room}"))
        gpus = sum(each["Resources"].get("GPU", 0.0) for each in alive.values())
        if first and gpus and not self.cluster.gpus_per_run:
            self._events.append(Note(f"the cluster has {gpus:g} GPUs, but none is used; add --gpus-per-run 1"))
        busy = any(each.cell for each in self._workers)
        if not self._events:  # what happened is told before it is given up
            self._check_left(moment, busy)
        if busy or not self._queue:
            self._active = moment
        elif self._usable() and moment > self._active + _SLOW:
            self._active = float("inf")  # said once
            self._events.append(
                Note(f"nothing runs yet: workers are starting, or wait for {self.cluster.share} that other work holds")
            )

    def _head_answers(self, moment: float) -> bool:
        try:
            socket.create_connection(self._head, timeout=5).close()
        except OSError as error:
            if moment > self._heard + _HEAD and not self._events:
                self._deaf = True
                raise RunError(
                    f"the head of the cluster does not answer any more ({error.strerror or error}); what is finished "
                    f"is kept, so run the same command again when it does"
                ) from error
            return False
        self._heard = moment
        return True

    def _check_left(self, moment: float, busy: bool) -> None:
        if busy or any(node.room for node in self._usable()):
            self._without = None
            return
        refused = [f"{node.name}: {node.refused}" for node in self._nodes.values() if node.refused]
        if refused:
            raise RunError(
                f"no node of the cluster can be used: {'; '.join(refused)}; what is finished is kept, so put that "
                f"right and run the same command again"
            )
        if self._without is None:
            self._without = moment
            self._events.append(Note(f"no node is left; waiting up to {self._patience:g} s for one"))
        elif moment > self._without + self._patience:
            raise RunError(
                f"the cluster had no node with {self.cluster.share} for {self._patience:g} s; what is finished is "
                f"kept, so run the same command again when there is one"
            )

    def _no_room(self) -> str:
        nodes = [each for each in self._ray.nodes() if each["Alive"]]
        most = {name: max((each["Resources"].get(name, 0.0) for each in nodes), default=0.0) for name in ("CPU", "GPU")}
        return (
            f"no node of the cluster has room for a training of {self.cluster.share}: the largest of {len(nodes)} has "
            f"{most['CPU']:g} CPUs and {most['GPU']:g} GPUs; lower --cpus-per-run or --gpus-per-run, or start a node "
            f"that has them"
        )

    def _forget(self, node: _Node) -> None:
        """A node is gone; cells that ran there are told of by Ray."""
        if self._nodes.pop(node.id, None) is not None:
            self._events.append(Note(f"{node.name} is gone"))
        for each in [each for each in self._workers if each.node is node and each.cell is None]:
            self._give_up(each)

    def _refuse(self, node: _Node, why: str) -> None:
        """Use a node no more; what runs on it may end."""
        if not node.refused:
            node.refused = why
            self._events.append(Note(f"{node.name} is not used: {why}"))
        for each in [each for each in self._workers if each.node is node and each.cell is None]:
            self._give_up(each)
        self._looked = -_LOOK  # was it the last one?

    # --- workers ---

    def _assign(self) -> None:
        """Give cells to free workers, start workers that are missing, give up those that nobody needs."""
        moment = time.monotonic()
        for each in self._workers:
            if self._queue and each.greeted and each.cell is None:
                spec = self._queue.popleft()
                self._give(each, spec)
                self._events.append(Started(spec.key, each.name))
        if not self._queue:
            for each in [each for each in self._workers if each.cell is None and moment > each.since + _IDLE]:
                self._give_up(each)
            return
        coming = sum(each.cell is None for each in self._workers)
        most = self._most or len(self._workers) + len(self._queue)
        for _ in range(min(len(self._queue) - coming, most - len(self._workers))):
            taken = {node.id: sum(each.node is node for each in self._workers) for node in self._usable()}
            node = max(self._usable(), key=lambda node: node.room - taken[node.id], default=None)
            if node is None or node.room <= taken[node.id]:
                return
            self._start(node)

    def _start(self, node: _Node) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        environment: dict[str, str] = {}
        worker.set_threads(environment, self.threads)  # before anything is imported there
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
        call = handle.greet.remote(self._versions, self._job, self.threads, self._cache_dir)
        self._workers.append(_Worker(node, handle, call, time.monotonic()))

    def _give(self, each: _Worker, spec: CellSpec) -> None:
        files = self._local_files(spec)
        if self.cluster.ship_data:
            for name in files:
                self._pack(name, files[name], name == spec.model)
        parcels = {name: self._parcels[name] for name in files if name in self._parcels}
        each.cell = spec
        each.call = each.handle.run.remote(spec.to_dict(), list(files), parcels, self.cluster.ship_data)

    def _give_up(self, each: _Worker) -> None:
        self._workers.remove(each)
        with contextlib.suppress(Exception):  # it is gone already
            self._ray.kill(each.handle)

    def _hear(self, each: _Worker) -> None:
        """Take the answer of a worker."""
        if each not in self._workers:  # given up in between
            return
        try:
            answer = self._ray.get(each.call)
        except Exception as error:
            self._lost(each, error)
            return
        each.call, each.since = None, time.monotonic()
        if not each.greeted:
            each.greeted, each.name = True, f"{each.node.name}, process {answer['process']}"
            each.node.starts = 0
            if answer["refused"]:
                self._refuse(each.node, answer["refused"])
            return
        (kind, value), spec = answer, each.cell
        assert spec is not None
        if kind == "missing":
            self._send(each, spec, value)
            return
        each.cell = None
        if kind == "refused":  # nothing against the cell: it goes elsewhere
            self._queue.appendleft(spec)
            self._refuse(each.node, value)
            return
        each.node.suspects.clear()
        self._events.append(Finished(spec.key, value) if kind == "finished" else value)
        if each.node.refused:
            self._give_up(each)

    def _lost(self, each: _Worker, error: Exception) -> None:
        """A worker ended, or its node did."""
        spec, node, why = each.cell, each.node, _cause(error)
        self._give_up(each)
        gone = not _listens(node)
        if gone:  # Ray takes a while to find out
            self._absent[node.id] = time.monotonic() + _ABSENT
            self._forget(node)
        if spec is None:
            node.starts += 1
            if not gone and node.starts >= _STARTS:
                self._refuse(node, f"workers do not start there ({why})")
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            self._events.append(Failed(spec.key, f"{node.name}: {why}", str(error)))
        elif gone:
            self._events.append(Failed(spec.key, f"{node.name} was lost", str(error), lost=True, retries=NODE_RETRIES))
        else:
            reason = f"its worker on {node.name} was lost ({why})"
            self._events.append(Failed(spec.key, reason, str(error), lost=True, retries=WORKER_RETRIES))
            # Two different cells in a row point at the node, unless it is all there is.
            node.suspects.add(spec.key)
            if len(node.suspects) > 1 and any(other.room for other in self._usable() if other is not node):
                self._refuse(node, f"its workers keep dying ({why})")

    # --- data and weights ---

    def _local_files(self, spec: CellSpec) -> dict[str, str]:
        """What a cell reads from disks: the names in its specification, and where they are on this machine."""
        key = (spec.source, spec.model)
        if key not in self._files:
            from mixwell import models

            names = [getattr(spec.source, each) for each in PATHS]
            found = {each: each for each in names if isinstance(each, str) and os.path.exists(each)}
            with contextlib.suppress(OptionError):
                source = models.resolve(spec.model)
                if os.path.isdir(source):
                    found[spec.model] = source
            self._files[key] = found
        return self._files[key]

    def _send(self, each: _Worker, spec: CellSpec, names: list[str]) -> None:
        """Give a cell again, with files that its node does not have."""
        files = self._local_files(spec)
        for name in names:
            if name not in self._parcels:
                self._events.append(Note(f"{each.node.name} does not see {name}: it is sent there"))
                self._pack(name, files[name], name == spec.model)
        self._give(each, spec)

    def _pack(self, name: str, path: str, model: bool) -> None:
        """Put a file or folder into the object store, once."""
        if name in self._parcels:
            return
        try:
            self._parcels[name] = pack(self._ray, Path(path), model)
        except (OSError, self._ray.exceptions.RayError) as error:
            raise RunError(f"{path}: cannot be sent to the nodes ({first_line(error)})") from error


def _connect(ray: Any, address: str) -> bool:
    """Connect to a cluster; False if this process was connected before.

    Raises:
        RunError: there is no cluster, or one of another version.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    _mute(ray, True)
    try:
        with _own_signals(), _one_try():
            ray.init(address=address, logging_level="error", log_to_driver=False, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())
        if "Version mismatch" in text:
            found = re.search(r"started with: (Ray: \S+ Python: \S+).*started with: (Ray: \S+ Python: \S+)", text)
            what = f": {found[1]} there, {found[2]} here" if found else ""
            raise RunError(
                f"--address {address}: the cluster runs another version of Ray or Python{what}; install the cluster's"
            ) from error
        if address == "auto":
            raise RunError(_NO_CLUSTER) from error
        raise RunError(f"--address {address}: no Ray cluster could be joined ({first_line(error)})") from error
    return True


def _mute(ray: Any, on: bool) -> None:
    """Keep words of the cluster (a node was lost) off stdout, where the result goes; `log_to_driver` does not."""
    ray._private.worker._worker_logs_enabled = not on


@contextlib.contextmanager
def _one_try() -> Iterator[None]:
    """Let Ray try a head that does not answer for 40 seconds once, and not twenty times over."""
    name = "RAY_gcs_server_port_wait_time_s"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what SIGTERM does: Ray would turn it into exit code 15."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listens(node: _Node) -> bool:
    try:
        socket.create_connection((node.address, node.port), timeout=3).close()
    except OSError:
        return False
    return True


def _cause(error: Exception) -> str:
    """An error of Ray in a few words; its own text runs over many lines."""
    text = " ".join(str(error).split())
    if "OutOfMemory" in type(error).__name__ or "low on memory" in text:
        return "killed for lack of memory; lower --batch-size or raise --cpus-per-run"
    found = re.search(r"(?:Worker exit detail|failed reason|error_message): (.{10,}?)(?:\. |$)", text)
    return found[1][:200] if found else first_line(error)
