"""The arguments of Trainer: which fields are free, and those of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixwell.utils.environment import processes
from mixwell.utils.errors import OptionError, nearest

if TYPE_CHECKING:
    from mixwell.training.settings import TrainSettings


# Fields of TrainingArguments that have an option of their own, or that a run depends on.
TAKEN = {
    "output_dir": "--output", "num_train_epochs": "--epochs", "per_device_train_batch_size": "--batch-size",
    "learning_rate": "--learning-rate", "warmup_steps": "--warmup", "weight_decay": "--weight-decay", "seed": "--seed",
    "lr_scheduler_type": "--scheduler", "label_smoothing_factor": "--label-smoothing", "save_steps": "--save-steps",
    "metric_for_best_model": "--best-metric", "report_to": "--report-to",
    "train_sampling_strategy": "--group-by-length", "per_device_eval_batch_size": "--eval-batch-size",
}  # fmt: skip


FIXED = {
    "eval_strategy", "save_strategy", "logging_strategy", "load_best_model_at_end", "greater_is_better", "eval_delay",
    "eval_on_start", "save_total_limit", "save_only_model", "restore_callback_states_from_checkpoint", "disable_tqdm",
    "resume_from_checkpoint", "ignore_data_skip", "auto_find_batch_size", "enable_jit_checkpoint", "batch_eval_metrics",
    "prediction_loss_only", "include_for_metrics", "do_train", "do_eval", "do_predict", "push_to_hub", "log_level",
    "logging_nan_inf_filter", "remove_unused_columns", "label_names", "eval_do_concat_batches", "use_cache",
    "dataloader_drop_last",  # it would drop validation rows too
    "hub_token", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision",
}  # fmt: skip


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise `OptionError` for a field of TrainingArguments that is unknown or not free."""
    if not arguments:
        return
    from transformers import TrainingArguments

    known = {f.name for f in dataclasses.fields(TrainingArguments)}
    for name in arguments:
        if name in TAKEN:
            raise OptionError(f"--set {name}: use {TAKEN[name]} for that")
        if name in FIXED:
            raise OptionError(f"--set {name}: mixwell decides that itself; leave it out")
        if name not in known:
            raise OptionError(f"--set {name}: TrainingArguments has no such field{nearest(name, known)}")


def _try_optimiser(arguments: Any) -> None:
    """Make an optimiser and a schedule for one number, so that values they refuse show before anything is written."""
    import torch
    from transformers import Trainer, get_scheduler

    number = [torch.nn.Parameter(torch.zeros(1))]
    optimiser: torch.optim.Optimizer = torch.optim.SGD(number, lr=0.1)
    if arguments.optim in ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"):
        make, options = Trainer.get_optimizer_cls_and_kwargs(arguments)  # others need the model, or a library
        optimiser = make(number, **options)
    get_scheduler(
        arguments.lr_scheduler_type, optimiser, num_warmup_steps=1, num_training_steps=10,
        scheduler_specific_kwargs=dict(arguments.lr_scheduler_kwargs or {}),
    )  # fmt: skip


def best_metric(name: str, task: str) -> str:
    """The metric that chooses the best epoch.

    `loss` is taken from the gathered logits: Trainer's own `eval_loss` is too high by the number of processes for
    models that do not use `num_items_in_batch`.
    """
    return name if name != "loss" else "mse" if task == "regression" else "nll"


def training_arguments(
    settings: TrainSettings, task: str, learning_rate: float, folder: str | None, *, evaluate: bool = True
) -> Any:
    """The `TrainingArguments` of a run; without a folder nothing is saved, and without `evaluate` nothing measured."""
    import torch
    from transformers import TrainingArguments

    from mixwell.metrics.scores import METRICS

    names = [name for name, info in METRICS.items() if task in info.tasks]
    best = best_metric(settings.best_metric, task)
    if settings.best_metric not in ("loss", *names):
        raise OptionError(
            f"best_metric {settings.best_metric!r} is unknown for {task}{nearest(settings.best_metric, names)}; use "
            f"one of loss, {', '.join(names)}"
        )
    check_arguments(settings.arguments)
    values: dict[str, Any] = {
        "output_dir": folder,
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.eval_batch_size,
        "learning_rate": learning_rate,
        "warmup_steps": settings.warmup,
        "weight_decay": settings.weight_decay,
        "lr_scheduler_type": settings.scheduler,
        "seed": settings.seed,
        "report_to": settings.report_to,
        "eval_strategy": "epoch" if evaluate else "no",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "metric_for_best_model": best,
        "greater_is_better": METRICS[best].higher_is_better,
        "restore_callback_states_from_checkpoint": True,
        "logging_nan_inf_filter": False,  # it would hide a loss that is no number
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",
        "dataloader_pin_memory": torch.cuda.is_available(),
        **settings.arguments,
    }
    if not torch.accelerator.is_available() and (processes() > 1 or values.get("bf16")):
        # Else each process would train alone, all of them as the first, and bf16 would want a GPU.
        values["use_cpu"] = True
    try:
        arguments = TrainingArguments(**values)
        _try_optimiser(arguments)
    except Exception as error:  # a file that is none, a word where a table belongs: libraries raise anything
        why = " ".join(str(error).split()) or type(error).__name__
        words = "".join(f" --set {name}={value}" for name, value in settings.arguments.items())
        raise OptionError(f"Trainer refuses these settings{words and f' ({words.strip()})'}: {why}") from error
    if arguments.world_size != processes():
        raise OptionError(
            f"{processes()} processes were started but Trainer sees {arguments.world_size}; start them with torchrun "
            f"or accelerate launch, with settings for this machine's devices"
        )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # DataParallel cannot be mixed; torchrun uses all devices
    return arguments
