"""Run a text and its partner through a model under several methods, and keep the text's attention.

Mixing acts in training, with dropout and random draws. Here the draw is pinned (lam and the partner of each row) and
dropout is off, so that the only difference between two captures is the method. A batch of two rows is run, the text
and its partner, each the other's partner; the attention of the text's row is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

from mixwell.core.checks import check_attachable
from mixwell.core.layout import find_points
from mixwell.core.mixer import Mixer
from mixwell.core.model import training_flags
from mixwell.methods import build
from mixwell.report.attention.choice import LAM, LAMS, METHODS, PARTNER, check_texts, parse_lams, parse_methods
from mixwell.report.attention.data import PLAIN, Attention, AttentionView
from mixwell.report.attention.recorder import Recorder, recording
from mixwell.utils.errors import MixwellError, OptionError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np

    from mixwell.training.models import LoadedModel

MOST_TOKENS = 64
MOST_LAYERS = 4  # of a method that draws one: all would make the page many times as large


def capture(
    loaded: LoadedModel,
    text: str,
    text_b: str | None = None,
    partner: str | None = None,
    partner_b: str | None = None,
    *,
    methods: str | Sequence[str] = METHODS,
    lam: float = LAM,
    lams: str | Sequence[float] = LAMS,
) -> Attention:
    """Run a text and its partner through a model under each method and lam, and keep the text's attention.

    The model is in eval mode (no dropout) with mixing pinned on; its weights, mode and random state stay as they are.

    Args:
        loaded: of `models.load`.
        text: the text.
        text_b: the second text of a pair.
        partner: the text it is mixed with; None takes `PARTNER` and adds a note.
        partner_b: the second text of the partner.
        methods: names, or a list of them with commas.
        lam: the weight of the text's own part.
        lams: further weights to capture.

    Raises:
        OptionError: an option or text is not usable.
        UnsupportedModelError: a method does not fit the model, or the model shows no attention weights.
    """
    names, weights = parse_methods(methods), parse_lams(lam, lams)
    check_texts(text, text_b, partner, partner_b)
    own, other = (
        tuple(part for part in pair if part is not None) for pair in ((text, text_b), (partner or PARTNER, partner_b))
    )
    points = find_points(loaded.model)
    if points.modality != "text":
        raise UnsupportedModelError(
            f"{type(loaded.model).__name__} reads {points.modality}s; mixwell attention draws texts: name a text model"
        )
    batch = _tokenise(loaded, own, other)
    plain, views, layers, positions = _views(loaded.model, names, weights, points, batch)
    neurons = all(view.queries is not None for view in (plain, *views.values(), *layers.values()))
    chosen_here = partner is None and any(name != PLAIN for name in names)
    return Attention(
        model=loaded.name,
        text=own,
        partner=other,
        tokens=batch.names(batch.own_ids),
        partner_tokens=batch.names(batch.partner_ids),
        special=batch.special(),
        partner_positions=positions,
        methods=names,
        lams=weights,
        lam=float(lam),
        plain=plain,
        views=views,
        neurons=neurons,
        trusted=loaded.trusted,
        layers=layers,
        notes=_notes(loaded, points, chosen_here, neurons),
    )


def _notes(loaded: LoadedModel, points: Any, partner_chosen_here: bool, neurons: bool) -> list[str]:
    """What a reader should know."""
    notes = list(loaded.notes)
    if partner_chosen_here:
        notes.append(f"no --partner was given: the text is mixed with {PARTNER!r}")
    if {"decoder", "encoder"} <= {point.stack for point in points.found.get("block", ())}:
        notes.append("an encoder-decoder model: only the encoder's blocks are shown")
    if not neurons:
        notes.append(
            f"the weights of {type(loaded.model).__name__} do not follow from queries and keys alone (it adds a "
            f"position bias, or has an attention of its own): there is no view of neurons"
        )
    return notes


# --- the batch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    """The text and its partner as a batch of two.

    Attributes:
        tokenizer: of the model.
        own_ids: (Q,) token ids of the text.
        partner_ids: token ids of the partner.
        inputs: for the model, padded at the end.
    """

    tokenizer: Any
    own_ids: list[int]
    partner_ids: list[int]
    inputs: dict[str, Any]

    @property
    def device(self) -> Any:
        return self.inputs["input_ids"].device

    def names(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Tokens as a reader knows them: without the marks that tokenizers put for spaces."""
        names = []
        for raw, number in zip(self.tokenizer.convert_ids_to_tokens(list(ids)), ids):
            text = self.tokenizer.decode([number], clean_up_tokenization_spaces=False).strip()
            names.append(text if text and "\ufffd" not in text else str(raw))
        return tuple(names)

    def special(self) -> tuple[bool, ...]:
        """(Q,) whether a token of the text was put in by the tokenizer."""
        marks = {number for number in self.tokenizer.all_special_ids if number != self.tokenizer.unk_token_id}
        return tuple(number in marks for number in self.own_ids)


