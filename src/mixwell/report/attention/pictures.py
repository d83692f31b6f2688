"""Attention under mixing as a file: a page, or a picture as SVG or PNG with a panel for each method, by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.report.attention.choice import THRESHOLD, Choice, check_view
from mixwell.report.attention.data import PLAIN, Attention, AttentionView, difference, distance
from mixwell.report.attention.page import lam_text, page
from mixwell.report.plots import BLACK, BLUE, GREY, ORANGE, figure
from mixwell.utils.errors import OptionError
from mixwell.utils.files import write_bytes

if TYPE_CHECKING:
    import numpy as np

KINDS = ("html", "svg", "png")
_LONGEST_NAME = 14


def kind_of(output: str, view: str = "lines") -> str:
    """The kind of file that a name asks for: `html`, `svg` or `png`.

    Raises:
        OptionError: another ending, or no such view.
    """
    check_view(view)
    kind = Path(output).suffix.lower().lstrip(".")
    kind = "html" if kind == "htm" else kind
    if kind not in KINDS:
        raise OptionError(f"--output {output}: the name must end in {', '.join('.' + name for name in KINDS)}")
    return kind


def write(output: str, kind: str, attention: Attention, choice: Choice) -> int:
    """Write a page or a picture; return its size in bytes.

    Args:
        output: the file.
        kind: of `kind_of`.
        attention: the captures.
        choice: what it shows.
    """
    data = page(attention, choice).encode() if kind == "html" else picture(attention, choice, kind)
    write_bytes(output, data)
    return len(data)


def picture(attention: Attention, choice: Choice, kind: str) -> bytes:
    """One view as a file: a panel for each method.

    Args:
        attention: the captures.
        choice: what it shows.
        kind: `svg` or `png`.
    """
    views = [attention.view(name, choice.lam) for name in attention.methods]
    rows = _positions(attention, choice)
    width, height = {
        "lines": (3.6, 0.9 + 0.26 * rows),
        "word": (4.4, 0.9 + 0.26 * rows),
        "neurons": (6.2, 1.2 + 0.26 * (rows + 1)),
        "graph": (4.6, 5.1),
    }[choice.view]
    draw: Callable[[Any, Attention, AttentionView, Choice, float], None] = {
        "lines": _draw_lines, "word": _draw_word, "neurons": _draw_neurons, "graph": _draw_graph,
    }[choice.view]  # fmt: skip
    most = max(float(_weights(view, choice).max()) for view in views)
    with figure(width * len(views), height, ncols=len(views), squeeze=False) as (canvas, axes, buffer):
        for panel, view in zip(axes[0], views):
            panel.set_axis_off()
            panel.set_title(_title(attention, view, choice), fontsize=10)
            draw(panel, attention, view, choice, most)
        canvas.supxlabel(_caption(attention, choice, most), fontsize=8.5, color=GREY, x=0.01, ha="left")
        if kind == "png":
            image = io.BytesIO()
            canvas.savefig(image, format="png", dpi=180, metadata={"Software": "mixwell"})
    return image.getvalue() if kind == "png" else buffer.getvalue().encode()


def _positions(attention: Attention, choice: Choice) -> int:
    """The most positions of any panel: all share one layout, so that they can be compared."""
    return max(len(attention.view(name, choice.lam).tokens) for name in attention.methods)


def _weights(view: AttentionView, choice: Choice) -> np.ndarray:
    """(Q, K) of the chosen block and head."""
    return view.weights[choice.block][choice.head]


# --- words -----------------------------------------------------------------------------------------------------------


def _title(attention: Attention, view: AttentionView, choice: Choice) -> str:
    if view.method == PLAIN:
        return "plain (none)"
    moved = distance(view, attention.plain)[choice.block][choice.head]
    if choice.view in ("word", "neurons"):  # of the word that is shown
        change = difference(_weights(view, choice), _weights(attention.plain, choice))
        moved = float(abs(change[choice.word]).sum() / 2)
    lam = "" if view.lam is None else f", lam {lam_text(view.lam)}"
    return f"{view.method}{lam}: {moved:.1%} moved"


def _caption(attention: Attention, choice: Choice, most: float) -> str:
    word = _label(attention.tokens[choice.word])
    what = {
        "lines": f"the darkest line is {most:.3f}",
        "word": f"the weights of “{word}”",
        "neurons": f"the query of “{word}”; blue is positive, orange negative",
        "graph": f"edges above {THRESHOLD:g}, those of “{word}” in blue",
    }[choice.view]
    whose = "its attention" if choice.view in ("word", "neurons") else "attention"
    return (
        f"{_label(attention.model, 40)}, block {choice.block}, head {choice.head} (from 0); {what}. "
        f"Moved: the share of {whose} that goes elsewhere than in plain"
    )


def _label(text: str, longest: int = _LONGEST_NAME) -> str:
    """A token for matplotlib: short, on one line, no mathematics."""
    shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    shown = shown if len(shown) <= longest else shown[: longest - 1] + "…"
    return shown.replace("$", r"\$")


def _key_labels(attention: Attention, view: AttentionView) -> list[tuple[str, str]]:
    """For each key its name and colour; positions that only the partner has are grey with a plus."""
    labels = []
    for position, token in enumerate(view.tokens):
        if position < len(attention.tokens):
            labels.append((_label(token), BLACK))
        else:
            labels.append(("+ " + _label(attention.partner_token(position) or ""), GREY))
    return labels


# --- panels ----------------------------------------------------------------------------------------------------------


def _draw_lines(
    panel: Any, attention: Attention, view: AttentionView, choice: Choice, most: float, only: int | None = None
) -> None:
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
    for j, (name, colour) in enumerate(_key_labels(attention, view)):
        panel.text(1.03, -j, name, ha="left", va="center", fontsize=9, color=colour)
    panel.text(-0.03, 0.9, "query", ha="right", fontsize=8, color=GREY)
    panel.text(1.03, 0.9, "key", ha="left", fontsize=8, color=GREY)
    panel.set(xlim=(-0.75, 1.75), ylim=(0.5 - _positions(attention, choice), 1.6))


def _draw_word(panel: Any, attention: Attention, view: AttentionView, choice: Choice, most: float) -> None:
    row = _weights(view, choice)[choice.word]
    views = [attention.view(name, choice.lam) for name in attention.methods]
    most = max(float(_weights(other, choice)[choice.word].max()) for other in views)
    _draw_lines(panel, attention, view, choice, most, only=choice.word)
    for j, weight in enumerate(row):
        panel.barh(-j, float(weight) / most, left=1.75, height=0.62, color=BLUE)
        panel.text(1.8 + float(weight) / most, -j, f"{weight:.3f}", ha="left", va="center", fontsize=8)
    panel.set(xlim=(-0.75, 3.2))


def _draw_neurons(panel: Any, attention: Attention, view: AttentionView, choice: Choice, most: float) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    assert view.scale is not None
    vectors, products = _strips(view, choice)
    query, keys = vectors[0], vectors[1:]
    weights = _weights(view, choice)[choice.word]
    scores = keys @ query * view.scale[choice.block]
    colours = LinearSegmentedColormap.from_list("signed", [ORANGE, "#FFFFFF", BLUE])
    size = query.shape[0]
    bounds = [
        max(float(np.abs(values).max()) for values in strips)
        for strips in zip(*(_strips(attention.view(name, choice.lam), choice) for name in attention.methods))
    ]

    def strip(values: np.ndarray, left: float, row: int, bound: float) -> None:
        panel.imshow(values[None], cmap=colours, vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest",
                     extent=(left, left + 1, -row - 0.36, -row + 0.36), zorder=2)  # fmt: skip

    panel.text(-0.03, 0, f"q  {_label(view.tokens[choice.word])}", ha="right", va="center", fontsize=9, weight="bold")
    strip(query, 0, 0, bounds[0])
    for x, name in ((0.5, f"key k ({size} neurons)"), (1.6, "q \u00d7 k"), (2.36, "score"), (2.85, "softmax")):
        panel.text(x, 0.75, name, ha="center", fontsize=8, color=GREY)
    for j, (name, colour) in enumerate(_key_labels(attention, view)):
        row = j + 1
        panel.text(-0.03, -row, name, ha="right", va="center", fontsize=9, color=colour)
        strip(keys[j], 0, row, bounds[0])
        strip(products[j], 1.1, row, bounds[1])
        panel.text(2.5, -row, f"{scores[j]:.2f}", ha="right", va="center", fontsize=8)
        panel.barh(-row, 0.45 * float(weights[j]), left=2.6, height=0.6, color=BLUE)
        panel.text(2.63 + 0.45 * float(weights[j]), -row, f"{weights[j]:.3f}", ha="left", va="center", fontsize=8)
    panel.set(xlim=(-0.62, 3.3), ylim=(-_positions(attention, choice) - 0.6, 1.3))


def _strips(view: AttentionView, choice: Choice) -> tuple[Any, Any]:
    """Everything drawn on one scale: vectors, and their products."""
    import numpy as np

    assert view.queries is not None and view.keys is not None
    query = view.queries[choice.block][choice.head][choice.word]
    keys = view.keys[choice.block][choice.head]
    return np.concatenate([query[None], keys]), query * keys


def _draw_graph(panel: Any, attention: Attention, view: AttentionView, choice: Choice, most: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    weights = _weights(view, choice)
    count = _positions(attention, choice)
    angles = [math.pi / 2 - 2 * math.pi * number / count for number in range(count)]
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
    for j, ((x, y), (name, colour)) in enumerate(zip(spots, _key_labels(attention, view))):
        panel.scatter([x], [y], s=20 + 160 * float(received[j]) / float(received.max()), zorder=4,
                      color=BLUE if j == choice.word else "#9CA3AF", edgecolors="white")  # fmt: skip
        turn = math.degrees(angles[j])
        flip = x < -1e-9
        panel.text(1.1 * x, 1.1 * y, name, rotation=turn + 180 if flip else turn, rotation_mode="anchor", fontsize=9,
                   ha="right" if flip else "left", va="center", color=colour,
                   weight="bold" if j == choice.word else "normal")  # fmt: skip
    panel.set(xlim=(-1.7, 1.7), ylim=(-1.7, 1.7), box_aspect=1)
