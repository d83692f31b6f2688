"""Pictures of attention under mixing: one self-contained page, or one picture as SVG or PNG.

The four views are those of AMPLIFY's Figures 4 to 7: lines between tokens, one word, its neurons, a graph.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.attention import PLAIN, Attention, View, difference, distance
from mixwell.errors import OptionError, UnsupportedModelError, nearest
from mixwell.files import write_bytes
from mixwell.report import page as frame
from mixwell.report.plots import BLACK, BLUE, GREY, ORANGE, figure

if TYPE_CHECKING:
    import numpy as np

VIEWS = {"lines": "Lines", "word": "One word", "neurons": "Neurons", "graph": "Graph"}
KINDS = ("html", "svg", "png")
THRESHOLD = 0.1
PAPER_BLOCK = 3  # the block of the paper's Figures 4 to 6, counted from 0
_LONGEST_NAME = 14


@dataclass(frozen=True)
class Choice:
    """What a picture shows, and what a page shows first.

    Attributes:
        view: one of `VIEWS`.
        block: from 0.
        head: from 0.
        word: the position of the chosen token.
        lam: one of the captured ones.
    """

    view: str
    block: int
    head: int
    word: int
    lam: float


def choose(
    found: Attention, *, view: str = "lines", block: int | None = None, head: int | None = None, word: str | None = None
) -> Choice:
    """Check a choice and fill in what is missing.

    Args:
        found: the captures.
        view: one of `VIEWS`.
        block: None is the paper's fourth, or the last one of a smaller model.
        head: None is the one whose attention mixing changes most in that block.
        word: a token of the text or its position from 0; None is the longest token.

    Raises:
        OptionError: there is no such view, block, head or word.
    """
    _check_view(view)
    depth = len(found.heads)
    if block is not None and not 0 <= block < depth:
        raise OptionError(f"--block {block}: {found.model} has blocks 0 to {depth - 1} (they count from 0)")
    chosen = min(PAPER_BLOCK, depth - 1) if block is None else block
    heads = found.heads[chosen]
    if head is not None and not 0 <= head < heads:
        raise OptionError(f"--head {head}: block {chosen} of {found.model} has heads 0 to {heads - 1} (from 0)")
    if head is None:
        moved = [distance(found.view(name, found.lam), found.plain)[chosen] for name in found.methods]
        head = max(range(heads), key=lambda at: sum(each[at] for each in moved))
    if view == "neurons" and not found.neurons:
        raise UnsupportedModelError(
            f"--view neurons: {found.model} does not show its queries and keys; use lines, word or graph"
        )
    return Choice(view, chosen, head, _place(found, word), found.lam)


def _check_view(view: str) -> None:
    if view not in VIEWS:
        raise OptionError(f"--view {view!r} is unknown{nearest(view, VIEWS)}; use one of {', '.join(VIEWS)}")


def _place(found: Attention, word: str | None) -> int:
    """The position of a word among the text's tokens."""
    places = range(len(found.tokens))
    if word is None:
        content = [at for at in places if not found.special[at]] or list(places)
        return max(content, key=lambda at: len(found.tokens[at]))
    match = [at for at in places if found.tokens[at].casefold() == word.strip().casefold()]
    if match:
        return match[0]
    if word.strip().isdecimal() and int(word) in places:
        return int(word)
    known = ", ".join(dict.fromkeys(found.tokens))
    raise OptionError(
        f"--word {word!r} is no token of the text{nearest(word, found.tokens)}; its tokens are {known} "
        f"(or give a position, 0 to {len(found.tokens) - 1})"
    )


def kind_of(output: str, view: str = "lines") -> str:
    """The kind of file a name asks for: `html`, `svg` or `png`.

    Raises:
        OptionError: another ending, or no such view.
    """
    _check_view(view)
    kind = Path(output).suffix.lower().lstrip(".")
    kind = "html" if kind == "htm" else kind
    if kind not in KINDS:
        raise OptionError(f"--output {output}: the name must end in {', '.join('.' + each for each in KINDS)}")
    return kind


def write(output: str, kind: str, found: Attention, choice: Choice) -> int:
    """Write a page or a picture; return its size in bytes.

    Args:
        output: the file.
        kind: of `kind_of`.
        found: the captures.
        choice: what it shows.
    """
    data = page(found, choice).encode() if kind == "html" else picture(found, choice, kind)
    write_bytes(output, data)
    return len(data)


# --- the page --------------------------------------------------------------------------------------------------------


def page(found: Attention, choice: Choice) -> str:
    """The page as HTML.

    Args:
        found: the captures.
        choice: what it shows first.
    """
    return frame.render(
        "attention.html.j2", scripts=("attention.js",), styles=("attention.css",), **prepare(found, choice)
    )


