"""Selective prediction on resamples: AURC, excess AURC and error-detection AUROC of all columns of counts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.metrics.selective import NO_INFORMATION, risk_weight

Floats = NDArray[np.float64]
SELECTIVE = ("aurc", "excess_aurc", "error_auroc")


def selective_block(conf: Floats, right: Floats, names: Sequence[str]) -> Callable[[Any, Floats], dict[str, Any]]:
    """A function from counts (N, R) and rows drawn (R,) to the metrics (R,).

    Args:
        conf: (N,) confidences.
        right: (N,) of 0 and 1.
        names: which of `SELECTIVE` are wanted.
    """
    order = np.argsort(-conf, kind="stable")
    starts = np.flatnonzero(np.diff(conf[order], prepend=np.inf))
    tied = len(starts) < len(conf)
    wrong = (1.0 - right[order]).astype(np.float32)[:, None]

    def block(counts: Any, total: Floats) -> dict[str, Any]:
        mass = counts[order]
        errors = mass * wrong
        if tied:
            mass, errors = np.add.reduceat(mass, starts, axis=0), np.add.reduceat(errors, starts, axis=0)
        drawn = np.rint(total).astype(np.int64)
        missed = np.rint(errors.sum(axis=0)).astype(np.int64)
        out: dict[str, Any] = {}
        # Only blocks with mistakes add anything, and those are few.
        some = np.flatnonzero(errors.any(axis=1))
        upto = np.cumsum(mass, axis=0)[some].astype(np.int64)  # whole numbers, which 32 bits hold exactly
        mass, errors = mass[some], errors[some]
        if "aurc" in names or "excess_aurc" in names:
            before = upto - mass.astype(np.int64)
            gain = risk_weight(upto, drawn) - risk_weight(before, drawn)
            out["aurc"] = (errors / np.maximum(mass, 1) * gain).sum(axis=0) / total
            perfect = 1.0 - risk_weight(drawn - missed, drawn) / total
            out["excess_aurc"] = np.maximum(out["aurc"] - perfect, 0.0)
        if "error_auroc" in names:
            good = mass - errors
            # Right answers in blocks above: rows so far less mistakes so far.
            above = upto - np.cumsum(errors, axis=0, dtype=np.float64) - good / 2
            pairs = missed * (drawn - missed).astype(np.float64)
            share = (errors * above).sum(axis=0) / np.where(pairs > 0, pairs, 1.0)
            out["error_auroc"] = np.where(pairs > 0, share, NO_INFORMATION)
        return out

    return block
