"""Where should a method mix? Told before any training, by probes on mixed features.

For each place that a method could use, a probe is fitted on frozen features of mixed texts with their mixed labels, and
asked about texts that it has not seen and that are not mixed. Where the labels say what the mixed features say, it does
as well as a probe on plain features, or better; where they do not, it does worse. Partners come from the same fold, so
that nothing of a held-out text is in the features of others. A place costs a few passes through the encoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from mixwell.core.layout import find_points
from mixwell.core.mixer import Mixer
from mixwell.methods.attach import attach
from mixwell.methods.registry import check_searchable, to_find, without_auto
from mixwell.metrics.tasks import SINGLE
from mixwell.training.folds import fold_of_rows
from mixwell.training.held_out import HeldOut, standard_error
from mixwell.training.probe import fit_probe, fit_single, one_thread
from mixwell.training.recipe import FOLDS
from mixwell.utils.errors import OptionError

if TYPE_CHECKING:
    from mixwell.training.models import LoadedModel
    from mixwell.training.settings import TrainSettings

BATCH = 16
# How often each row is mixed, every time with another partner.
PASSES = 2
# A quarter of each row is its partner's, where the method has one weight: enough to tell places apart.
LAM = 0.75
# No model has more blocks or heads.
MOST = 1000
# More rows would make it dear, and hardly another choice.
MOST_ROWS = 600
# Options that say when to mix and whom; here every row is mixed, with a partner that is drawn here.
IN_TRAINING = ("prob", "start", "stop", "schedule", "total_steps", "pairing")

Floats = NDArray[np.float64]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """A place where a method could mix.

    Attributes:
        options: of the method, that name it.
        loss: of a probe on features mixed there, on rows that it has not seen, after a temperature.
        difference: from a probe on plain features.
        error: standard error of that difference, over rows.
    """

    options: dict[str, Any]
    loss: float
    difference: float
    error: float


@dataclass(frozen=True)
class Profile:
    """All places of a method, and the one that was taken.

    Attributes:
        method: its name.
        plain: the loss of a probe on plain features.
        places: in the order in which they were tried.
        chosen: the options of the one with the lowest loss.
    """

    method: str
    plain: float
    places: tuple[Place, ...]
    chosen: dict[str, Any]

    def sentence(self) -> str:
        """What was taken, and why."""
        best = min(self.places, key=lambda place: place.loss)
        return (
            f"{self.method}: auto takes {_words(self.chosen)}, where a probe on mixed features has the lowest held-out "
            f"loss of {len(self.places)} places: {best.loss:.3f}, {best.difference:+.3f} against plain features "
            f"(standard error {best.error:.3f}; the lowest of many is flattered)"
        )


def find_options(
    model: Any, tokenizer: Any, rows: Any, y: Any, folds: Any, method: str, options: Mapping[str, Any], task: str,
    say: Say = lambda text: None,
) -> tuple[dict[str, Any], Profile | None]:  # fmt: skip
    """A method's options, with values for those that are `auto`, and the profile that they come from.

    Args:
        model: a classifier with its first weights; it is not changed.
        tokenizer: its tokenizer.
        rows: tokenised training rows.
        y: (N,) their classes.
        folds: (N,) the fold of each row.
        method: a name of `mixwell.methods()`.
        options: of the method.
        task: of the data.
        say: is told of the progress.

    Raises:
        OptionError: there are no single classes, or the method does not fit the model.
    """
    names = to_find(method, options)
    if not names:
        return dict(options), None
    check_searchable(method, options, task)
    given = {name: value for name, value in without_auto(method, options).items() if name not in IN_TRAINING}
    chosen = np.sort(np.random.default_rng(20_261_118).permutation(len(rows))[:MOST_ROWS])
    say(f"{method}: looking for {' and '.join(names)} with probes on {len(chosen)} training rows")
    y, folds = np.asarray(y)[chosen], np.asarray(folds)[chosen]
    search = _Search(model, tokenizer, rows.select(chosen), y, folds, method, given, say)
    found = search.layers() if names == ("layers",) else search.every(names)
    return {**options, **found.chosen}, found


def with_found_options(
    settings: TrainSettings, loaded: LoadedModel, rows: Any, keys: Any, task: str, folds: Any = None,
    say: Say = lambda text: None,
) -> tuple[TrainSettings, Profile | None]:  # fmt: skip
    """The settings of a training, with values for options of its method that are left to be found.

    Args:
        settings: of the training.
        loaded: the model with its first weights.
        rows: tokenised training rows.
        keys: (N,) of their texts, to keep equal ones in one fold.
        task: of the data.
        folds: (N,) the fold of each row; None to cut some.
        say: is told of the progress.
    """
    if not to_find(settings.mixing, settings.method_options):
        return settings, None
    y = np.asarray(rows.with_format("numpy")["labels"])
    if folds is None:
        folds = fold_of_rows(y, keys, task, settings.split_seed, FOLDS)
    options, profile = find_options(
        loaded.model, loaded.tokenizer, rows, y, folds, settings.mixing, settings.method_options, task, say
    )
    return dataclasses.replace(settings, method_options=options), profile


class _Search:
    """The losses of one method's places on some rows."""

    def __init__(
        self, model: Any, tokenizer: Any, rows: Any, y: Any, folds: Any, method: str, options: dict[str, Any], say: Say
    ) -> None:
        self.say = say
        self.model, self.y, self.folds, self.method, self.options = model, y, folds, method, options
        self.classes = model.config.num_labels
        self.reader = MixedFeatures(model, tokenizer, rows, folds)
        with attach(model, "none") as mixer:
            self.unmixed, _, _ = self.reader.read(mixer, 0)
        plain = fit_probe(self.unmixed, y, SINGLE, self.classes, folds)
        assert plain.held_out is not None
        self.strength = plain.strength
        self.known = HeldOut("out_of_fold", plain.held_out, y, SINGLE, folds).known()
        self.plain = self._losses(plain.held_out)

    def every(self, names: Sequence[str]) -> Profile:
        """Try all values of some options that count from 0; `head` may also be None, for the mean over all."""
        return self._profile(list(self._places(names, {})))

    def layers(self) -> Profile:
        """Try each block alone, then the best two together, the best three and so on."""
        places = list(self._places(["layers"], {}))
        ranked = [place.options["layers"][0] for place in sorted(places, key=lambda place: place.loss)]
        places += [self.place({"layers": sorted(ranked[:count])}) for count in range(2, len(ranked) + 1)]
        return self._profile(places)

    def _profile(self, places: list[Place]) -> Profile:
        best = min(places, key=lambda place: place.loss)
        return Profile(self.method, float(self.plain.mean()), tuple(places), best.options)

    def _places(self, names: Sequence[str], fixed: dict[str, Any]) -> Iterator[Place]:
        """All combinations, each counted up until the method refuses a number."""
        first, rest = names[0], names[1:]
        for number in (None, *range(MOST)) if first == "head" else range(MOST):
            values = {**fixed, first: [number] if first == "layers" else number}
            try:
                if rest:
                    yield from self._places(rest, values)
                else:
                    yield self.place(values)
            except OptionError:
                if not number:
                    raise
                return

    def place(self, values: dict[str, Any]) -> Place:
        """The loss of one place."""
        with attach(self.model, self.method, **{**self.options, **values}) as mixer:
            passes = [self.reader.read(mixer, number) for number in range(PASSES)]
        held = np.zeros((len(self.y), self.classes))
        for fold in np.unique(self.folds):
            kept, out = self.folds != fold, self.folds == fold
            mixed = [(x[kept], self.y[kept], self.y[partner[kept]], weight[kept]) for x, partner, weight in passes]
            x, own, other, weight = (np.concatenate(part) for part in zip(*mixed))
            layer, bias = fit_mixed(x, own, other, weight, self.classes, self.strength / PASSES)
            held[out] = self.unmixed[out] @ layer.T + bias
        losses = self._losses(held)
        gap = losses - self.plain
        self.say(f"{self.method}: {_words(values)}: probe loss {losses.mean():.3f}")
        return Place(dict(values), float(losses.mean()), float(gap.mean()), standard_error(gap))

    def _losses(self, logits: Floats) -> Floats:
        """Of the rows whose class other folds have; the others say nothing about a place."""
        return np.asarray(HeldOut("out_of_fold", logits, self.y, SINGLE, self.folds).scaled_losses())[self.known]


