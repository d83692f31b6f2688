"""What a model attends to while texts are mixed: attention weights, queries and keys of every block and head.

Mixing acts in training, with dropout and random draws. Here the draw is pinned (lam, and who meets whom) and dropout is
off, so that the only difference between two captures is the method. A batch of two rows is run, the text and its
partner, each the other's partner; what is kept is the attention of the text's row.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mixwell.errors import MixwellError, OptionError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np

    from mixwell.mixer import Mixer
    from mixwell.models import LoadedModel

METHODS = ("none", "amplify", "embedmix")
LAMS = (1.0, 0.9, 0.8, 0.7, 0.5)
LAM = 0.8
PARTNER = "the parcel arrived two days late and the box was broken"
MOST_TOKENS = 64
PLAIN = "none"
_RECORDING = "mixwell_recording"


@dataclass(frozen=True)
class View:
    """The attention of the text's row under one method and lam.

    Q is the number of the text's tokens. K is Q, or the length of a longer partner where the method lets the row attend
    to the partner's tokens too.

    Attributes:
        method: its name.
        lam: the pinned weight of the text's own part; None for methods that have none.
        layer: the drawn layer, for methods that draw one.
        mixes: whether any hidden state was mixed.
        tokens: (K,) the token that was looked up at each position.
        weights: for each block (H, Q, K) float32, rows sum to 1.
        queries: for each block (H, Q, d) float32, or None where the model does not show them.
        keys: for each block (H, K, d) float32, or None.
        scale: for each block what q . k is multiplied by before the softmax, or None.
    """

    method: str
    lam: float | None
    layer: int | None
    mixes: bool
    tokens: tuple[str, ...]
    weights: tuple[np.ndarray, ...]
    queries: tuple[np.ndarray, ...] | None = None
    keys: tuple[np.ndarray, ...] | None = None
    scale: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Attention:
    """Captures of one text, its partner and several methods.

    Attributes:
        model: the model's name.
        text: the text, and the second text of a pair.
        partner: the partner's text or pair.
        tokens: (Q,) the text's tokens.
        partner_tokens: the partner's tokens.
        special: (Q,) whether a token was put in by the tokenizer ([CLS], [SEP]).
        meets: for each position the partner's position that is mixed into it, or None.
        methods: the names asked for, in order.
        lams: the weights captured, in falling order.
        lam: the one to begin with.
        plain: the capture without mixing.
        views: the captures by method and lam; lam is None for methods without one.
        neurons: whether queries and keys were captured and give the model's weights.
        trusted: whether the model's own code was allowed to run.
        notes: what a reader should be told.
    """

    model: str
    text: tuple[str, ...]
    partner: tuple[str, ...]
    tokens: tuple[str, ...]
    partner_tokens: tuple[str, ...]
    special: tuple[bool, ...]
    meets: tuple[int | None, ...]
    methods: tuple[str, ...]
    lams: tuple[float, ...]
    lam: float
    plain: View
    views: dict[tuple[str, float | None], View]
    neurons: bool
    trusted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def heads(self) -> tuple[int, ...]:
        """How many heads each block has."""
        return tuple(block.shape[0] for block in self.plain.weights)

    def view(self, method: str, lam: float) -> View:
        """The capture of a method at a lam; methods without a lam, and plain, have only one."""
        return self.views[method, lam if (method, lam) in self.views else None]


def distance(view: View, plain: View) -> list[list[float]]:
    """How far a view's weights are from plain ones, for each block and head.

    The total variation distance of the two distributions over keys, half the sum of absolute differences, averaged
    over the text's tokens: 0 is the same attention, 1 means no common weight at all.
    """
    return [
        (difference(own, other).__abs__().sum(-1) / 2).mean(-1).tolist()
        for own, other in zip(view.weights, plain.weights)
    ]


def difference(own: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Weights minus plain weights, (..., Q, K); plain attends to nothing at positions that only the partner has."""
    import numpy as np

    wide = np.zeros_like(own)
    wide[..., : plain.shape[-1]] = plain
    return own - wide


