"""The nodes of a Ray cluster as the driver sees them: which exist, how much fits on each, which are not used."""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from mixwell.compare.engines.base import Event, Note
from mixwell.compare.engines.cluster import Cluster
from mixwell.utils.errors import RunError

CHECK_INTERVAL = 2.0  # seconds between checks of the nodes
_ABSENT = 60.0  # seconds until a node that did not answer is used again, should Ray still count it in
_HEAD_TIMEOUT = 20.0  # seconds that the head may be silent; after 60 Ray ends the process


@dataclass(eq=False)
class Node:
    """A node of the cluster.

    Attributes:
        id: of Ray.
        address: its IP address.
        port: of its node manager.
        room: how many trainings fit on it.
        refused: why it is not used any more; empty if it is.
        failed_starts: workers in a row that died before their first answer.
        failed_cells: cells in a row whose worker died there.
    """

    id: str
    address: str
    port: int
    room: int
    refused: str = ""
    failed_starts: int = 0
    failed_cells: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """For the user; several nodes may have one address."""
        return f"node {self.address} ({self.id[:6]})"

    def answers(self) -> bool:
        """Whether the node can be reached."""
        return _connection_error(self.address, self.port, 3) is None


class ClusterNodes:
    """Keeps track of the nodes of a cluster.

    Args:
        ray: the package, connected.
        cluster: what a training takes.
        events: receives notes about nodes that join, are gone or are not used.
        patience: seconds to wait for nodes when the last one is gone.
    """

    def __init__(self, ray: Any, cluster: Cluster, events: deque[Event], patience: float) -> None:
        self.patience = patience
        self.head_lost = False
        self._ray, self._cluster, self._events = ray, cluster, events
        self._nodes: dict[str, Node] = {}
        self._absent: dict[str, float] = {}  # nodes that do not answer, and until when they are not used
        self._first, self._last_check = True, -CHECK_INTERVAL
        self._empty_since: float | None = None  # since when there is no node
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._head_answered = time.monotonic()

    def usable(self) -> list[Node]:
        """The nodes that cells may run on."""
        return [node for node in self._nodes.values() if not node.refused]

    def check(self, busy: bool) -> list[Node] | None:
        """Update the nodes, at most once per `CHECK_INTERVAL`.

        Args:
            busy: whether any cell is running.

        Returns:
            The nodes that are gone since the last check; None if nothing could be checked.

        Raises:
            RunError: the head does not answer any more, or no node is left to run anything.
        """
        now = time.monotonic()
        if now < self._last_check + CHECK_INTERVAL:
            return None
        self._last_check = now
        if not self._head_answers(now):
            return None
        alive = {entry["NodeID"]: entry for entry in self._ray.nodes() if entry["Alive"]}
        gone = [node for id, node in self._nodes.items() if id not in alive]
        for node in gone:
            self._remove(node)
        self._add(alive, now)
        if not self._events:  # the user sees what happened before the error
            self._check_any_left(now, busy)
        return gone

    def _add(self, alive: dict[str, dict[str, Any]], now: float) -> None:
        first, self._first = self._first, False
        for id, entry in alive.items():
            if now < self._absent.get(id, 0.0):
                continue
            room = self._cluster.fits(entry["Resources"])
            if id in self._nodes:
                self._nodes[id].room = room
            elif room:
                node = self._nodes[id] = Node(id, entry["NodeManagerAddress"], entry["NodeManagerPort"], room)
                if not first:
                    self._events.append(Note(f"{node.name} has joined, with room for {room}"))
        gpus = sum(entry["Resources"].get("GPU", 0.0) for entry in alive.values())
        if first and gpus and not self._cluster.gpus_per_run:
            self._events.append(Note(f"the cluster has {gpus:g} GPUs, but none is used; add --gpus-per-run 1"))

    def _remove(self, node: Node) -> None:
        if self._nodes.pop(node.id, None) is not None:
            self._events.append(Note(f"{node.name} is gone"))

    def is_lost(self, node: Node) -> bool:
        """Whether a node does not answer; it is removed then, as Ray takes a while to notice."""
        if node.answers():
            return False
        self._absent[node.id] = time.monotonic() + _ABSENT
        self._remove(node)
        return True

    def refuse(self, node: Node, why: str) -> None:
        """Start nothing more on a node; what runs on it may end."""
        if not node.refused:
            node.refused = why
            self._events.append(Note(f"{node.name} is not used: {why}"))
        self._last_check = -CHECK_INTERVAL  # it may have been the last one

    def _head_answers(self, now: float) -> bool:
        error = _connection_error(*self._head, 5)
        if error is None:
            self._head_answered = now
            return True
        if now > self._head_answered + _HEAD_TIMEOUT and not self._events:
            self.head_lost = True
            raise RunError(
                f"the head of the cluster does not answer any more ({error.strerror or error}); what is finished "
                f"is kept, so run the same command again when it does"
            ) from error
        return False

    def _check_any_left(self, now: float, busy: bool) -> None:
        if busy or any(node.room for node in self.usable()):
            self._empty_since = None
            return
        refused = [f"{node.name}: {node.refused}" for node in self._nodes.values() if node.refused]
        if refused:
            raise RunError(
                f"no node of the cluster can be used: {'; '.join(refused)}; what is finished is kept, so put that "
                f"right and run the same command again"
            )
        if self._empty_since is None:
            self._empty_since = now
            self._events.append(Note(f"no node is left; waiting up to {self.patience:g} s for one"))
        elif now > self._empty_since + self.patience:
            raise RunError(
                f"the cluster had no node with {self._cluster.share} for {self.patience:g} s; what is finished is "
                f"kept, so run the same command again when there is one"
            )

    def check_room(self) -> None:
        """Raise `RunError` unless a training fits on some node."""
        if any(node.room for node in self._nodes.values()):
            return
        alive = [entry for entry in self._ray.nodes() if entry["Alive"]]
        resources = [entry["Resources"] for entry in alive]
        cpus, gpus = (max((each.get(name, 0.0) for each in resources), default=0.0) for name in ("CPU", "GPU"))
        raise RunError(
            f"no node of the cluster has room for a training of {self._cluster.share}: the largest of {len(alive)} has "
            f"{cpus:g} CPUs and {gpus:g} GPUs; lower --cpus-per-run or --gpus-per-run, or start a node that has them"
        )


def _connection_error(host: str, port: int, timeout: float) -> OSError | None:
    """Why a server cannot be reached; None if it can."""
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError as error:
        return error
    return None
