"""The Ray engine on nodes of this machine: the same records, nodes that die or are of no use, wrong addresses."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_compare import FakeEngine, calm, cells, finished, make_grid, place  # noqa: F401
from test_compare_cli import words
from test_compare_kill import content, identity, log
from test_training import SOURCE, rows, write_csv

from mixwell.cli import main
from mixwell.compare.engines import nodes as nodes_module
from mixwell.compare.engines import ray as ray_engine
from mixwell.compare.engines import remote, transfer
from mixwell.compare.engines.base import Failed, Finished, Note
from mixwell.compare.engines.cluster import Cluster, import_ray
from mixwell.compare.engines.inline import InlineEngine
from mixwell.compare.engines.ray import WORKER_RETRIES, RayEngine
from mixwell.compare.live import LiveView
from mixwell.compare.records import Records
from mixwell.compare.run import check_engine, make_engine, run
from mixwell.compare.schedule import ScheduleOutcome, execute
from mixwell.compare.spec import CellSpec
from mixwell.utils.errors import MixwellError, OptionError, RunError

TESTS = Path(__file__).resolve().parent
STORE = 80 << 20
# Nodes that die are found out in about two seconds, as tests should not take long.
CONFIG = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4,
          # Else the other tests would leave the workers of Ray no time.
          "worker_niceness": 0}  # fmt: skip


class Nodes:
    """A cluster on this machine alone: a head with one CPU and a node with one."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.folder = folder
        self.paths = os.pathsep.join([str(SOURCE), str(TESTS), str(TESTS.parent)])
        self.cluster = RayCluster()
        self.head = self.add(_system_config=CONFIG, include_dashboard=False)
        self.second = self.add()
        self.address: str = self.cluster.address

    def add(self, cpus: int = 1, paths: str | None = None, env: dict[str, str] | None = None, **more: Any) -> Any:
        env = {"PYTHONPATH": paths or self.paths, "TEST_MARKS": str(self.folder), **(env or {})}
        return self.cluster.add_node(num_cpus=cpus, object_store_memory=STORE, env_vars=env, **more)

    def kill(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)

    @contextlib.contextmanager
    def extra(self, **about: Any) -> Iterator[Any]:
        node = self.add(**about)
        try:
            yield node
        finally:
            if node in self.cluster.worker_nodes:
                self.kill(node)
            self.cluster.wait_for_nodes()  # else the next test begins with a node that is about to be gone

    def engine(self, job: str = "empty", workers: int | None = None, patience: float = 60, **about: Any) -> RayEngine:
        name = remote.JOB if job == "real" else f"cluster_jobs:{job}"
        return RayEngine(Cluster(self.address, **about), workers, job=name, patience=patience)


