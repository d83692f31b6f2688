"""The unmodified HF Trainer: shared random stream, accumulation, label smoothing refused, resumed draws."""

from __future__ import annotations

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import mixwell
import parts
import zoo
from mixwell.methods import load_all
from mixwell.utils.errors import LabelsNotMixedError, RunError


class Rows(torch.utils.data.Dataset):
    """A data set of the rows of a batch."""

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return len(self.batch["labels"])

    def __getitem__(self, index):
        return {key: value[index] for key, value in self.batch.items()}


def trainer(model, batch, folder, *, callbacks=(), **arguments):
    settings = dict(
        per_device_train_batch_size=4, max_steps=20, learning_rate=1e-3, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=3, optim="adamw_torch",
    )  # fmt: skip
    settings.update(arguments)
    args = TrainingArguments(output_dir=str(folder), **settings)
    return Trainer(model=model, args=args, train_dataset=Rows(batch), callbacks=list(callbacks))


# RegMixup has a second forward, which draws a dropout of its own.
@pytest.mark.parametrize(
    "name", parts.some([m for m in sorted(load_all()) if load_all()[m].has_lam and m != "regmixup"], 3)
)
def test_lam_one_equals_none_after_20_steps_with_dropout(name, tmp_path):
    weights = {}
    for method in ("none", name):
        model = zoo.tiny("bert", dropout=0.2)
        with mixwell.attach(model, method) as mixer:
            job = trainer(model, zoo.batch(rows=8), tmp_path)
            if method == "none":
                job.train()
            else:
                with mixer.pin(lam=1.0):
                    job.train()
        weights[method] = {k: v.clone() for k, v in model.state_dict().items()}
    assert all(torch.equal(weights["none"][key], weights[name][key]) for key in weights["none"])
    fresh = zoo.tiny("bert", dropout=0.2).state_dict()
    assert any(not torch.equal(fresh[key], weights["none"][key]) for key in fresh)


class Gradients(TrainerCallback):
    """Keeps the gradients of the first optimiser step."""

    def __init__(self):
        self.kept = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.kept = self.kept or zoo.gradients(model)


@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
@pytest.mark.parametrize("name", ["none", "amplify", "embedmix", "attentionmix", "nonlinear", "sentencemix"])
def test_accumulation_gives_the_gradients_of_the_large_batch(name, task, tmp_path):
    """k = 2 batches of 4 against one of 8, draws pinned; the mixed pairs lie inside the small batches."""
    batch = zoo.batch(rows=8, task=task)
    seen = {}
    for size, steps in ((4, 2), (8, 1)):
        model = zoo.tiny("bert", num_labels=1 if task == "regression" else 3).double()
        batch["labels"] = batch["labels"] if task == "single_label" else batch["labels"].double()
        keep = Gradients()
        with mixwell.attach(model, name) as mixer:
            job = trainer(
                model, batch, tmp_path, callbacks=[keep], max_steps=1,
                per_device_train_batch_size=size, gradient_accumulation_steps=steps, max_grad_norm=0.0,
            )  # fmt: skip
            pin = {}
            if load_all()[name].has_permutation:
                pin["permutation"] = torch.arange(size).view(-1, 2).flip(1).flatten()
            if load_all()[name].has_lam:
                pin["lam"] = 0.6
            with mixer.pin(**pin):
                job.train()
        seen[size] = keep.kept
    assert seen[4].keys() == seen[8].keys()
    for key in seen[8]:
        torch.testing.assert_close(seen[4][key], seen[8][key], rtol=1e-9, atol=1e-11, msg=key)


def test_batchmixup_accumulation_scale(tmp_path):
    """No pin can line up its points; the size of the gradient must not grow with k."""
    norms = {}
    for steps in (1, 4):
        model, keep = zoo.tiny("bert").double(), Gradients()
        with mixwell.attach(model, "batchmixup"):
            trainer(
                model, zoo.batch(rows=8), tmp_path, callbacks=[keep], max_steps=1, max_grad_norm=0.0,
                per_device_train_batch_size=8 // steps, gradient_accumulation_steps=steps,
            ).train()  # fmt: skip
        norms[steps] = sum(g.pow(2).sum() for g in keep.kept.values()).sqrt()
    assert 0.4 < norms[4] / norms[1] < 2.5


def test_label_smoothing_of_trainer_is_refused_with_the_way_out(tmp_path):
    model = zoo.tiny("bert")
    with mixwell.attach(model, "amplify"):
        job = trainer(model, zoo.batch(rows=8), tmp_path, label_smoothing_factor=0.1)
        with pytest.raises(LabelsNotMixedError, match=r"attach\(\.\.\., label_smoothing=\.\.\.\)"):
            job.train()


def test_compute_loss_func(tmp_path):
    """Trainer with compute_loss_func=mixer.compute_loss equals Trainer with labels in the batch."""
    results = []
    for own in (False, True):
        model = zoo.tiny("bert", dropout=0.1)
        with mixwell.attach(model, "amplify") as mixer:
            job = trainer(model, zoo.batch(rows=8), tmp_path, max_steps=6)
            if own:
                job.compute_loss_func = mixer.compute_loss
            job.train()
            job.evaluate(Rows(zoo.batch(rows=8)))
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_callback_knows_how_far_training_is(tmp_path):
    model = zoo.tiny("bert")
    seen = []
    with mixwell.attach(model, "cls", start=0.5) as mixer:
        # The first forward is preceded by a check of the loss, before anything is drawn.
        spy = model.register_forward_hook(lambda *_: mixer.last and seen.append((mixer.progress, mixer.last.plain)))
        trainer(model, zoo.batch(rows=8), tmp_path, callbacks=[mixer.callback()], max_steps=6).train()
        spy.remove()
    assert [trivial for _, trivial in seen] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("options", [("manifold", {}), ("nonlinear", {"label_policy": "learned"})], ids=lambda o: o[0])
def test_resumed_run_repeats_the_draws(tmp_path, options):
    name, settings = options

    def run(folder, callback=True, **how):
        model = zoo.tiny("bert", dropout=0.1)
        with mixwell.attach(model, name, **settings) as mixer:
            more = {"callbacks": [mixer.callback()]} if callback else {}
            job = trainer(model, zoo.batch(rows=8), folder, max_steps=8, save_strategy="steps", save_steps=4, **more)
            job.train(**how)
        return {k: v.clone() for k, v in model.state_dict().items()}

    start = tmp_path / "a" / "checkpoint-4"
    whole = run(tmp_path / "a")
    resumed = run(tmp_path / "a", resume_from_checkpoint=str(start))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    if settings:  # what was learned is needed, and asked for
        (start / "mixwell-state-0.safetensors").unlink()
        with pytest.raises(RunError, match=r"mixwell-state-0\.safetensors is missing"):
            run(tmp_path / "a", resume_from_checkpoint=str(start))
        forgotten = run(tmp_path / "a", callback=False, resume_from_checkpoint=str(start))
        assert not all(torch.equal(whole[key], forgotten[key]) for key in whole)
