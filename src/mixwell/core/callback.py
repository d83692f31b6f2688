"""A TrainerCallback that tells a mixer how far training is, and keeps its state with the checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.utils.errors import RunError
from mixwell.utils.files import write_bytes

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


def make_callback(mixer: Mixer) -> Any:
    """Return a TrainerCallback that sets `mixer.progress` and logs the last drawn lam as `mixwell_lam`.

    What a method learned lies in the checkpoints, and a resumed run goes on from there.

    Made in a function because importing transformers' callbacks loads the whole Trainer.
    """
    from transformers import TrainerCallback

    def state_file(args: Any, state: Any) -> Path:
        """Each process learns from its own rows."""
        return (
            Path(args.output_dir)
            / f"checkpoint-{state.global_step}"
            / f"mixwell-state-{args.process_index}.safetensors"
        )

    class MixerCallback(TrainerCallback):  # type: ignore[misc]
        """Sets the fraction of training that is done before every optimiser step."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not mixer.method.learns or not state.global_step:
                return
            from safetensors.torch import load_file

            path = state_file(args, state)
            if not path.is_file():
                raise RunError(
                    f"{path} is missing (trained without mixer.callback(), or the checkpoint lies elsewhere?), so what "
                    f"{mixer.method.name!r} learned is lost; put the file there, or start anew"
                )
            mixer.load_state_dict(load_file(path))

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if mixer.method.learns:
                from safetensors.torch import save

                write_bytes(state_file(args, state), save(mixer.state_dict()))

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            mixer.progress = state.global_step / max(state.max_steps, 1)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
        ) -> None:
            lam = None if mixer.last is None else mixer.last.lam
            if logs is not None and isinstance(lam, float):
                # Trainer has filed the logs already: add it there and to what is printed.
                logs["mixwell_lam"] = lam
                if state.log_history:
                    state.log_history[-1]["mixwell_lam"] = lam

    return MixerCallback()