def prepare(found: Attention, choice: Choice) -> dict[str, Any]:
    """What the template shows, as plain values."""
    chunks = _Chunks()
    views = [_packed(found.plain, found, chunks)]
    places: dict[str, int] = {}
    for (method, lam), view in found.views.items():
        if method != PLAIN:
            places[_name(method, lam)] = len(views)
            views.append(_packed(view, found, chunks))
    if PLAIN in found.methods:
        places[_name(PLAIN, None)] = 0
    heads = found.heads
    width = max(len(view["tokens"]) for view in views)
    data = {
        "tokens": list(found.tokens),
        "special": [int(each) for each in found.special],
        "meets": [None if at is None else found.partner_tokens[at] for at in found.meets[:width]],
        "methods": list(found.methods),
        "lams": [_number(lam) for lam in found.lams],
        "heads": list(heads),
        "neurons": found.neurons,
        "views": views,
        "places": places,
        "chunks": chunks.found,
        "start": {
            "view": choice.view, "block": choice.block, "head": choice.head, "word": choice.word,
            "lam": _number(choice.lam), "threshold": THRESHOLD,
        },
    }  # fmt: skip
    return {
        "text": found.text,
        "partner": found.partner,
        "model": found.model,
        "methods": found.methods,
        "mixing": [name for name in found.methods if name != PLAIN],
        "blocks": len(heads),
        "heads": max(heads),
        "tokens": found.tokens,
        "met": [("" if at is None else found.partner_tokens[at]) for at in found.meets],
        "lams": [_number(lam) for lam in found.lams],
        "names": VIEWS if found.neurons else {key: name for key, name in VIEWS.items() if key != "neurons"},
        "start": choice,
        "notes": found.notes,
        "command": _command(found),
        "data": frame.as_json(data),
    }


def _command(found: Attention) -> str:
    """The command that makes this page again."""
    import shlex

    # After `--` nothing is taken for an option, whatever it begins with.
    words = ["mixwell", "attention", f"--partner={found.partner[0]}"]
    if len(found.partner) > 1:
        words.append(f"--partner-b={found.partner[1]}")
    if found.trusted:
        words.append("--trust-remote-code")
    words += ["--methods", ",".join(found.methods), "--lam", _number(found.lam)]
    return shlex.join([*words, "--lams", ",".join(map(_number, found.lams)), "--", found.model, *found.text])


def _number(lam: float) -> str:
    return f"{lam:.6g}"


def _name(method: str, lam: float | None) -> str:
    return method if lam is None else f"{method} {_number(lam)}"


