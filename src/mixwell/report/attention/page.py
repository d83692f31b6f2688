"""The page about attention under mixing: all captures in one file, drawn by its script."""

from __future__ import annotations

import base64
import shlex
from typing import Any

from mixwell.report.attention.choice import THRESHOLD, VIEWS, Choice
from mixwell.report.attention.data import PLAIN, Attention, AttentionView, distance
from mixwell.report.glossary import method_note
from mixwell.report.page import as_json, render
from mixwell.utils.titles import method_title


def page(attention: Attention, choice: Choice) -> str:
    """The page as HTML.

    Args:
        attention: the captures.
        choice: what it shows first.
    """
    values = {
        "text": attention.text,
        "partner": attention.partner,
        "model": attention.model,
        "methods": [(name, method_title(name)) for name in attention.methods],
        "lines": [
            (method_title(name), note.blends if (note := method_note(name)) else "") for name in attention.methods
        ],
        "layers": [(name, method_title(name)) for name in attention.methods if len(attention.layers_of(name)) > 1],
        "mixing": [name for name in attention.methods if name != PLAIN],
        "blocks": len(attention.heads),
        "heads": max(attention.heads),
        "tokens": attention.tokens,
        "partner_tokens": [attention.partner_token(n) or "" for n in range(len(attention.partner_positions))],
        "lams": [lam_text(lam) for lam in attention.lams],
        "names": {key: name for key, name in VIEWS.items() if key != "neurons" or attention.neurons},
        "start": choice,
        "notes": attention.notes,
        "command": _command(attention),
        "data": as_json(_script_data(attention, choice)),
    }
    return render("attention.html.j2", scripts=("attention.js",), styles=("attention.css",), **values)


def _script_data(attention: Attention, choice: Choice) -> dict[str, Any]:
    """What the script of the page draws."""
    chunks = _Chunks()
    views = [_packed(attention.plain, attention, chunks)]
    places: dict[str, int] = {}
    for (method, lam), view in attention.views.items():
        if method != PLAIN:
            places[method if lam is None else f"{method} {lam_text(lam)}"] = len(views)
            views.append(_packed(view, attention, chunks))
    for (method, lam, layer), view in attention.layers.items():
        places[f"{method} {'' if lam is None else lam_text(lam)} {layer}"] = len(views)
        views.append(_packed(view, attention, chunks))
    if PLAIN in attention.methods:
        places[PLAIN] = 0
    width = min(max(len(view["tokens"]) for view in views), len(attention.partner_positions))
    return {
        "tokens": list(attention.tokens),
        "special": [int(mark) for mark in attention.special],
        "meets": [attention.partner_token(position) for position in range(width)],
        "methods": list(attention.methods),
        "titles": {name: method_title(name) for name in attention.methods},
        "fixed": [name for name in attention.methods if name != PLAIN and (name, None) in attention.views],
        "layers": {name: layers for name in attention.methods if len(layers := attention.layers_of(name)) > 1},
        "lams": [lam_text(lam) for lam in attention.lams],
        "heads": list(attention.heads),
        "neurons": attention.neurons,
        "views": views,
        "places": places,
        "chunks": chunks.texts,
        "start": {
            "view": choice.view, "block": choice.block, "head": choice.head, "word": choice.word,
            "lam": lam_text(choice.lam), "threshold": THRESHOLD,
        },
    }  # fmt: skip


def _command(attention: Attention) -> str:
    """The command that makes this page again."""
    # After `--` nothing is taken for an option, whatever it begins with.
    words = ["mixwell", "attention", f"--partner={attention.partner[0]}"]
    if len(attention.partner) > 1:
        words.append(f"--partner-b={attention.partner[1]}")
    if attention.trusted:
        words.append("--trust-remote-code")
    words += ["--methods", ",".join(attention.methods), "--lam", lam_text(attention.lam)]
    words += ["--lams", ",".join(map(lam_text, attention.lams))]
    return shlex.join([*words, "--", attention.model, *attention.text])


def lam_text(lam: float) -> str:
    """A lam as the page and its script write it."""
    return f"{lam:.6g}"


class _Chunks:
    """Arrays as base64 text, each content once: block 0 under AMPLIFY, for one, is the plain one at every lam."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """Keep some bytes; return their number."""
        if data not in self._numbers:
            self._numbers[data] = len(self.texts)
            self.texts.append(base64.b64encode(data).decode())
        return self._numbers[data]


def _packed(view: AttentionView, attention: Attention, chunks: _Chunks) -> dict[str, Any]:
    """A view for the script: weights as float32, queries and keys as whole numbers of 16 bits times a scale."""
    packed: dict[str, Any] = {
        "method": view.method,
        "layer": view.layer,
        "mixes": view.mixes,
        "tokens": list(view.tokens),
        "weights": [chunks.add(block.astype("<f4").tobytes()) for block in view.weights],
        "moved": [[round(value, 5) for value in block] for block in distance(view, attention.plain)],
    }
    if attention.neurons:
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
