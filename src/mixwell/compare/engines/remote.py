"""What happens on a node of a Ray cluster: check whether it can be used, and train cells."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import os
from collections.abc import Mapping
from typing import Any

from mixwell.compare.engines import worker
from mixwell.compare.engines.base import failure_of, first_line
from mixwell.compare.engines.transfer import Package, unpack
from mixwell.compare.spec import PATH_FIELDS, CellSpec
from mixwell.training import models
from mixwell.utils.environment import versions
from mixwell.utils.errors import OptionError

JOB = "mixwell.compare.cell:run_cell"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def actor() -> type:
    """The class of the actors, one per worker.

    Being local it is sent by value and not by name, so that it can answer on a node without mixwell, too. For the
    same reason it imports mixwell inside its methods, and uses nothing else of it before it knows the version.
    """

    class Worker:
        def start(self, versions: dict[str, str], job: str, threads: int, cache_dir: str | None) -> dict[str, Any]:
            import os

            answer = {"process": os.getpid(), "refused": ""}
            wanted = versions["mixwell"]
            try:
                from mixwell._version import __version__
            except ImportError as error:
                missing = getattr(error, "name", None) == "mixwell"
                what = "is not installed there" if missing else f"cannot be imported there ({error})"
                return {**answer, "refused": f"mixwell {what}; install mixwell {wanted} on the node"}
            if __version__ != wanted:
                why = f"it has mixwell {__version__}, this process {wanted}; install the same version on both"
                return {**answer, "refused": why}
            try:
                from mixwell.compare.engines import remote

                self.trainer = remote.RemoteTrainer(job, threads, cache_dir)
                return {**answer, "refused": remote.version_differences(versions)}
            except ImportError as error:
                return {**answer, "refused": f"mixwell cannot be imported there ({error})"}

        def run(self, *given: Any) -> tuple[str, Any]:
            return self.trainer.run(*given)

    return Worker


def version_differences(driver: Mapping[str, str]) -> str:
    """How the versions here differ from the driver's, in words; empty if they do not.

    Results are paired over methods and seeds, so that all nodes must compute the same. Ray itself checks Python;
    builds of one version (for CPUs, for CUDA) count as the same.
    """
    here = versions()
    differences = [
        f"{name} {here.get(name, 'missing')} there, {version} here"
        for name, version in driver.items()
        if name != "python" and here.get(name, "").split("+")[0] != version.split("+")[0]
    ]
    return f"other versions ({', '.join(differences)}); install the same on all nodes" if differences else ""


class RemoteTrainer:
    """Trains cells in a process on a node.

    Args:
        job: `module:function`, see `RayEngine`.
        threads: for torch and the other libraries.
        cache_dir: for tokenised texts and for data that were sent.
    """

    def __init__(self, job: str, threads: int, cache_dir: str | None) -> None:
        self._job, self._threads, self._cache_dir = job, threads, cache_dir
        self._cache: Any = None
        self._prepared = False

    def run(
        self, values: dict[str, Any], names: list[str], packages: Mapping[str, Package], only_sent: bool
    ) -> tuple[str, Any]:
        """Train a cell.

        Args:
            values: of its specification.
            names: the files in it that the driver has.
            packages: those that are available from the object store.
            only_sent: use these even if there is something at their paths.

        Returns:
            `("finished", result)`, `("failed", event)`, `("missing", names)` of files this node does not see, or
            `("refused", why)` if no cell can run here.
        """
        spec = CellSpec.from_dict(values)
        try:
            unseen = [name for name in names if only_sent or not _sees(name, spec)]
            missing = [name for name in unseen if name not in packages]
            if missing:
                return "missing", missing
            spec = _with_paths(spec, {name: unpack(packages[name], self._cache_dir) for name in unseen})
            return "finished", self._train(spec)
        except Exception as error:
            self._cache = None  # the model may be half trained, or have filled the memory
            fault = disk_fault(error)
            return ("refused", fault) if fault else ("failed", failure_of(spec.key, error))

    def _train(self, spec: CellSpec) -> Any:
        module, _, function = self._job.partition(":")
        if self._job == JOB:
            if not self._prepared:
                worker.prepare(self._threads)
                self._prepared = True
            from mixwell.compare.cell import Cache  # imports torch

            self._cache = self._cache or Cache(self._cache_dir)
        return getattr(importlib.import_module(module), function)(spec, self._cache)


def _sees(name: str, spec: CellSpec) -> bool:
    """Whether this node has a file of a cell."""
    if name != spec.model:
        return os.path.exists(name)
    try:
        return os.path.isdir(models.resolve(name))
    except OptionError:
        return False


def _with_paths(spec: CellSpec, paths: Mapping[str, str]) -> CellSpec:
    """The same cell with files at other paths; its name stays, as contents decide it."""
    if not paths:
        return spec
    fields = {field: getattr(spec.source, field) for field in PATH_FIELDS}
    source = dataclasses.replace(spec.source, **{field: paths.get(path, path) for field, path in fields.items()})
    conditions = spec.conditions.moved(paths)
    return dataclasses.replace(spec, source=source, model=paths.get(spec.model, spec.model), conditions=conditions)


def disk_fault(error: BaseException | None) -> str:
    """What is wrong with this machine's disk if that is why something failed; else empty."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK:
            return f"{error.filename or 'its disk'}: {error.strerror}; make room there, or name another --cache-dir"
        if "No space left on device" in str(error):
            return f"its disk is full ({first_line(error)}); make room there, or name another --cache-dir"
        error = error.__cause__ or error.__context__
    return ""