@pytest.fixture(scope="module")
def nodes(calm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:  # noqa: F811
    ray = import_ray()
    cluster = None
    try:
        cluster = Nodes(tmp_path_factory.mktemp("marks"))
        yield cluster
    finally:
        ray.shutdown()
        if cluster is not None:
            cluster.cluster.shutdown()


@pytest.fixture(autouse=True)
def _each(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nodes_module, "CHECK_INTERVAL", 0.5)
    yield
    if sys.modules.get("ray"):
        sys.modules["ray"].shutdown()


class Listener(LiveView):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def work(wanted: list[CellSpec], folder: Path, engine: Any, view: LiveView | None = None) -> ScheduleOutcome:
    records = Records(folder)
    records.create()
    return execute(wanted, records, engine, view or LiveView())


def many(spec: CellSpec, count: int) -> list[CellSpec]:
    """Cells for jobs that do nothing."""
    return [dataclasses.replace(spec, seed=seed) for seed in range(count)]


def until(true: Any, seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


# --- the same records -------------------------------------------------------------------------------------------------


def test_the_command(nodes: Nodes, place: Path, finished: Path, tmp_path: Path, capsys: Any) -> None:  # noqa: F811
    """Two nodes give the records of one process, bit for bit; run again, nothing is trained."""
    out = tmp_path / "out"
    line = words(place, out, "--engine", "ray", "--address", nodes.address)
    line += ["--epochs", "2", "--warmup", "0", "--weight-decay", "0"]  # as `finished`
    assert main(line) == 0
    printed = capsys.readouterr()
    assert "baseline" in printed.out and "Traceback" not in printed.err
    assert content(out) == content(finished)
    used = {entry["worker"].split(",")[0] for entry in log(out) if entry["event"] == "started"}
    assert len(used) == 2  # both nodes had a part
    before = identity(out)
    assert main(line) == 0 and identity(out) == before
    gone = sorted(before)[:2]
    for key in gone:  # what is missing can be done in another way
        shutil.rmtree(out / "cells" / key)
    assert sorted(run(make_grid(place), out, engine=InlineEngine).outcome.trained) == gone
    assert content(out) == content(finished)


class Killer(Listener):
    """Kills a node when a cell has just begun there."""

    def __init__(self, nodes: Nodes, victim: Any) -> None:
        super().__init__()
        self.nodes, self.victim, self.killed = nodes, victim, ""

    def started(self, spec: CellSpec, worker: str) -> None:
        super().started(spec, worker)
        if not self.killed and self.victim.node_id[:6] in worker:
            self.killed, process = spec.key, int(worker.split("process ")[1])
            os.kill(process, signal.SIGSTOP)  # else it might be quicker than the end of its node
            self.nodes.kill(self.victim)
            os.kill(process, signal.SIGKILL)


def test_a_node_dies_midway(
    nodes: Nodes,
    place: Path,  # noqa: F811
    cells: list[CellSpec],  # noqa: F811
    finished: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "log.jsonl").unlink()
    for cell in cells[3:]:  # so that each of three nodes gets one
        shutil.rmtree(out / "cells" / cell.key)
    before = identity(out)
    with nodes.extra() as victim:
        view = Killer(nodes, victim)
        done = run(make_grid(place), out, engine=lambda: nodes.engine("real"), view=view)
    assert view.killed and not done.outcome.failed
    assert capsys.readouterr().out == ""  # no words of Ray among ours
    assert content(out) == content(finished)
    assert len(before) == 3 and before.items() <= identity(out).items()
    assert sorted(done.outcome.trained) == sorted(cell.key for cell in cells[3:])
    events = [(entry["event"], entry.get("cell")) for entry in log(out)]
    assert ("lost", view.killed) in events
    for at, (event, cell) in enumerate(events):
        if event == "finished":
            assert not [later for later in events[at + 1 :] if later[1] == cell]  # not touched again
    assert [cell for event, cell in events if event == "lost"] == [view.killed]
    assert any("was lost; trying again" in note for note in view.notes)
    assert any(note.endswith("is gone") for note in view.notes)


def test_files_are_sent_to_nodes_that_do_not_see_them(
    nodes: Nodes,
    place: Path,  # noqa: F811
    cells: list[CellSpec],  # noqa: F811
    finished: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)  # the folder of this process, which nodes do not share
    here = Path("/proc/self/cwd")
    hidden = [
        dataclasses.replace(
            cell, source=dataclasses.replace(cell.source, data=str(here / "films.csv")), model=str(here / "tiny")
        )
        for cell in cells[:2]
    ]
    view = Listener()
    outcome = work(hidden, tmp_path / "out", nodes.engine("real", workers=1), view)
    assert not outcome.failed, next(iter(outcome.failed.values())).reason
    assert [note.split(" does not see ")[1] for note in view.notes if "does not see" in note] == [
        f"{here / 'films.csv'}: it is sent there",
        f"{here / 'tiny'}: it is sent there",
    ]
    whole = content(finished)
    assert content(tmp_path / "out") == {cell.key: whole[cell.key] for cell in hidden}


def test_ship_data(nodes: Nodes, cells: list[CellSpec], finished: Path, tmp_path: Path) -> None:  # noqa: F811
    """What lies at the path on a node does not count; a folder goes whole."""
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    write_csv(folder / "inner" / "train.csv", rows(9))
    import ray

    engine = nodes.engine(workers=1, ship_data=True)
    try:
        package = transfer.pack(ray, folder, False)
        monkey = tmp_path / "cache"
        path = Path(transfer.unpack(package, str(monkey)))
        assert (
            path.name == "data"
            and (path / "inner" / "train.csv").read_bytes() == (folder / "inner" / "train.csv").read_bytes()
        )
        assert transfer.unpack(package, str(monkey)) == str(path)
        assert [each.name for each in (monkey / "sent").iterdir()] == [package.digest[:32]]
    finally:
        engine.close()
    outcome = work(cells[:1], tmp_path / "out", nodes.engine("real", workers=1, ship_data=True))
    assert not outcome.failed
    assert content(tmp_path / "out") == {cells[0].key: content(finished)[cells[0].key]}


# --- nodes come, go, or are of no use ---------------------------------------------------------------------------------


def test_nodes_of_no_use(nodes: Nodes, cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    """Without the package, or with another version of it: told, left out, and the rest goes on."""
    without, old = tmp_path / "without", tmp_path / "old" / "mixwell"
    without.mkdir()
    (without / "mixwell.py").write_text('raise ModuleNotFoundError("No module named mixwell", name="mixwell")\n')
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("")
    (old / "_version.py").write_text('__version__ = "0.0.1"\n')
    view = Listener()
    with nodes.extra(cpus=2, paths=str(without)), nodes.extra(cpus=2, paths=str(old.parent)):
        engine = nodes.engine("slow")
        assert engine.slots == 6
        outcome = work(many(cells[0], 10), tmp_path / "out", engine, view)
        assert len(outcome.trained) == 10
        assert sorted(note.split(" is not used: ")[1] for note in view.notes) == [
            "it has mixwell 0.0.1, this process 0.1.0; install the same version on both",
            "mixwell is not installed there; install mixwell 0.1.0 on the node",
        ]
        with pytest.raises(
            RunError, match="no node of the cluster can be used: .*0.0.1.*; .*not installed|.*"
        ) as error:
            work(many(cells[0], 12), tmp_path / "out", nodes.engine(cpus_per_run=2))
        assert "not installed" in str(error.value) and "0.0.1" in str(error.value)
    assert not list((tmp_path / "out" / "failed").iterdir())


def test_a_full_disk(nodes: Nodes, cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    view = Listener()
    with nodes.extra(env={"TEST_FULL_DISK": "1"}):
        outcome = work(many(cells[0], 8), tmp_path / "out", nodes.engine("full_disk"), view)
    assert len(outcome.trained) == 8 and not outcome.failed
    assert [note for note in view.notes if "No space left on device; make room there" in note]


def test_nodes_come_and_go(nodes: Nodes, cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    with nodes.extra(cpus=3) as node:
        engine = nodes.engine(cpus_per_run=3, patience=1)
        assert engine.slots == 1
        engine.submit(cells[0])
        events: list[Any] = []
        until(lambda: events.extend(engine.wait(1)) or any(isinstance(each, Finished) for each in events))
        nodes.kill(node)
        until(lambda: engine.slots == 0)
        engine.submit(cells[1])  # no deadlock: a clear end, or another node

        def waits() -> bool:
            events.extend(engine.wait(0.2))
            return any(isinstance(each, Note) and "no node is left" in each.text for each in events)

        until(waits)
        with pytest.raises(RunError, match="had no node with 3 CPUs for 1 s; what is finished is kept"):
            until(lambda: engine.wait(0.2) is None)
        engine.nodes.patience = 60
    with nodes.extra(cpus=3):
        until(lambda: engine.slots == 1)
        until(lambda: events.extend(engine.wait(1)) or sum(isinstance(each, Finished) for each in events) == 2)
        assert any(isinstance(each, Note) and "has joined, with room for 1" in each.text for each in events)
        engine.close()


def test_workers_without_work_are_given_up(
    nodes: Nodes,
    cells: list[CellSpec],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two processes that share a folder would wait for each other: one for CPUs, one for records."""
    monkeypatch.setattr(ray_engine, "_IDLE", 0.2)
    engine = nodes.engine()
    for cell in cells[:2]:
        engine.submit(cell)
    events: list[Any] = []
    until(lambda: events.extend(engine.wait(1)) or sum(isinstance(each, Finished) for each in events) == 2)
    until(lambda: engine.wait(0.1) or not engine._workers)
    engine.submit(cells[2])
    until(lambda: events.extend(engine.wait(1)) or sum(isinstance(each, Finished) for each in events) == 3)
    engine.close()


def test_workers_die(nodes: Nodes, cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    view = Listener()
    outcome = work(cells, tmp_path / "out", nodes.engine("deadly"), view)
    (failed,) = outcome.failed.values()
    assert (failed.spec.label, failed.spec.seed) == ("amplify", 1) and len(outcome.trained) == 5
    assert "its worker on node " in failed.reason and "\n" not in failed.reason
    lost = [entry["cell"] for entry in log(tmp_path / "out") if entry["event"] == "lost"]
    assert len(lost) == 3 and lost.count(failed.spec.key) == WORKER_RETRIES


def test_defects_are_recorded(nodes: Nodes, cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    outcome = work(cells[:1], tmp_path / "out", nodes.engine("broken", workers=1))
    (failed,) = outcome.failed.values()
    assert failed.reason == "ZeroDivisionError: by zero" and "cluster_jobs.py" in failed.detail


def test_cost_of_a_cell(nodes: Nodes, cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    """benchmarks/cluster.py does it with 2,000."""
    engine = nodes.engine()
    work(many(cells[0], 2), tmp_path / "warm", _Kept(engine))
    before, began = memory(), time.process_time()  # processor time: another program must not fail this
    outcome = work(many(cells[0], 300), tmp_path / "out", engine)
    assert len(outcome.trained) == 300
    assert (time.process_time() - began) / 300 < 0.05
    assert memory() - before < 30e6


class _Kept:
    """An engine that is not closed at the end."""

    def __init__(self, engine: RayEngine) -> None:
        self.submit, self.wait, self.close = engine.submit, engine.wait, lambda: None
        self._engine = engine

    @property
    def slots(self) -> int:
        return self._engine.slots


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--address", "127.0.0.1:1"], "--address 127.0.0.1:1: nothing answers there (Connection refused); check that"),
        (["--address", "here"], "--address here: expected HOST:PORT"),
        (["--address", "127.0.0.1:99999"], "expected HOST:PORT"),
        (["--address", "ray://127.0.0.1:10001"], "Ray Client is not supported; run mixwell on a node"),
        (["--cpus-per-run", "0"], "--cpus-per-run must be at least 1, got 0"),
        (["--gpus-per-run", "1.5"], "--gpus-per-run must lie from 0 to 1, got 1.5"),
        (["--workers", "0"], "workers 0 (in this process) does not go with --engine ray"),
        (["--engine", "local", "--cpus-per-run", "2"], "go with --engine ray only"),
    ],
)
def test_mistakes(place: Path, tmp_path: Path, capsys: Any, more: list[str], message: str) -> None:  # noqa: F811
    assert main(words(place, tmp_path / "out", "--engine", "ray", *more)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("mixwell: ") and message in errors[0]
    assert not (tmp_path / "out").exists()


def test_no_cluster_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ran last is gone."""
    with socket.socket() as held:  # bound, so that nobody else gets the port, but nobody listens
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{held.getsockname()[1]}")
        with pytest.raises(RunError, match="this machine belongs to no Ray cluster; run `ray start --head`"):
            Cluster().check()


def test_no_ray(place: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(words(place, tmp_path / "out", "--engine", "ray")) == 2
    assert 'needs the package ray; run `pip install "mixwell[ray]"`' in capsys.readouterr().err


def test_another_version_of_ray(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "__version__", "1.2.3")
    with pytest.raises(RunError, match=r"another version of Ray or Python: Ray: 2\S+ Python: \S+ there, Ray: 1.2.3 "):
        nodes.engine()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_that_is_no_cluster(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server (the dashboard) is noticed at once; about others `ray.init` decides, after 40 seconds."""

    def serve(server: socket.socket) -> None:
        while True:
            with server.accept()[0] as link:
                link.recv(100)
                link.sendall(answer)

    def fail(address: str, **options: Any) -> None:
        raise ConnectionError(f"Failed to connect to Ray cluster at {address}")

    monkeypatch.setattr(import_ray(), "init", fail)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(RunError, match=f"--address {address}: something answers there, but no Ray cluster"):
            Cluster(address).check() if answer else make_engine("ray", cluster=Cluster(address))


def test_what_no_node_can_give(nodes: Nodes) -> None:
    with pytest.raises(RunError, match="no node .* has room for a training of 1 CPU and 1 GPU: .* has 1 CPUs and 0 "):
        nodes.engine(gpus_per_run=1)
    with pytest.raises(RunError, match="a training of 8 CPUs: the largest of 2 has 1 CPUs"):
        nodes.engine(cpus_per_run=8)


# --- without a cluster ------------------------------------------------------------------------------------------------


def test_room() -> None:
    assert Cluster(cpus_per_run=3).fits({"CPU": 8.0}) == 2
    assert Cluster(cpus_per_run=2, gpus_per_run=1).fits({"CPU": 8.0, "GPU": 2.0}) == 2
    assert Cluster(gpus_per_run=0.5).fits({"CPU": 8.0, "GPU": 2.0}) == 4
    assert Cluster(gpus_per_run=0.4).fits({"CPU": 8.0, "GPU": 2.0}) == 4  # two on each, and not five
    assert Cluster(gpus_per_run=1).fits({"CPU": 1.0, "GPU": 8.0}) == 1
    assert Cluster().fits({"GPU": 8.0}) == 0
    for wrong in (Cluster(cpus_per_run=0), Cluster(gpus_per_run=-1)):
        with pytest.raises(OptionError):
            wrong.check()
    with pytest.raises(OptionError):
        check_engine("local", 1, None, Cluster())


def test_versions() -> None:
    from mixwell.utils.environment import versions

    here = versions()
    assert remote.version_differences(here) == ""
    assert remote.version_differences({**here, "torch": here["torch"].split("+")[0] + "+cu128", "python": "3.99"}) == ""
    assert "numpy" in remote.version_differences({**here, "numpy": "0.1"})


def test_disk_faults() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/cache/x")
    wrapped = MixwellError("cache folder")
    wrapped.__cause__ = full
    assert remote.disk_fault(wrapped).startswith("/cache/x: No space left on device; make room")
    assert remote.disk_fault(RuntimeError("write failed: No space left on device (os error 28)"))
    assert remote.disk_fault(ValueError("x")) == ""


def test_lost_nodes_are_forgiven_more_often(cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    engine = FakeEngine()
    engine.ends = lambda spec: (
        Failed(spec.key, "node x was lost", lost=True, retries=5)
        if spec.key == cells[0].key and engine.ran.count(spec.key) < 5
        else None
    )
    assert len(work(cells, tmp_path / "out", engine).trained) == 6
    assert engine.ran.count(cells[0].key) == 5


class Absent(FakeEngine):
    """Has no machine at the first looks, and tells when one comes."""

    looks = 0

    @property
    def slots(self) -> int:
        self.looks += 1
        return 2 if self.looks > 3 else 0

    @slots.setter
    def slots(self, value: int) -> None:
        pass

    def wait(self, timeout: float) -> list[Any]:
        return [Note("a node has joined"), *super().wait(timeout)]


def test_no_machine_for_a_while(cells: list[CellSpec], tmp_path: Path) -> None:  # noqa: F811
    view = Listener()
    assert len(work(cells, tmp_path / "out", Absent(), view).trained) == 6
    assert "a node has joined" in view.notes and view.progress.slots == 2