class MixedFeatures:
    """What reaches the last layer of a classifier in eval mode, while a mixer mixes.

    Args:
        model: a classifier.
        tokenizer: pads the batches.
        rows: tokenised rows.
        folds: (N,) the fold of each row; partners are of the same one.
    """

    def __init__(self, model: Any, tokenizer: Any, rows: Any, folds: Any) -> None:
        from transformers import DataCollatorWithPadding

        self.model, self.folds = model, folds
        self.collate = DataCollatorWithPadding(tokenizer)
        columns = {name: values for name, values in rows[:].items() if name != "labels"}
        self.encoded = [dict(zip(columns, row)) for row in zip(*columns.values())]
        point = find_points(model).get("sentence")[0]
        self.head, self.scores_tokens = point.module, point.how == "last"
        self.device = next(model.parameters()).device

    def read(self, mixer: Mixer, number: int) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Mix all rows once.

        Args:
            mixer: attached to the model.
            number: of the pass, which decides who meets whom.

        Returns:
            Features (N, H), the partners (N,) by their numbers, and how much of each row's label is its own (N,).
        """
        count, rng = len(self.encoded), np.random.default_rng([number, 20_261_118])
        partner, weight = np.arange(count), np.ones(count)
        features: list[Any] = [None] * count
        seen: list[Any] = []
        was_training = self.model.training
        handle = self.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        mixes = mixer.method.mixes
        try:
            self.model.eval()
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                for batch in self._batches(rng):
                    pairs = mutual_pairs(len(batch), rng)
                    pinned: dict[str, Any] = {"permutation": torch.as_tensor(pairs), "in_eval": True} if mixes else {}
                    if mixes and mixer.method.has_lam:
                        pinned["lam"] = LAM
                    seen.clear()
                    padded = self.collate([self.encoded[row] for row in batch]).to(self.device)
                    with mixer.pin(**pinned):
                        self.model(**padded)
                    for row, vector in zip(batch, self._of_rows(seen[-1], padded).double().cpu().numpy()):
                        features[row] = vector
                    if mixes and mixer.last is not None and len(batch) > 1:
                        partner[batch] = batch[pairs]
                        weight[batch] = mixer.last.label_weight.double().cpu().numpy()
        finally:
            handle.remove()
            self.model.train(was_training)
        return np.stack(features), partner, np.where(partner == np.arange(count), 1.0, weight)

    def _of_rows(self, x: Any, batch: Any) -> Any:
        """One vector per row (B, H); a decoder's head gets all tokens (B, T, H), and the last one's logits count."""
        if not self.scores_tokens:
            return x
        places = torch.arange(x.shape[1], device=x.device)
        last = (batch["attention_mask"] * places).argmax(dim=1)
        return x[torch.arange(len(x), device=x.device), last]

    def _batches(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """The rows of each batch, of one fold and of similar length, so that padding costs little."""
        length = np.array([len(row["input_ids"]) for row in self.encoded])
        for fold in np.unique(self.folds):
            rows = rng.permutation(np.flatnonzero(self.folds == fold))
            for start in range(0, len(rows), 4 * BATCH):
                near = rows[start : start + 4 * BATCH]
                near = near[np.argsort(length[near], kind="stable")]
                yield from (near[at : at + BATCH] for at in range(0, len(near), BATCH))


def mutual_pairs(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(B,) a partner for each row, each other's; an odd row left over keeps to itself."""
    order, partner = rng.permutation(count), np.arange(count)
    half = count // 2
    partner[order[:half]], partner[order[half : 2 * half]] = order[half : 2 * half], order[:half]
    return partner


@one_thread
def fit_mixed(x: Any, own: Any, other: Any, weight: Any, classes: int, strength: float) -> tuple[Floats, Floats]:
    """A logistic regression on mixed features, each with two labels.

    Args:
        x: (N, H) features.
        own: (N,) the row's own classes.
        other: (N,) the partner's.
        weight: (N,) how much of the label is the row's own.
        classes: C.
        strength: inverse strength of the penalty.

    Returns:
        Weight (C, H) and bias (C,).
    """
    centre = x.mean(axis=0)
    twice, labels = np.concatenate([x, x]) - centre, np.concatenate([own, other])
    shares = np.concatenate([weight, 1 - weight])
    used = shares > 0
    model = LogisticRegression(C=strength, max_iter=300)
    layer, bias = fit_single(model, twice[used], labels[used], classes, shares[used])
    return layer, bias - layer @ centre


def _words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
