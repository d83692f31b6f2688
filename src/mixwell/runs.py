"""The run folder: who may write in it, its checkpoints, and its record.

    RUN/run.json            settings, versions, seeds, data fingerprint; written first
    RUN/splits.json         which row is in which split
    RUN/folds/              while training, for each fold that is over: the logits of its held-out rows per epoch
    RUN/checkpoints/        while training; each checkpoint is complete when its manifest is there
    RUN/model/              the trained model
    RUN/predictions.parquet, reliability.svg, loss.svg
    RUN/metrics.json        written last: a run with it is finished

Trainer writes checkpoints in place, and takes the newest even if a kill left it half-written. Here a manifest with
the size and SHA-256 of every file is put beside them, by a rename, when all are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from mixwell.errors import MixwellError, RunError
from mixwell.files import write_json

RUN_FORMAT = "mixwell run 1"
MANIFEST = "mixwell-manifest.json"
STATE = "trainer_state.json"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_OURS: set[str] = set()  # folders locked by this process: a POSIX lock does not stop its own process


def rank() -> int:
    """The number of this process among those of torchrun or accelerate launch; 0 when alone."""
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0


def processes() -> int:
    """How many processes torchrun or accelerate launch started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Interrupted(MixwellError):
    """Training was stopped by a signal, after a checkpoint.

    Attributes:
        signal: the signal's number; the command line exits with 128 more.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class RunFolder:
    """A run folder by its path; nothing is touched until a method says so."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    @property
    def folds(self) -> Path:
        """Where the folds that are over keep what they said, until the run is finished."""
        return self.path / "folds"

    @property
    def model(self) -> Path:
        """Where the trained model is."""
        return self.path / "model"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "metrics.json").is_file()

    def check_new(self) -> None:
        """Raise `RunError` unless a new run can go here: the folder is missing or empty."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RunError(f"output {self.path} is a file; name another folder with --output")
        if [entry for entry in os.listdir(self.path) if entry != ".lock"]:
            if self.finished:
                raise RunError(f"output {self.path} holds a finished run; name another folder with --output")
            if (self.path / "run.json").is_file():
                raise RunError(
                    f"output {self.path} holds an unfinished run; continue it with `mixwell train --resume {self.path}`"
                    f" or name another folder with --output"
                )
            raise RunError(f"output {self.path} is not empty; name another folder with --output")

    @contextlib.contextmanager
    def lock(self, *, new: bool) -> Iterator[None]:
        """Hold the folder for this process.

        The lock is the operating system's and goes away with the process, however it ends.

        Args:
            new: make the folder, and remove it again if nothing was put into it.

        Raises:
            RunError: another process holds it.
        """
        made = _make(self.path) if new else []
        if not new and not self.path.is_dir():
            raise RunError(f"{self.path}: no such run folder")
        key = str(self.path.resolve())
        file = self.path / ".lock"
        if key in _OURS:
            raise RunError(f"{self.path} is in use by this process; wait for it to end")
        handle = open(file, "a+", encoding="utf-8")  # noqa: SIM115 - held for long
        try:
            _take(handle, self.path)
            _OURS.add(key)
            if new:
                self.check_new()
            else:
                self._sweep()
            handle.seek(0)
            handle.truncate()
            handle.write(f"{os.getpid()}\n")
            handle.flush()
            yield
            file.unlink(missing_ok=True)
        finally:
            _OURS.discard(key)
            handle.close()
            if made and os.listdir(self.path) in ([], [".lock"]):
                file.unlink(missing_ok=True)
                for folder in made:
                    folder.rmdir()

    def _sweep(self) -> None:
        """Remove what a kill left of files and folders that were being written."""
        for entry in [*self.path.glob(".*.tmp-*"), *self.path.glob(".*.old-*")]:
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)

    def write_record(self, record: dict[str, Any]) -> None:
        """Write run.json."""
        write_json(self.path / "run.json", {"format": RUN_FORMAT, **record})

    def read_record(self) -> dict[str, Any]:
        """Read run.json.

        Raises:
            RunError: it is missing, damaged or of another version.
        """
        record = read_json(self.path / "run.json", RUN_FORMAT, "a run folder")
        if lost := {"settings", "data", "processes", "versions"} - record.keys():
            raise RunError(f"{self.path / 'run.json'}: damaged (no {min(lost)!r})")
        return record

    def discard(self) -> None:
        """Remove what a run that did not begin to train has written; the lock goes with it."""
        for name in ("run.json", "splits.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(self.folds, ignore_errors=True)

    def finish(self, metrics: dict[str, Any], *, keep_checkpoints: bool) -> None:
        """Write metrics.json, the mark of a finished run, and then remove the checkpoints."""
        write_json(self.path / "metrics.json", metrics)
        if not keep_checkpoints:
            self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        """Remove what training left behind; a run that is finished does not need it."""
        remove_checkpoints(self.checkpoints)
        shutil.rmtree(self.folds, ignore_errors=True)


def read_json(path: Path, format: str, what: str) -> dict[str, Any]:
    """Read a JSON file of ours; raise `RunError` when it is missing, damaged or of another version."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path.parent}: not {what} (no {path.name})") from error
    except ValueError as error:
        raise RunError(f"{path}: damaged ({error})") from error
    if not isinstance(record, dict) or record.get("format") != format:
        found = record.get("format") if isinstance(record, dict) else None
        raise RunError(f"{path}: expected {format!r}, found {found!r}; it was written by another version of mixwell")
    return record