# --- options ---------------------------------------------------------------------------------------------------------


def parse_lams(lam: float, lams: str | Sequence[float]) -> tuple[float, ...]:
    """The weights to capture: `lam` and the listed ones, each once, falling.

    Args:
        lam: the chosen one.
        lams: numbers, or a list of them with commas.

    Raises:
        OptionError: one is no number in [0, 1].
    """
    _check_lam(lam, "--lam")
    found = {float(lam)}
    for item in lams.split(",") if isinstance(lams, str) else lams:
        if isinstance(item, str) and not item.strip():
            continue
        try:
            value = float(item)
        except ValueError:
            raise OptionError(f"--lams: {str(item).strip()!r} is not a number; write for example 1.0,0.8,0.5") from None
        _check_lam(value, "--lams")
        found.add(value)
    return tuple(sorted(found, reverse=True))


def _check_lam(value: float, option: str) -> None:
    if not 0 <= value <= 1:  # also refuses nan
        raise OptionError(
            f"{option} {value:g}: lam is the share of itself that a text keeps and must lie between 0 and 1"
        )


def parse_methods(names: str | Sequence[str]) -> tuple[str, ...]:
    """The names of methods, each once.

    Args:
        names: names, or a list of them with commas.

    Raises:
        OptionError: one is unknown, or there is none.
    """
    from mixwell.methods import method_class

    split = names.split(",") if isinstance(names, str) else names
    found = tuple(dict.fromkeys(name.strip() for name in split if name.strip()))
    if not found:
        raise OptionError("--methods names no method; write for example none,amplify,embedmix")
    for name in found:
        try:
            method_class(name)
        except OptionError as error:
            raise OptionError(f"--methods: {error}") from None
    return found


def check_texts(
    text: str, text_b: str | None, partner: str | None, partner_b: str | None
) -> tuple[str, str | None, str | None, str | None]:
    """Return the texts as they are, or raise `OptionError` if one has no word or the first of a pair is missing."""
    named = {"TEXT": text, "TEXT_B": text_b, "--partner": partner, "--partner-b": partner_b}
    for name, each in named.items():
        if each is not None and not each.strip():
            raise OptionError(f"{name} is empty; give at least one word")
    if partner is None and partner_b is not None:
        raise OptionError("--partner-b is given without --partner: give both texts of the pair")
    return text, text_b, partner, partner_b


