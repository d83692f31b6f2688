"""The frozen features of a run, the probes on them, and the first weights that every training starts from."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixwell.training import contrastive, heads, probe, recipe
from mixwell.training.folds import fold_of_rows
from mixwell.training.held_out import HeldOut, validation_parts
from mixwell.training.prepare import Ready
from mixwell.utils.console import Reporter


class Probing:
    """The frozen features of a run's rows, the probes on them, and the model's first weights."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        settings, model = ready.settings, ready.loaded.model
        self.first = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.pairs = "text_pair" in ready.data.train.column_names
        self.model = heads.probe_model(model, ready.loaded.tokenizer, pairs=self.pairs)
        self.features = {
            name: probe.features(self.model or model, ready.loaded.tokenizer, rows, ready.settings.eval_batch_size)
            for name, rows in ready.rows.items()
        }
        self.classes = model.config.num_labels
        self.y = ready.labels("train")
        folds = ready.folds
        if folds is None:
            keys = ready.data.row_keys("train").folded
            folds = fold_of_rows(self.y, keys, ready.task, settings.split_seed, recipe.FOLDS)
        self.folds = folds
        self.strength = contrastive.STRENGTH
        self.whole = probe.fit_probe(self.features["train"], self.y, ready.task, self.classes, folds)

    def fit(self, rows: Any) -> probe.Probe:
        """The probe of some training rows, by their numbers; its strength is that of all."""
        if len(rows) == len(self.y):
            return self.whole
        x = self.features["train"][rows]
        return probe.fit_probe(x, self.y[rows], self.ready.task, self.classes, strength=self.whole.strength)

    def out_of_fold(self) -> HeldOut:
        """What the probe says about each training row without having seen it."""
        assert self.whole.held_out is not None
        return HeldOut("out_of_fold", self.whole.held_out, self.y, self.ready.task, self.folds)

    def held_out(self) -> HeldOut | None:
        """What the probe says about the held-out rows of the run."""
        ready = self.ready
        if ready.folds is not None:
            return self.out_of_fold()
        if "validation" not in self.features:
            return None
        outputs = self.whole.outputs(self.features["validation"])
        parts = validation_parts(len(outputs))
        return HeldOut("validation", outputs, ready.labels("validation"), ready.task, parts)

    def tune(self, rows: Any, reporter: Reporter) -> Any:
        """Tune the encoder by pairs of some training rows; return their features (N, H)."""
        ready, settings, model = self.ready, self.ready.settings, self.ready.loaded.model
        assert settings.learning_rate is not None and settings.batch_size is not None
        self.restore()
        model.config.normalize = True
        chosen = ready.rows["train"].select(rows)
        reporter.begin(recipe.CONTRASTIVE_UPDATES, 0)
        contrastive.tune(
            model, ready.loaded.tokenizer, chosen, self.y[rows], learning_rate=settings.learning_rate,
            batch_size=settings.batch_size, seed=settings.seed, freeze_words=bool(settings.freeze_words),
            progress=reporter.step,
        )  # fmt: skip
        reporter.end()
        return self._features(chosen)

    def _features(self, rows: Any) -> Any:
        loaded = self.ready.loaded
        return probe.features(loaded.model, loaded.tokenizer, rows, self.ready.settings.eval_batch_size)

    def contrastive_held_out(self, reporter: Reporter) -> HeldOut | None:
        """What encoders tuned by pairs say about rows they have not seen; these choose the strength of the penalty."""
        ready, rows = self.ready, self.ready.rows["train"]
        if ready.folds is not None:
            split, y, parts = "out_of_fold", self.y, ready.folds
            outputs = {strength: np.zeros((len(y), self.classes)) for strength in probe.STRENGTHS}
            count = int(parts.max()) + 1
            for fold in range(count):
                out, kept = np.flatnonzero(parts == fold), np.flatnonzero(parts != fold)
                reporter.say(f"fold {fold + 1} of {count}: {len(out)} rows held out")
                for strength, values in self._tuned_outputs(kept, rows.select(out), reporter).items():
                    outputs[strength][out] = values
        elif "validation" in ready.rows:
            split, y = "validation", ready.labels("validation")
            parts = validation_parts(len(y))
            outputs = self._tuned_outputs(np.arange(len(self.y)), ready.rows["validation"], reporter)
        else:
            return None
        held = {strength: HeldOut(split, values, y, ready.task, parts) for strength, values in outputs.items()}
        self.strength = probe.best_strength(held)
        return held[self.strength]

    def _tuned_outputs(self, rows: Any, others: Any, reporter: Reporter) -> dict[float, Any]:
        """Tune on some training rows; the outputs (M, C) for other rows with each strength of the penalty."""
        x = self.tune(rows, reporter)
        return probe.outputs_by_strength(x, self.y[rows], self._features(others), self.ready.task, self.classes)

    def deploy_tuned(self, reporter: Reporter) -> None:
        """Make the encoder tuned by pairs of all training rows, with a logistic regression, the model of the run."""
        # With a validation split it was tuned on all training rows already.
        x = None if "validation" in self.ready.rows else self.tune(np.arange(len(self.y)), reporter)
        x = self._features(self.ready.rows["train"]) if x is None else x
        head = probe.fit_probe(x, self.y, self.ready.task, self.classes, strength=self.strength)
        probe.put_into(self.ready.loaded.model.classifier, head)

    def deploy(self) -> None:
        """Make the probe the model of the run."""
        assert self.model is not None
        self.restore()
        probe.put_into(self.model.classifier, self.whole)
        self.ready.loaded.model = self.model.eval()

    def restore(self) -> None:
        """Give the model its first weights back."""
        model = self.ready.loaded.model
        if heads.is_pooled(model):
            model.config.normalize = False
        model.load_state_dict(self.first)
        model.zero_grad(set_to_none=True)

    def start(self, rows: Any) -> None:
        """Give the model its first weights, and the head the probe of these rows if it is to start there."""
        self.restore()
        if self.ready.settings.start == "probe":
            probe.put_into(self.ready.loaded.model.classifier, self.fit(rows), self.whole.start_scale)