# --- locks -----------------------------------------------------------------------------------------------------------


def _make(path: Path) -> list[Path]:
    """Make a folder and its parents; return those made, innermost first."""
    made = []
    folder = path
    while not folder.exists():
        made.append(folder)
        folder = folder.parent
    for folder in reversed(made):
        folder.mkdir(exist_ok=True)
    return made


def _take(handle: Any, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows
        return
    try:
        # Not flock: a forked data loader would inherit it and outlive a killed run.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.seek(0)
        who = handle.read().strip()
        named = f" ({who})" if who else ""
        raise RunError(f"{path} is in use by another process{named}; wait for it, or name another folder") from error


# --- checkpoints -----------------------------------------------------------------------------------------------------


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """All checkpoints in a folder, complete or not, as (step, path)."""
    found = []
    for path in folder.glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if path.is_dir() and step.isdigit():
            found.append((int(step), path))
    return found


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint in a folder, and a note for each that had to be passed over."""
    notes: list[str] = []
    for step, path in sorted(checkpoints_in(folder), reverse=True):
        fault = checkpoint_fault(path)
        if fault is None:
            # What it would end with may be the weights of an earlier one.
            best = int(read_state(path).get("best_global_step") or step)
            fault = checkpoint_fault(folder / f"checkpoint-{best}") if best != step else None
            if fault is None:
                return path, notes
            fault = f"the best before it, checkpoint {best}, is lost: {fault}"
        notes.append(f"checkpoint {step} is not complete ({fault}); going back to the one before")
    return None, notes


def drop_incomplete(folder: Path) -> None:
    """Remove the checkpoints in a folder that are not complete."""
    for _, path in checkpoints_in(folder):
        if checkpoint_fault(path) is not None:
            remove_checkpoint(path)


def write_manifest(checkpoint: Path) -> None:
    """Mark a checkpoint as complete: note the size and SHA-256 of every file in it."""
    # Trainer's settings, pickled; nothing reads them.
    (checkpoint / "training_args.bin").unlink(missing_ok=True)
    files = {
        str(path.relative_to(checkpoint)): [path.stat().st_size, _sha256(path)]
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    write_json(checkpoint / MANIFEST, {"files": files})


def checkpoint_fault(checkpoint: Path) -> str | None:
    """Say what is wrong with a checkpoint; None when it is complete."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, (size, digest) in files.items():
            path = checkpoint / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, expected {size}"
            if _sha256(path) != digest:
                return f"{name} was changed or damaged"
    except FileNotFoundError:
        return "it was still being written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest is damaged: {error}"
    return None if STATE in files else f"{STATE} is missing"


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint; a kill in the midst leaves an incomplete one, never a damaged one that looks whole."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints, and their folder if nothing else is in it."""
    for _, checkpoint in checkpoints_in(folder):
        remove_checkpoint(checkpoint)
    with contextlib.suppress(OSError):
        folder.rmdir()  # trackers such as TensorBoard leave their logs in it


def prune(folder: Path, keep: int = 2) -> None:
    """Keep the newest complete checkpoints, the best one of each, and remove the others."""
    complete = sorted((step, path) for step, path in checkpoints_in(folder) if (path / MANIFEST).is_file())
    newest = complete[-keep:]
    wanted = {step for step, _ in newest}
    wanted |= {int(state.get("best_global_step") or 0) for state in (read_state(path) for _, path in newest)}
    for step, path in complete:
        if step not in wanted:
            remove_checkpoint(path)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The state that Trainer left in a checkpoint."""
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state


def training_over(state: dict[str, Any], stop_after: int | None = None) -> bool:
    """Whether a checkpoint's state is that of the end of training: all steps or epochs done, or stopped early."""
    if state["global_step"] >= state["max_steps"]:
        return True
    if stop_after is not None and round(state.get("epoch") or 0, 6) >= stop_after:
        return True
    stopper = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    if not isinstance(stopper, dict):
        return False
    patience = stopper["args"]["early_stopping_patience"]
    return bool(stopper["attributes"]["early_stopping_patience_counter"] >= patience)


@contextlib.contextmanager
def native_names(model: Any) -> Iterator[None]:
    """Let checkpoints written inside have the model's own names of its weights.

    transformers writes weights under the names they were read by, such as LayerNorm.gamma of old BERTs, but Trainer
    puts a checkpoint back by the model's names, and leaves out what it does not find without a word.
    """
    if not hasattr(model, "_weight_conversions"):
        yield
        return
    kept, model._weight_conversions = model._weight_conversions, []
    try:
        yield
    finally:
        model._weight_conversions = kept


def load_weights(model: Any, checkpoint: Path) -> None:
    """Put the weights of a checkpoint into a model.

    Raises:
        RunError: a weight is not there, or does not belong to the model.
    """
    from safetensors.torch import load_file

    weights: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        weights |= load_file(str(file), device="cpu")
    own = model.state_dict()
    model.load_state_dict(weights, strict=False)
    # Tied weights are saved once.
    loaded = {own[name].data_ptr() for name in weights if name in own}
    spared = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    lost = [name for name in own if own[name].data_ptr() not in loaded and name not in spared]
    strange = [name for name in weights if name not in own]
    if lost or strange:
        what = f"{lost[0]} is missing" if lost else f"{strange[0]} is none of its own"
        raise RunError(
            f"{checkpoint}: not the weights of this model ({what}); remove the folder and resume from an earlier one"
        )


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


# --- signals -----------------------------------------------------------------------------------------------------


class StopSignal:
    """Notes the first Ctrl-C or SIGTERM, so that training can stop at a step's end; a second one ends at once."""

    def __init__(self) -> None:
        self.number: int | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[StopSignal]:
        """Watch inside; does nothing in threads, where Python has no signals."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._heard) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)

    def agreed(self) -> int | None:
        """The signal that any of the processes heard; all of them must ask at the same step."""
        import torch

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.number
        heard = torch.tensor(self.number or 0)
        if torch.distributed.get_backend() == "nccl":
            heard = heard.cuda()
        torch.distributed.all_reduce(heard, op=torch.distributed.ReduceOp.MAX)
        return int(heard) or None


@contextlib.contextmanager
def stoppable(path: Path) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end what happens inside at once, and say how to go on with the run.

    For what is not training: `StopSignal` takes over there, to write a checkpoint first.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise Interrupted(f"stopped by {name}; continue with `mixwell train --resume {path}`", number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- errors and versions -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the libraries raise when a file cannot be written into one line that names `path`."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}); put that right and use --resume"
        ) from error
    except (SafetensorError, RuntimeError) as error:
        signs = ("os error", "I/O error", "PytorchStreamWriter", "file write failed", "unexpected pos")
        if not any(sign in str(error) for sign in signs):
            raise
        raise RunError(
            f"{path}: cannot be written (no space left, or a limit on the size of files); make room and use --resume"
        ) from error


def versions() -> dict[str, str]:
    """The versions that a run's numbers depend on."""
    import platform
    from importlib import metadata

    from mixwell._version import __version__

    found = {"mixwell": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "accelerate", "tokenizers", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def git_commit() -> str | None:
    """The commit of the working folder's repository, with `+` behind it when files were changed; None without git."""
    import subprocess

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