# --- capture ---------------------------------------------------------------------------------------------------------


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
        partner: the text it is mixed with; None takes `PARTNER` and says so.
        partner_b: the second text of the partner.
        methods: names, or a list of them with commas.
        lam: the weight of the text's own part.
        lams: further weights to capture.

    Raises:
        OptionError: an option or text is not usable.
        UnsupportedModelError: a method does not fit the model, or the model shows no attention weights.
    """
    from mixwell.points import find_points

    chosen, values = parse_methods(methods), parse_lams(lam, lams)
    notes: list[str] = list(loaded.notes)
    check_texts(text, text_b, partner, partner_b)
    if partner is None:
        partner = PARTNER
        if any(name != PLAIN for name in chosen):
            notes.append(f"no --partner was given: the text is mixed with {partner!r}")
    own, other = _pair(text, text_b), _pair(partner, partner_b)

    model, tokenizer = loaded.model, loaded.tokenizer
    points = find_points(model)
    if points.modality != "text":
        raise UnsupportedModelError(
            f"{type(model).__name__} reads {points.modality}s; mixwell attention draws texts: name a text model"
        )
    rows = [_encode(tokenizer, own), _encode(tokenizer, other)]
    for what, row in zip(("TEXT", "--partner"), rows):
        if len(row["input_ids"]) > min(MOST_TOKENS, loaded.longest):
            raise OptionError(
                f"{what} has {len(row['input_ids'])} tokens; pictures of attention can be read up to "
                f"{min(MOST_TOKENS, loaded.longest)}: shorten it"
            )
    length, longest = len(rows[0]["input_ids"]), max(len(row["input_ids"]) for row in rows)
    batch = _batch(rows, tokenizer, longest, next(model.parameters()).device)
    stacks = [point.stack for point in points.found.get("block", ())]
    if "decoder" in stacks and "encoder" in stacks:
        notes.append("an encoder-decoder model: only the encoder's blocks are shown")

    views: dict[tuple[str, float | None], View] = {}
    plain: View | None = None
    meets: tuple[int | None, ...] | None = None
    for name in dict.fromkeys((PLAIN, *chosen)):
        try:
            with _attached(model, name, points) as mixer:
                weights: Sequence[float | None] = values if mixer.method.has_lam and mixer.method.mixes else (None,)
                for value in weights:
                    view, partners = _run(mixer, batch, value, length, tokenizer)
                    if name == PLAIN:
                        plain = view
                    if view.mixes and meets is None:
                        meets = partners
                    if name in chosen:
                        views[name, value] = view
        except MixwellError as error:
            raise type(error)(f"--methods {name}: {error}") from error
    assert plain is not None
    shown = [plain, *views.values()]
    neurons = all(view.queries is not None for view in shown)
    if not neurons:
        notes.append(
            f"the weights of {type(model).__name__} cannot be told from queries and keys alone (it adds a position "
            f"bias, or has an attention of its own): there is no view of neurons"
        )
    return Attention(
        model=loaded.name,
        text=own,
        partner=other,
        tokens=tuple(_names(tokenizer, rows[0]["input_ids"])),
        partner_tokens=tuple(_names(tokenizer, rows[1]["input_ids"])),
        special=tuple(_special(tokenizer, rows[0]["input_ids"])),
        meets=meets or tuple(at if at < len(rows[1]["input_ids"]) else None for at in range(longest)),
        methods=chosen,
        lams=values,
        lam=float(lam),
        plain=plain,
        views=views,
        neurons=neurons,
        trusted=loaded.trusted,
        notes=notes,
    )


def _pair(text: str, text_b: str | None) -> tuple[str, ...]:
    return (text,) if text_b is None else (text, text_b)


def _encode(tokenizer: Any, texts: tuple[str, ...]) -> dict[str, list[int]]:
    encoded = tokenizer(*texts)
    if not encoded["input_ids"]:
        raise OptionError(f"the tokenizer makes no token of {texts[0]!r}; give another text")
    return {name: list(values) for name, values in encoded.items()}


def _batch(rows: list[dict[str, list[int]]], tokenizer: Any, longest: int, device: Any) -> dict[str, Any]:
    """Pad two rows at their ends, whatever side the tokenizer prefers: positions then count from the text's start."""
    import torch

    fill = {"input_ids": tokenizer.pad_token_id or 0}
    names = [name for name in rows[0] if name in ("input_ids", "attention_mask", "token_type_ids")]
    batch = {
        name: torch.tensor([row[name] + [fill.get(name, 0)] * (longest - len(row[name])) for row in rows]).to(device)
        for name in names
    }
    if "attention_mask" not in batch:
        places = torch.arange(longest)
        batch["attention_mask"] = torch.stack([(places < len(row["input_ids"])).long() for row in rows]).to(device)
    return batch