def _tokenise(loaded: LoadedModel, own: tuple[str, ...], other: tuple[str, ...]) -> _Batch:
    """The batch of a text and its partner; raises `OptionError` if one is too long to be drawn."""
    tokenizer = loaded.tokenizer
    rows = [dict(tokenizer(*texts, return_attention_mask=True)) for texts in (own, other)]
    most = min(MOST_TOKENS, loaded.longest)
    for name, texts, row in zip(("TEXT", "--partner"), (own, other), rows):
        count = len(row["input_ids"])
        if not count:
            raise OptionError(f"the tokenizer makes no token of {texts[0]!r}; give another text")
        if count > most:
            raise OptionError(f"{name} has {count} tokens; pictures of attention can be read up to {most}: shorten it")
    device = next(loaded.model.parameters()).device
    inputs = {}
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        if name in rows[0]:
            # At their ends, whatever side the tokenizer prefers: positions then count from the text's start.
            fill = float(tokenizer.pad_token_id or 0) if name == "input_ids" else 0.0
            values = [torch.tensor(row[name]) for row in rows]
            inputs[name] = pad_sequence(values, batch_first=True, padding_value=fill).to(device)
    return _Batch(tokenizer, rows[0]["input_ids"], rows[1]["input_ids"], inputs)


# --- the forwards ----------------------------------------------------------------------------------------------------


def _views(
    model: Any, names: Sequence[str], weights: Sequence[float], points: Any, batch: _Batch
) -> tuple[
    AttentionView,
    dict[tuple[str, float | None], AttentionView],
    dict[tuple[str, float | None, int], AttentionView],
    tuple[int | None, ...],
]:
    """The plain view, those of all methods and lams, further layers, and the partner's position for each position."""
    views: dict[tuple[str, float | None], AttentionView] = {}
    layers: dict[tuple[str, float | None, int], AttentionView] = {}
    positions: tuple[int | None, ...] | None = None
    for name in dict.fromkeys((PLAIN, *names)):
        try:
            check_attachable(model)
            with Mixer(model, build(name, {}), points) as mixer:
                has_lam = mixer.method.has_lam and mixer.method.mixes
                for lam in weights if has_lam else (None,):
                    first, *more = _some_layers(mixer) or [None]
                    view = views[name, lam] = _view(mixer, _forward(mixer, batch, lam, first), batch, lam)
                    for layer in more:
                        layers[name, lam, layer] = _view(mixer, _forward(mixer, batch, lam, layer), batch, lam)
                    if view.mixes and positions is None:
                        positions = _partner_positions(mixer, batch)
        except MixwellError as error:
            raise type(error)(f"--methods {name}: {error}") from error
    wanted = {key: view for key, view in views.items() if key[0] in names}
    return views[PLAIN, None], wanted, layers, positions or _where(batch.inputs["attention_mask"][1])


def _some_layers(mixer: Mixer) -> list[Any]:
    """The layers to capture of a method that draws one: all, or some that are spread evenly over the depth."""
    known = mixer.layers
    if len(known) <= MOST_LAYERS:
        return list(known)
    # The last one of many is the sentence vector, which comes after all attention.
    last = len(known) - 2 if mixer.sites[-1].kind == "sentence" else len(known) - 1
    return [known[round(part * last / (MOST_LAYERS - 1))] for part in range(MOST_LAYERS)]


