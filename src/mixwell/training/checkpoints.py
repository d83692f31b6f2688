"""Checkpoints that are known to be complete.

Trainer writes checkpoints in place, and takes the newest even if a kill left it half-written. Here a manifest with
the size and SHA-256 of every file is put beside them, by a rename, when all are written.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from mixwell.utils.errors import RunError
from mixwell.utils.files import sha256_of, write_json
from mixwell.utils.records import parse_json, reading

MANIFEST = "mixwell-manifest.json"


STATE = "trainer_state.json"
# The running mean of the weights (`averaging`), where that is what is kept.
AVERAGE = "mixwell-average.safetensors"


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """All checkpoints in a folder, complete or not, as (step, path)."""
    named = ((path.name.removeprefix("checkpoint-"), path) for path in folder.glob("checkpoint-*"))
    return [(int(step), path) for step, path in named if path.is_dir() and step.isdigit()]


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
        str(path.relative_to(checkpoint)): [path.stat().st_size, sha256_of(path)]
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    write_json(checkpoint / MANIFEST, {"files": files})


def checkpoint_fault(checkpoint: Path) -> str | None:
    """Say what is wrong with a checkpoint; None when it is complete."""
    try:
        files = parse_json((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, (size, digest) in files.items():
            path = checkpoint / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, expected {size}"
            if sha256_of(path) != digest:
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
    """The state that Trainer left in a checkpoint; raises `RunError` if that is not what Trainer writes."""
    with reading(checkpoint, "remove that checkpoint and resume from the one before"):
        state = parse_json((checkpoint / STATE).read_text(encoding="utf-8"))
        for name in ("global_step", "max_steps"):
            state[name] + 0
        [entry["step"] + 0 for entry in state["log_history"]]
        int(state.get("best_global_step") or 0)
        round(state.get("epoch") or 0, 6)
        dict(state.get("stateful_callbacks") or {})
        return cast(dict[str, Any], state)


def training_over(state: dict[str, Any], stop_after: int | None = None) -> bool:
    """Whether a checkpoint's state is that of the end of training: all steps or epochs done, or stopped early."""
    epochs_done = stop_after is not None and round(state.get("epoch") or 0, 6) >= stop_after
    if epochs_done or state["global_step"] >= state["max_steps"]:
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
    """Put the weights of a checkpoint into a model, or their running mean where it has one.

    Raises:
        RunError: a weight is not there, or does not belong to the model.
    """
    from safetensors.torch import load_file

    weights: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        if not file.name.startswith("mixwell-"):  # the mean, and what a method learned
            weights |= load_file(str(file), device="cpu")
    own = model.state_dict()
    model.load_state_dict(weights, strict=False)
    if (checkpoint / AVERAGE).is_file():  # apart: a tied weight may have another name there
        model.load_state_dict(load_file(str(checkpoint / AVERAGE), device="cpu"), strict=False)
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
