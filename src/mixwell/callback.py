"""A TrainerCallback that tells a mixer how far training is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixwell.mixer import Mixer


def make_callback(mixer: Mixer) -> Any:
    """Return a TrainerCallback that sets `mixer.progress` and logs the last drawn lam as `mixwell_lam`.

    Made in a function because importing transformers' callbacks loads the whole Trainer.
    """
    from transformers import TrainerCallback

    class MixerCallback(TrainerCallback):
        """Sets the fraction of training that is done before every optimiser step."""

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