def _forward(mixer: Mixer, batch: _Batch, lam: float | None, layer: int | None = None) -> Recorder:
    """One mixed forward, recorded; through transformers' attention interface where the model knows it."""
    method = mixer.method
    pins: dict[str, Any] = {"in_eval": True}
    if lam is not None:
        pins["lam"] = lam
    if layer is not None:
        pins["layer"] = layer
    if method.has_permutation and method.mixes:
        pins["permutation"] = [1, 0]
    labels = _labels(mixer, batch) if method.needs_labels else {}
    for interface in (True, False):
        with recording(mixer, interface=interface) as recorder:
            options = {} if interface else {"output_attentions": True}
            try:
                with mixer.pin(**pins), training_flags(mixer.model, False), torch.no_grad():
                    mixer.model(**batch.inputs, **labels, **options)
            except MixwellError:
                raise
            except Exception as error:
                if interface:
                    continue  # a model that knows no such interface; its own eager attention is next
                raise UnsupportedModelError(_no_weights(mixer, str(error))) from error
        if recorder.blocks and all(block.weights is not None for block in recorder.blocks):
            return recorder
    raise UnsupportedModelError(_no_weights(mixer))


def _labels(mixer: Mixer, batch: _Batch) -> dict[str, Any]:
    """Two different labels, for methods that need them."""
    config: Any = mixer.model.config
    if config.problem_type == "multi_label_classification":
        return {"labels": torch.eye(2, config.num_labels).to(batch.device)}
    return {"labels": torch.arange(2).to(batch.device)}


def _view(mixer: Mixer, recorder: Recorder, batch: _Batch, lam: float | None) -> AttentionView:
    """The view of row 0 of a recorded forward."""
    plan = mixer.last
    assert plan is not None
    queries = len(batch.own_ids)
    mask = recorder.inputs.get("attention_mask", batch.inputs["attention_mask"])[0].bool()
    keys = max(queries, int(mask.nonzero().max()) + 1)
    blocks = [recorder.blocks[index] for index in _encoder_blocks(mixer.points)]
    shown = all(block.is_explained() for block in blocks)
    words = batch.inputs["input_ids"] if recorder.words is None else recorder.words
    return AttentionView(
        method=mixer.method.name,
        lam=lam,
        layer=plan.layer,
        mixes=bool(mixer.sites) and not plan.plain,
        tokens=batch.names(words[0, :keys].tolist()),
        weights=tuple(_array(block.weights[0, :, :queries, :keys]) for block in blocks),
        queries=tuple(_array(block.query[0, :, :queries]) for block in blocks) if shown else None,
        keys=tuple(_array(block.keys_per_head()[0, :, :keys]) for block in blocks) if shown else None,
        scale=tuple(block.scale for block in blocks) if shown else None,
    )


def _encoder_blocks(points: Any) -> list[int]:
    """The numbers of the encoder's blocks; all blocks of a model with one stack."""
    blocks = points.get("block")
    two_stacks = len({point.stack for point in blocks}) > 1
    return [index for index, point in enumerate(blocks) if point.stack == "encoder" or not two_stacks]


def _array(value: Any) -> np.ndarray:
    return value.detach().to("cpu", torch.float32).numpy()


def _partner_positions(mixer: Mixer, batch: _Batch) -> tuple[int | None, ...]:
    """Which position of the partner is mixed into each position of the text; None where it has no token."""
    plan, first = mixer.last, _encoder_blocks(mixer.points)[0]
    # Partners are shifted in causal stacks only; the decoder of an encoder-decoder model is not shown.
    causal = mixer.points.get("block")[first].causal
    if plan is None or plan.shift is None or plan.shift_mask is None or not causal:
        return _where(batch.inputs["attention_mask"][1])
    return _where(plan.shift_mask[0], plan.shift[0].tolist())


def _where(mask: Any, positions: Sequence[int] | None = None) -> tuple[int | None, ...]:
    """Positions (by default each its own) where a mask (T,) is set, else None."""
    positions = range(len(mask)) if positions is None else positions
    return tuple(position if known else None for position, known in zip(positions, mask.tolist()))


def _no_weights(mixer: Mixer, why: str = "") -> str:
    reason = f" ({why.splitlines()[0]})" if why else ""
    return (
        f"{type(mixer.model).__name__} gives no attention weights for each head under eager attention{reason}; "
        f"choose a model whose blocks do, such as minilm"
    )
