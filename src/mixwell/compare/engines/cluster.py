"""Which Ray cluster to use, whether it can be reached, and the connection to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mixwell.compare.engines.base import first_line
from mixwell.utils.errors import OptionError, RunError

_NO_CLUSTER = (
    "--address auto: this machine belongs to no Ray cluster; run `ray start --head`, or `ray start --address "
    "HEAD:6379` to join one, or name the head with --address HOST:PORT"
)
# Ray reads these when it is imported; a user's own values win.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Drops messages of the cluster (a node was lost), which go to stdout in spite of `log_to_driver=False`.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
}


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
        ray = import_ray()
        if self.address == "auto":
            _check_environment(ray)
        elif self.address != "local":
            _check_address(self.address)

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


def import_ray() -> Any:
    """Import Ray, silent about the cluster if this is its first import; raises `OptionError` if it is missing."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise OptionError('--engine ray needs the package ray; run `pip install "mixwell[ray]"`') from error
    return ray


# --- addresses -------------------------------------------------------------------------------------------------------


def _split(address: str) -> tuple[str, int] | None:
    """Host and port, or None."""
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() and 0 < int(port) < 65536 else None


def _check_environment(ray: Any) -> None:
    """Raise `RunError` if RAY_ADDRESS names a cluster that is gone; without it `ray.init` finds one, or fails."""
    place = _split(os.environ.get("RAY_ADDRESS", ""))
    if place is None or ray.is_initialized():
        return
    try:
        socket.create_connection(place, timeout=5).close()
    except OSError as error:
        raise RunError(_NO_CLUSTER) from error


def _check_address(address: str) -> None:
    """Raise an error if nothing answers at an address, or a web server: Ray itself would try for a long time."""
    place = _split(address)
    if place is None:
        raise OptionError(f"--address {address}: expected HOST:PORT (Ray's port is 6379), auto or local")
    try:
        socket.create_connection(place, timeout=5).close()
    except OSError as error:
        raise RunError(
            f"--address {address}: nothing answers there ({error.strerror or error}); check that `ray start --head` "
            f"ran on that machine and that the port is right and open"
        ) from error
    if _is_web_server(*place):
        raise RunError(_not_ray(address))


def _is_web_server(host: str, port: int) -> bool:
    """Whether a server answers as the dashboard does; the port of Ray itself does not."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("HEAD", "/")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _not_ray(address: str) -> str:
    return (
        f"--address {address}: something answers there, but no Ray cluster; give the port of `ray start --head` (6379 "
        f"by default), not that of the dashboard"
    )


# --- the connection --------------------------------------------------------------------------------------------------


def connect(ray: Any, address: str) -> bool:
    """Connect to a cluster; False if this process was connected before.

    Raises:
        RunError: there is no cluster, or one of another version.
    """
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        with _own_signals(), _one_try():
            ray.init(address=address, logging_level="error", log_to_driver=False, **options)
    except (RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise RunError(_why(address, error)) from error
    return True


def _why(address: str, error: Exception) -> str:
    """Why `ray.init` failed, in one line."""
    text = " ".join(str(error).split())
    if "Version mismatch" in text:
        match = re.search(r"started with: (Ray: \S+ Python: \S+).*started with: (Ray: \S+ Python: \S+)", text)
        versions = f": {match[1]} there, {match[2]} here" if match else ""
        return (
            f"--address {address}: the cluster runs another version of Ray or Python{versions}; install the cluster's"
        )
    if address == "auto":
        return _NO_CLUSTER
    if isinstance(error, ConnectionError) and address != "local":
        return _not_ray(address)
    return f"--address {address}: no Ray cluster could be joined ({first_line(error)})"


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
