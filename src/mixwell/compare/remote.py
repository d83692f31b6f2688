"""What happens on a node of a Ray cluster: look whether it can be used, and train cells."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import os
from collections.abc import Mapping
from typing import Any

from mixwell.compare import worker
from mixwell.compare.engine import failure_of, first_line
from mixwell.compare.parcels import Parcel, unpack
from mixwell.compare.spec import CellSpec
from mixwell.errors import OptionError

JOB = "mixwell.compare.cell:run_cell"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
PATHS = ("data", "validation", "test", "splits_file")  # fields of a source that may name files


def actor() -> type:
    """The class of the actors, which speak for a node.

    Being local it is sent whole and not by name, so that it can speak on a node without mixwell, too. For the same
    reason it uses nothing of this module before it knows the version.
    """

    class Worker:
        def greet(self, versions: dict[str, str], job: str, threads: int, cache_dir: str | None) -> dict[str, Any]:
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
                from mixwell.compare import remote

                self.remote = remote.Remote(job, threads, cache_dir)
                return {**answer, "refused": remote.difference(versions)}
            except ImportError as error:
                return {**answer, "refused": f"mixwell cannot be imported there ({error})"}

        def run(self, *given: Any) -> tuple[str, Any]:
            return self.remote.run(*given)

    return Worker


def difference(versions: Mapping[str, str]) -> str:
    """Say how the versions here differ from others that should be the same; nothing if they do not.

    Results are paired over methods and seeds, so that all nodes must compute the same. Ray sees to Python; builds of
    one version (for CPUs, for CUDA) count as the same.
    """
    from mixwell import runs

    here = runs.versions()
    found = [
        f"{name} {here.get(name, 'missing')} there, {version} here"
        for name, version in versions.items()
        if name != "python" and here.get(name, "").split("+")[0] != version.split("+")[0]
    ]
    return f"other versions ({', '.join(found)}); install the same on all nodes" if found else ""


class Remote:
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
        self, values: dict[str, Any], names: list[str], parcels: Mapping[str, Parcel], only_sent: bool
    ) -> tuple[str, Any]:
        """Train a cell.

        Args:
            values: of its specification.
            names: the files in it that the driver has.
            parcels: those that can be had from the object store.
            only_sent: use these even if there is something at their paths.

        Returns:
            `("finished", result)`, `("failed", event)`, `("missing", names)` of files this node does not see, or
            `("refused", why)` if no cell can run here.
        """
        spec = CellSpec.from_dict(values)
        try:
            lacking = [name for name in names if only_sent or not _sees(name, spec)]
            missing = [name for name in lacking if name not in parcels]
            if missing:
                return "missing", missing
            spec = _moved(spec, {name: unpack(parcels[name], self._cache_dir) for name in lacking})
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
            from mixwell.compare.cell import Cache

            self._cache = self._cache or Cache(self._cache_dir)
        return getattr(importlib.import_module(module), function)(spec, self._cache)


def _sees(name: str, spec: CellSpec) -> bool:
    if name != spec.model:
        return os.path.exists(name)
    from mixwell import models

    try:
        return os.path.isdir(models.resolve(name))
    except OptionError:
        return False


def _moved(spec: CellSpec, places: Mapping[str, str]) -> CellSpec:
    """The same cell with files at other places; its name stays, as that goes by contents."""
    if not places:
        return spec
    fields = {each: getattr(spec.source, each) for each in PATHS}
    source = dataclasses.replace(spec.source, **{each: places.get(path, path) for each, path in fields.items()})
    return dataclasses.replace(spec, source=source, model=places.get(spec.model, spec.model))


def disk_fault(error: BaseException | None) -> str:
    """Say what is wrong with this machine's disk if that is why something failed; else nothing."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK:
            return f"{error.filename or 'its disk'}: {error.strerror}; make room there, or name another --cache-dir"
        if "No space left on device" in str(error):
            return f"its disk is full ({first_line(error)}); make room there, or name another --cache-dir"
        error = error.__cause__ or error.__context__
    return ""