def _names(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader knows them: without the marks that tokenizers put for spaces."""
    found = []
    for raw, number in zip(tokenizer.convert_ids_to_tokens(list(ids)), ids):
        text = tokenizer.decode([number], clean_up_tokenization_spaces=False).strip()
        found.append(text if text and "\ufffd" not in text else str(raw))
    return found


def _special(tokenizer: Any, ids: Sequence[int]) -> list[bool]:
    marks = {number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id}
    return [number in marks for number in ids]


@contextlib.contextmanager
def _attached(model: Any, name: str, points: Any) -> Iterator[Mixer]:
    """Attach a method to points that were found before."""
    from mixwell.checks import check_attachable
    from mixwell.methods import build
    from mixwell.mixer import Mixer

    check_attachable(model)
    with Mixer(model, build(name, {}), points) as mixer:
        yield mixer


@dataclass
class _Block:
    """What one attention module did."""

    weights: Any = None
    query: Any = None
    key: Any = None
    mask: Any = None
    scale: float = 1.0


class _Recorder:
    """Collects the attention of one forward, block by block."""

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        self.open: _Block | None = None
        self.blocks: list[_Block] = []
        self.words: Any = None
        self.inputs: dict[str, Any] = {}

    def wanted(self, module: Any) -> bool:
        """Tell the forward itself from the passes that some methods run before it."""
        return self.mixer.step_at(module)[0] is not None

    def enter(self, module: Any, args: Any) -> None:
        self.open = _Block() if self.wanted(module) else None

    def leave(self, module: Any, args: Any, output: Any) -> None:
        from mixwell.step import square_tensors

        block, self.open = self.open, None
        if block is None:
            return
        # A model that does not call the attention interface returns its weights when asked.
        found = square_tensors(output)
        if block.weights is None and found:
            block.weights = found[-1]
        self.blocks.append(block)

    def attend(self, query: Any, key: Any, mask: Any, scale: float | None, weights: Any) -> None:
        """Note one call of an attention function."""
        if self.open is not None and weights is not None:
            scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
            self.open.query, self.open.key, self.open.mask = query, key, mask
            self.open.scale, self.open.weights = scale, weights

    def look_up(self, module: Any, args: Any) -> None:
        if self.wanted(module) and args:
            self.words = args[0]

    def begin(self, module: Any, args: Any, kwargs: Any) -> None:
        if self.mixer._depth == 0:
            self.inputs = dict(kwargs)


_current: list[_Recorder] = []


def _attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **options: Any) -> Any:
    """The model's own eager attention, noted down."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    output, weights = eager(module, query, key, value, mask, scaling=scaling, **options)
    if _current:
        # A position bias (T5) is no part of q . k: the check of the softmax below will tell.
        _current[-1].attend(query, key, mask, scaling, weights)
    return output, weights


@contextlib.contextmanager
def _recording(mixer: Mixer, *, interface: bool) -> Iterator[_Recorder]:
    """Record the attention of forwards inside.

    Args:
        mixer: attached to the model.
        interface: record queries and keys through transformers' attention interface; else the weights that modules
            return under plain eager attention.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    from mixwell.step import eager_attention

    model, points, recorder = mixer.model, mixer.points, _Recorder(mixer)
    handles = [model.register_forward_pre_hook(recorder.begin, with_kwargs=True)]
    for head in dict.fromkeys(points.heads):
        handles += [head.register_forward_pre_hook(recorder.enter), head.register_forward_hook(recorder.leave)]
    if points.words is not None:
        handles.append(points.words.register_forward_pre_hook(recorder.look_up))
    AttentionInterface.register(_RECORDING, _attend)
    AttentionMaskInterface.register(_RECORDING, eager_mask)
    try:
        with eager_attention(model):  # puts back what was there
            if interface:
                for module in model.modules():
                    config: Any = getattr(module, "config", None)
                    if getattr(config, "_attn_implementation_internal", None) is not None:
                        config._attn_implementation_internal = _RECORDING
            _current.append(recorder)
            try:
                yield recorder
            finally:
                _current.pop()
    finally:
        for handle in handles:
            handle.remove()


def _run(
    mixer: Mixer, batch: dict[str, Any], lam: float | None, length: int, tokenizer: Any
) -> tuple[View, tuple[int | None, ...]]:
    """One mixed forward: the view of row 0, and which position of the partner each position meets."""
    import torch

    from mixwell.points import training_flags

    method, points = mixer.method, mixer.points
    pins: dict[str, Any] = {"in_eval": True}
    if lam is not None:
        pins["lam"] = lam
    if method.has_permutation and method.mixes:
        pins["permutation"] = [1, 0]
    labels = {}
    if method.needs_labels:
        config: Any = mixer.model.config
        two = torch.arange(2).to(batch["input_ids"].device)
        several = config.problem_type == "multi_label_classification"
        labels["labels"] = torch.eye(2, config.num_labels).to(two.device) if several else two
    for interface in (True, False):
        with _recording(mixer, interface=interface) as recorder:
            asked = {} if interface else {"output_attentions": True}
            try:
                with mixer.pin(**pins), training_flags(mixer.model, False), torch.no_grad():
                    mixer.model(**batch, **labels, **asked)
            except MixwellError:
                raise
            except Exception as error:
                if interface:
                    continue  # a model that knows no such interface; its own eager attention is next
                raise UnsupportedModelError(_no_weights(mixer, str(error))) from error
        if recorder.blocks and all(block.weights is not None for block in recorder.blocks):
            break
    else:
        raise UnsupportedModelError(_no_weights(mixer))
    plan = mixer.last
    assert plan is not None
    mask = recorder.inputs.get("attention_mask", batch["attention_mask"])[0].bool()
    keys = max(length, int(mask.nonzero().max()) + 1)
    encoder = [
        at for at, point in enumerate(points.get("block")) if point.stack == "encoder" or not _two_stacks(points)
    ]
    blocks = [recorder.blocks[at] for at in encoder]
    shown = all(block.query is not None for block in blocks) and all(_explained(block) for block in blocks)
    words = batch["input_ids"] if recorder.words is None else recorder.words
    # Partners are shifted in causal stacks only; the decoder of an encoder-decoder model is not shown.
    partners = _partners(plan if points.get("block")[encoder[0]].causal else None, batch)

    def kept(value: Any) -> np.ndarray:
        return value.detach().to("cpu", torch.float32).numpy()

    view = View(
        method=method.name,
        lam=lam,
        layer=plan.layer,
        mixes=bool(mixer.sites) and not plan.trivial,
        tokens=tuple(_names(tokenizer, words[0, :keys].tolist())),
        weights=tuple(kept(block.weights[0, :, :length, :keys]) for block in blocks),
        queries=tuple(kept(block.query[0, :, :length]) for block in blocks) if shown else None,
        keys=tuple(kept(_all_heads(block)[0, :, :keys]) for block in blocks) if shown else None,
        scale=tuple(block.scale for block in blocks) if shown else None,
    )
    return view, partners


def _two_stacks(points: Any) -> bool:
    return len({point.stack for point in points.get("block")}) > 1


def _all_heads(block: _Block) -> Any:
    """Keys for each head, (B, H, T, d): groups of heads may share one (Llama)."""
    return block.key.repeat_interleave(block.query.shape[1] // block.key.shape[1], 1)


def _explained(block: _Block) -> bool:
    """Tell whether the weights are the softmax of scaled q . k and the mask, and nothing else."""
    import torch

    scores = block.query @ _all_heads(block).transpose(2, 3) * block.scale
    if block.mask is not None:
        scores = scores + block.mask[..., : scores.shape[-1]]
    return bool(torch.allclose(scores.softmax(-1), block.weights, rtol=0, atol=1e-6))


def _partners(plan: Any, batch: dict[str, Any]) -> tuple[int | None, ...]:
    """Which position of the partner is mixed into each position of the text; None where it has no token."""
    real = batch["attention_mask"][1].bool().tolist()
    if plan is None or plan.shift is None:
        return tuple(at if there else None for at, there in enumerate(real))
    places, there = plan.shift[0].tolist(), plan.shift_mask[0].tolist()
    return tuple(place if known else None for place, known in zip(places, there))


def _no_weights(mixer: Mixer, why: str = "") -> str:
    said = f" ({why.splitlines()[0]})" if why else ""
    return (
        f"{type(mixer.model).__name__} gives no attention weights for each head under eager attention{said}; "
        f"choose a model whose blocks do, such as minilm"
    )