class _Chunks:
    """Arrays as base64 text, each content once: block 0 under AMPLIFY, for one, is the plain one at every lam."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._places: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """Keep some bytes; return their number."""
        if data not in self._places:
            self._places[data] = len(self.found)
            self.found.append(base64.b64encode(data).decode())
        return self._places[data]


def _packed(view: View, found: Attention, chunks: _Chunks) -> dict[str, Any]:
    """A view for the script: weights as float32, queries and keys as whole numbers of 16 bits times a scale."""
    packed: dict[str, Any] = {
        "method": view.method,
        "layer": view.layer,
        "mixes": view.mixes,
        "tokens": list(view.tokens),
        "weights": [chunks.add(block.astype("<f4").tobytes()) for block in view.weights],
        "moved": [[round(value, 5) for value in block] for block in distance(view, found.plain)],
    }
    if found.neurons:
        assert view.queries is not None and view.keys is not None and view.scale is not None
        packed["scale"] = [float(f"{value:.9g}") for value in view.scale]
        packed["size"] = view.queries[0].shape[-1]
        for name, blocks in (("queries", view.queries), ("keys", view.keys)):
            units = [float(f"{float(abs(block).max()) / 32767 or 1.0:.9g}") for block in blocks]
            packed[name] = [
                chunks.add((block / unit).round().clip(-32767, 32767).astype("<i2").tobytes())
                for block, unit in zip(blocks, units)
            ]
            packed[f"{name}_unit"] = units
    return packed


# --- pictures --------------------------------------------------------------------------------------------------------


def picture(found: Attention, choice: Choice, kind: str) -> bytes:
    """One view as a file: a panel for each method.

    Args:
        found: the captures.
        choice: what it shows.
        kind: `svg` or `png`.
    """
    views = [found.view(name, choice.lam) for name in found.methods]
    rows = _positions(found, choice)
    width, height = {
        "lines": (3.6, 0.9 + 0.26 * rows),
        "word": (4.4, 0.9 + 0.26 * rows),
        "neurons": (6.2, 1.2 + 0.26 * (rows + 1)),
        "graph": (4.6, 5.1),
    }[choice.view]
    draw: Callable[[Any, Attention, View, Choice, float], None] = {
        "lines": _draw_lines, "word": _draw_word, "neurons": _draw_neurons, "graph": _draw_graph,
    }[choice.view]  # fmt: skip
    most = max(float(_weights(view, choice).max()) for view in views)
    with figure(width * len(views), height, ncols=len(views), squeeze=False) as (made, axes, buffer):
        for at, view in enumerate(views):
            panel = axes[0][at]
            panel.set_axis_off()
            panel.set_title(_title(found, view, choice), fontsize=10)
            draw(panel, found, view, choice, most)
        made.supxlabel(_caption(found, choice, most), fontsize=8.5, color=GREY, x=0.01, ha="left")
        if kind == "png":
            drawn = io.BytesIO()
            made.savefig(drawn, format="png", dpi=180, metadata={"Software": "mixwell"})
    return drawn.getvalue() if kind == "png" else buffer.getvalue().encode()


def _positions(found: Attention, choice: Choice) -> int:
    """The most positions of any panel: all share one layout, so that they can be compared."""
    return max(len(found.view(name, choice.lam).tokens) for name in found.methods)


def _weights(view: View, choice: Choice) -> np.ndarray:
    """(Q, K) of the chosen block and head."""
    return view.weights[choice.block][choice.head]


def _title(found: Attention, view: View, choice: Choice) -> str:
    if view.method == PLAIN:
        return "plain (none)"
    moved = distance(view, found.plain)[choice.block][choice.head]
    if choice.view in ("word", "neurons"):  # of the word that is shown
        moved = float(abs(difference(_weights(view, choice), _weights(found.plain, choice))[choice.word]).sum() / 2)
    lam = "" if view.lam is None else f", lam {_number(view.lam)}"
    return f"{view.method}{lam}: {moved:.1%} moved"


def _caption(found: Attention, choice: Choice, most: float) -> str:
    word = _label(found.tokens[choice.word])
    what = {
        "lines": f"the darkest line is {most:.3f}",
        "word": f"the weights of “{word}”",
        "neurons": f"the query of “{word}”; blue is positive, orange negative",
        "graph": f"edges above {THRESHOLD:g}, those of “{word}” in blue",
    }[choice.view]
    whose = "its attention" if choice.view in ("word", "neurons") else "attention"
    return (
        f"{_label(found.model, 40)}, block {choice.block}, head {choice.head} (from 0); {what}. "
        f"Moved: the share of {whose} that goes elsewhere than in plain"
    )


def _label(text: str, longest: int = _LONGEST_NAME) -> str:
    """A token for matplotlib: short, on one line, no mathematics."""
    shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    shown = shown if len(shown) <= longest else shown[: longest - 1] + "…"
    return shown.replace("$", r"\$")


def _key_labels(found: Attention, view: View) -> list[tuple[str, str]]:
    """For each key its name and colour; positions that only the partner has are grey with a plus."""
    labels = []
    for at, token in enumerate(view.tokens):
        if at < len(found.tokens):
            labels.append((_label(token), BLACK))
        else:
            other = found.meets[at]
            labels.append(("+ " + _label("" if other is None else found.partner_tokens[other]), GREY))
    return labels


def _draw_lines(panel: Any, found: Attention, view: View, choice: Choice, most: float, only: int | None = None) -> None:
    weights = _weights(view, choice)
    for i, row in enumerate(weights):
        name, picked = _label(view.tokens[i]), only == i
        panel.text(-0.03, -i, name, ha="right", va="center", fontsize=9, weight="bold" if picked else "normal",
                   color=BLACK if only is None or picked else GREY)  # fmt: skip
        for j, weight in enumerate(row):
            share = min(float(weight) / most, 1.0)
            if (only is None or picked) and share > 0.002:
                panel.plot([0, 1], [-i, -j], color=BLUE, alpha=share, linewidth=0.6 + 2.4 * share,
                           solid_capstyle="round", zorder=1 + share)  # fmt: skip
    for j, (name, colour) in enumerate(_key_labels(found, view)):
        panel.text(1.03, -j, name, ha="left", va="center", fontsize=9, color=colour)
    panel.text(-0.03, 0.9, "query", ha="right", fontsize=8, color=GREY)
    panel.text(1.03, 0.9, "key", ha="left", fontsize=8, color=GREY)
    panel.set(xlim=(-0.75, 1.75), ylim=(0.5 - _positions(found, choice), 1.6))


def _draw_word(panel: Any, found: Attention, view: View, choice: Choice, most: float) -> None:
    row = _weights(view, choice)[choice.word]
    most = max(float(_weights(found.view(name, choice.lam), choice)[choice.word].max()) for name in found.methods)
    _draw_lines(panel, found, view, choice, most, only=choice.word)
    for j, weight in enumerate(row):
        panel.barh(-j, float(weight) / most, left=1.75, height=0.62, color=BLUE)
        panel.text(1.8 + float(weight) / most, -j, f"{weight:.3f}", ha="left", va="center", fontsize=8)
    panel.set(xlim=(-0.75, 3.2))


def _draw_neurons(panel: Any, found: Attention, view: View, choice: Choice, most: float) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    assert view.queries is not None and view.keys is not None and view.scale is not None
    query = view.queries[choice.block][choice.head][choice.word]
    keys = view.keys[choice.block][choice.head]
    weights = _weights(view, choice)[choice.word]
    scores = keys @ query * view.scale[choice.block]
    colours = LinearSegmentedColormap.from_list("signed", [ORANGE, "#FFFFFF", BLUE])
    size = query.shape[0]
    bounds = [
        max(float(np.abs(values).max()) for values in each)
        for each in zip(*(_strips(found.view(name, choice.lam), choice) for name in found.methods))
    ]

    def strip(values: np.ndarray, left: float, row: int, bound: float) -> None:
        panel.imshow(values[None], cmap=colours, vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest",
                     extent=(left, left + 1, -row - 0.36, -row + 0.36), zorder=2)  # fmt: skip

    panel.text(-0.03, 0, f"q  {_label(view.tokens[choice.word])}", ha="right", va="center", fontsize=9, weight="bold")
    strip(query, 0, 0, bounds[0])
    for x, name in ((0.5, f"key k ({size} neurons)"), (1.6, "q \u00d7 k"), (2.36, "score"), (2.85, "softmax")):
        panel.text(x, 0.75, name, ha="center", fontsize=8, color=GREY)
    for j, (name, colour) in enumerate(_key_labels(found, view)):
        row = j + 1
        panel.text(-0.03, -row, name, ha="right", va="center", fontsize=9, color=colour)
        strip(keys[j], 0, row, bounds[0])
        strip(query * keys[j], 1.1, row, bounds[1])
        panel.text(2.5, -row, f"{scores[j]:.2f}", ha="right", va="center", fontsize=8)
        panel.barh(-row, 0.45 * float(weights[j]), left=2.6, height=0.6, color=BLUE)
        panel.text(2.63 + 0.45 * float(weights[j]), -row, f"{weights[j]:.3f}", ha="left", va="center", fontsize=8)
    panel.set(xlim=(-0.62, 3.3), ylim=(-_positions(found, choice) - 0.6, 1.3))


def _strips(view: View, choice: Choice) -> tuple[Any, Any]:
    """Everything drawn on one scale: vectors, and their products."""
    import numpy as np

    assert view.queries is not None and view.keys is not None
    query = view.queries[choice.block][choice.head][choice.word]
    keys = view.keys[choice.block][choice.head]
    return np.concatenate([query[None], keys]), query * keys


def _draw_graph(panel: Any, found: Attention, view: View, choice: Choice, most: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    weights = _weights(view, choice)
    count = _positions(found, choice)
    angles = [math.pi / 2 - 2 * math.pi * at / count for at in range(count)]
    spots = [(math.cos(angle), math.sin(angle)) for angle in angles]
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            if i != j and weight >= THRESHOLD:
                focus, share = i == choice.word, float(weight) / most
                panel.add_patch(FancyArrowPatch(
                    spots[i], spots[j], connectionstyle="arc3,rad=0.18", arrowstyle="-|>", mutation_scale=8,
                    shrinkA=5, shrinkB=6, linewidth=0.6 + 3.4 * share, color=BLUE if focus else GREY,
                    alpha=0.95 if focus else 0.25 + 0.35 * share, zorder=3 if focus else 2,
                ))  # fmt: skip
    received = weights.mean(0)
    for j, ((x, y), (name, colour)) in enumerate(zip(spots, _key_labels(found, view))):
        panel.scatter([x], [y], s=20 + 160 * float(received[j]) / float(received.max()), zorder=4,
                      color=BLUE if j == choice.word else "#9CA3AF", edgecolors="white")  # fmt: skip
        turn = math.degrees(angles[j])
        flip = x < -1e-9
        panel.text(1.1 * x, 1.1 * y, name, rotation=turn + 180 if flip else turn, rotation_mode="anchor", fontsize=9,
                   ha="right" if flip else "left", va="center", color=colour,
                   weight="bold" if j == choice.word else "normal")  # fmt: skip
    panel.set(xlim=(-1.7, 1.7), ylim=(-1.7, 1.7), box_aspect=1)
