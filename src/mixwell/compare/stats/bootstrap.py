"""Metrics on resampled test examples, fast.

A resample of the test set is a column of counts: how often each example was drawn. Nearly every metric is a
function of a few sums over examples (hits per class, gaps per bin, moments), so all resamples of one trained
model are one product of a small, mostly empty matrix (sums, examples) with the counts (examples, resamples).
`tests/compare/test_statistics.py` compares each path with `metrics.measure` on the resampled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.compare.stats.ranks import SELECTIVE, selective_block
from mixwell.metrics.calibration import BINS, bin_index, confidence_and_correctness
from mixwell.metrics.measure import measure
from mixwell.metrics.scores import (
    METRICS,
    MetricInfo,
    check_arrays,
    f1_from_counts,
    mcc_from_counts,
    row_brier,
    row_nll,
    sigmoid,
    softmax,
)
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE, TASKS
from mixwell.utils.errors import DataError, OptionError, RunError, nearest

Floats = NDArray[np.float64]
Block = Callable[[Any, Floats], dict[str, Any]]  # (counts (N, R), rows drawn (R,)) -> name -> (R,)

AFTER = "_after"
SCALARS = {
    "seconds_per_step": MetricInfo("seconds per step", False, TASKS),
    "ood_auroc": MetricInfo("AUROC of foreign texts", True, (SINGLE, MULTI)),
    "ood_false_accept": MetricInfo("foreign texts accepted at 95 % coverage", False, (SINGLE, MULTI)),
}
# Resamples of metrics that depend on the order of confidences: ten times the work of the others. Resamples serve for
# variances, which 250 give to 9 %, and 100 to 14 %: enough for a metric that no verdict rests on.
RANKED = {"adaptive_ece": 100, "aurc": 250}
_DENSE = 128  # rows of a matrix
_ELEMENTS = 1_500_000  # counts held at a time: 6 MB, about what a cache holds


@dataclass(frozen=True)
class SeedResult:
    """What one trained model predicted for its test set.

    Attributes:
        seed: the seed, by which methods are paired.
        logits: (N, C), or (N,) or (N, K) for regression.
        labels: (N,), or (N, C) for multi label, or the targets.
        temperature: fitted on validation data; None if there is none.
        scalars: further numbers of the run, such as `seconds_per_step`.
        ids: (N,) which example each row is, when test sets differ by seed but overlap. Without it, seeds with
            equal labels are assumed to share one test set, and others to have examples of their own.
    """

    seed: int
    logits: NDArray[Any]
    labels: NDArray[Any]
    temperature: float | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    ids: NDArray[Any] | None = None


def metric_info(name: str) -> MetricInfo:
    """Title, direction and tasks of a metric, also of one `_after` temperature or of a scalar."""
    if name in SCALARS:
        return SCALARS[name]
    base = name.removesuffix(AFTER)
    if base not in METRICS:
        known = metric_names(SINGLE)
        raise OptionError(f"unknown metric {name!r}{nearest(name, known)}: use one of {', '.join(known)}")
    info = METRICS[base]
    return info._replace(title=f"{info.title} after temperature") if base != name else info


def metric_names(task: str, after: bool = True) -> list[str]:
    """Names of a task's metrics, with `_after` for those that a temperature changes."""
    names = []
    for name, info in METRICS.items():
        if task in info.tasks:
            names += [name, name + AFTER] if info.scaled and after else [name]
    return names


def values(result: SeedResult, names: Sequence[str], task: str) -> dict[str, float]:
    """The metrics of one trained model on its test set, not resampled."""
    now = measure(result.logits, result.labels, task, only={n for n in names if not n.endswith(AFTER)})
    later = {}
    if after := {n.removesuffix(AFTER) for n in names if n.endswith(AFTER)}:
        later = measure(result.logits, result.labels, task, result.temperature, only=after)
    return {n: later[n.removesuffix(AFTER)] if n.endswith(AFTER) else now[n] for n in names}


def check(result: SeedResult, task: str, name: str) -> None:
    """Raise `RunError` with the name of a run if its record cannot be used."""
    try:
        check_arrays(result.logits, result.labels, task)
        if result.ids is not None and len(result.ids) != len(result.labels):
            raise DataError(f"{len(result.ids)} ids for {len(result.labels)} rows")
    except DataError as err:
        raise RunError(f"{name}: {err}") from None


# ---------------------------------------------------------------------------------------------- the pool


def pool(results: Sequence[SeedResult]) -> tuple[int, list[NDArray[np.int64]]]:
    """Which example of all examples each row of each seed is.

    Returns:
        The number of examples, and for each result the indices (N,) of its rows among them.
    """
    if all(r.ids is not None for r in results):
        every, inverse = np.unique(np.concatenate([np.asarray(r.ids) for r in results]), return_inverse=True)
        cuts = np.cumsum([len(r.labels) for r in results])[:-1]
        return len(every), np.split(inverse.astype(np.int64), cuts)
    seen: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
    rows, size = [], 0
    for r in results:
        indices = next((idx for labels, idx in seen if np.array_equal(labels, r.labels)), None)
        if indices is None:
            indices = np.arange(size, size + len(r.labels))
            size += len(r.labels)
            seen.append((r.labels, indices))
        rows.append(indices)
    return size, rows


def draw(size: int, resamples: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Counts (size, resamples) of drawing `size` examples with replacement; 32 bits for speed."""
    drawn = rng.integers(0, size, size=(resamples, size)) + np.arange(resamples)[:, None] * size
    counts = np.bincount(drawn.ravel(), minlength=size * resamples).reshape(resamples, size)
    return np.ascontiguousarray(counts.T, dtype=np.float32)


def resample(
    runs: Sequence[tuple[SeedResult, Sequence[str]]],
    rows: Sequence[NDArray[np.int64]],
    size: int,
    task: str,
    resamples: int,
    rng: np.random.Generator,
) -> list[dict[str, Floats]]:
    """The metrics of every run on the same resamples of the pool.

    Args:
        runs: trained models, each with the names of the metrics wanted.
        rows: for each run the indices (N,) of its rows in the pool; see `pool`.
        size: the number of examples in the pool.
        task: one of `scores.TASKS`.
        resamples: how many.
        rng: the counts depend on this and on `size` only, so a further method changes no other's interval.

    Returns:
        For each run, name -> (resamples,), or fewer for metrics of ranks, see `RANKED`.
    """
    parts = [_parts(result, names, task) for result, names in runs]
    out: list[dict[str, list[Any]]] = [{n: [] for n in names} for _, names in runs]
    groups: dict[bytes, list[int]] = {}  # runs on the same test set share counts, and one product for their means
    for k, idx in enumerate(rows):
        groups.setdefault(idx.tobytes(), []).append(k)
    whole = np.arange(size)
    chunk = max(1, min(resamples, _ELEMENTS // size))
    for start in range(0, resamples, chunk):
        counts = draw(size, min(chunk, resamples - start), rng)
        few = {kind: max(0, min(most - start, counts.shape[1])) for kind, most in RANKED.items()}
        for members in groups.values():
            idx = rows[members[0]]
            mine = counts if np.array_equal(idx, whole) else counts[idx]
            total = np.maximum(mine.sum(axis=0, dtype=np.float64), 1.0)
            keys = [(k, n) for k in members for n in parts[k][0] if n in out[k]]
            if keys:
                means = np.stack([parts[k][0][n] for k, n in keys]) @ mine.astype(np.float64) / total
                for (k, n), value in zip(keys, means):
                    out[k][n].append(value)
            for k in members:
                for block in parts[k][1]:
                    for n, value in block(mine, total).items():
                        if n in out[k]:
                            out[k][n].append(value)
                for kind, block in parts[k][2]:
                    for n, value in block(mine[:, : few[kind]], total[: few[kind]]).items() if few[kind] else ():
                        if n in out[k]:
                            out[k][n].append(value)
    return [{n: np.concatenate(chunks) for n, chunks in metrics.items()} for metrics in out]


# ---------------------------------------------------------------------------------------------- the metrics


def _parts(
    result: SeedResult, names: Sequence[str], task: str
) -> tuple[dict[str, Floats], list[Block], list[tuple[str, Block]]]:
    """Metrics that are means over rows, name -> (N,), functions for the others, and those for ranks."""
    z, y = check_arrays(result.logits, result.labels, task)
    blocks: list[Block] = []
    ranked: list[tuple[str, Block]] = []
    if task == REGRESSION:
        if "pearson" in names:
            blocks.append(_pearson(z, y))
        if "spearman" in names:
            blocks.append(_spearman(z, y))
        return {"mse": ((z - y) ** 2).mean(axis=1), "mae": np.abs(z - y).mean(axis=1)}, blocks, []
    means: dict[str, Floats] = {}
    if task == SINGLE:
        means["accuracy"] = (z.argmax(axis=1) == y).astype(np.float64)
        if {"macro_f1", "mcc"} & set(names):
            blocks.append(_confusion(z.argmax(axis=1), y, z.shape[1]))
        if set(SELECTIVE) & set(names):
            ranked.append(("aurc", selective_block(softmax(z).max(axis=1), means["accuracy"], names)))
    else:
        means["subset_accuracy"] = ((z > 0) == (y == 1)).all(axis=1).astype(np.float64)
        if {"macro_f1", "micro_f1"} & set(names):
            blocks.append(_label_counts(z > 0, y == 1))
    for suffix, t in (("", 1.0), (AFTER, result.temperature)):
        wanted = {n.removesuffix(AFTER) for n in names if n.endswith(AFTER) == bool(suffix)}
        if t is None:
            continue
        if "nll" in wanted:
            means["nll" + suffix] = row_nll(z / t, y, task)
        if not wanted & {"brier", "ece", "adaptive_ece"}:
            continue
        probs = sigmoid(z / t) if task == MULTI else softmax(z / t)
        if "brier" in wanted:
            means["brier" + suffix] = row_brier(probs, y, task)
        conf, right = confidence_and_correctness(probs, z, y, task)
        if "ece" in wanted:
            blocks.append(_ece("ece" + suffix, conf.reshape(len(z), -1), right.reshape(len(z), -1)))
        if "adaptive_ece" in wanted:
            ranked.append(("adaptive_ece", _adaptive_ece("adaptive_ece" + suffix, conf, right)))
    return means, blocks, ranked


def _sparse(values: NDArray[Any], row: NDArray[Any], column: NDArray[Any], shape: tuple[int, int]) -> Any:
    """A matrix that sums rows: an array where it is small, which is faster."""
    if shape[0] <= _DENSE:
        whole = np.zeros(shape, dtype=np.float32)
        np.add.at(whole, (row, column), np.asarray(values, dtype=np.float32))
        return whole
    from scipy import sparse

    return sparse.csr_matrix((np.asarray(values, dtype=np.float32), (row, column)), shape=shape)


def _f1_mean(tp: Floats, predicted: Floats, support: Floats) -> Floats:
    f1 = f1_from_counts(tp, predicted, support)
    known = np.isfinite(f1)
    return np.asarray(np.where(known, f1, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))


def _confusion(pred: NDArray[Any], y: NDArray[Any], classes: int) -> Block:
    n = len(y)
    hit = np.flatnonzero(pred == y)
    tp = _sparse(np.ones(len(hit)), y[hit], hit, (classes, n))
    predicted = _sparse(np.ones(n), pred, np.arange(n), (classes, n))
    support = _sparse(np.ones(n), y, np.arange(n), (classes, n))

    def block(counts: Any, total: Floats) -> dict[str, Any]:
        sums = tp @ counts, predicted @ counts, support @ counts
        return {"macro_f1": _f1_mean(*sums), "mcc": mcc_from_counts(*sums)}

    return block


def _label_counts(yes: NDArray[np.bool_], true: NDArray[np.bool_]) -> Block:
    parts = [np.ascontiguousarray(m.T, dtype=np.float64) for m in (yes & true, yes, true)]

    def block(counts: Any, total: Floats) -> dict[str, Any]:
        tp, predicted, support = (m @ counts for m in parts)
        micro = f1_from_counts(tp.sum(axis=0), predicted.sum(axis=0), support.sum(axis=0))
        return {"macro_f1": _f1_mean(tp, predicted, support), "micro_f1": np.nan_to_num(micro)}

    return block


def _ece(name: str, conf: Floats, right: Floats) -> Block:
    """`conf` and `right` are (N, D): D decisions per row (1 for single label)."""
    n, d = conf.shape
    where, row = bin_index(conf.ravel()), np.repeat(np.arange(n), d)
    gaps = _sparse((right - conf).ravel(), where, row, (BINS, n))
    return lambda counts, total: {name: np.abs(gaps @ counts).sum(axis=0) / (total * d)}


def _cumulative(sums: Any) -> Floats:
    """Cumulative sums (K + 1, R) of (K, R), from 0 on."""
    out = np.zeros((len(sums) + 1, sums.shape[1]))
    np.cumsum(sums, axis=0, dtype=np.float64, out=out[1:])
    return out


def _adaptive_ece(name: str, conf: Floats, right: Floats, width: int = 8) -> Block:
    """Equal-mass bins move with the resample: find their edges in runs of `width` confidences, then inside.

    A cumulative sum over all rows of all resamples would do the same in one line, forty times slower.
    """
    n = len(conf)
    level, group = np.unique(conf, return_inverse=True)  # rows of equal confidence are one group
    u = len(level)
    order = np.argsort(conf, kind="stable")
    gap = right - conf
    runs = -(-u // width)
    run_mass = _sparse(np.ones(n), group // width, np.arange(n), (runs, n))
    run_gap = _sparse(gap, group // width, np.arange(n), (runs, n))
    if u < n:
        mass = _sparse(np.ones(n), group, np.arange(n), (u, n))
        gaps = _sparse(gap, group, np.arange(n), (u, n))

    def block(counts: Any, total: Floats) -> dict[str, Any]:
        r = counts.shape[1]
        take = np.arange(r)[None, :]
        cum_mass = _cumulative(run_mass @ counts)
        cum_gap = _cumulative(run_gap @ counts)
        edge = np.arange(1, BINS)[:, None] * (total / BINS)  # (bins - 1, R)
        # One search for all resamples: each one's sums are lifted above those of the one before.
        lift = take * (total.max() + 1)
        run = np.searchsorted((cum_mass[1:-1] + lift).T.ravel(), edge + lift) - take * (runs - 1)
        inside = run[..., None] * width + np.arange(width)  # (bins - 1, R, width) groups
        valid, inside, column = inside < u, np.minimum(inside, u - 1), np.arange(r)[None, :, None]
        if u < n:
            m, g = (mass @ counts)[inside, column] * valid, (gaps @ counts)[inside, column] * valid
        else:
            m = counts[order[inside], column] * valid
            g = m * gap[order[inside]]
        upto = np.cumsum(m, axis=-1) + cum_mass[run, take][..., None]
        last = np.minimum((upto < edge[..., None]).sum(axis=-1), width - 1)[..., None]
        mass_there, mass_upto = np.take_along_axis(m, last, -1)[..., 0], np.take_along_axis(upto, last, -1)[..., 0]
        over = np.where(mass_there > 0, (mass_upto - edge) / np.where(mass_there > 0, mass_there, 1.0), 0.0)
        sums = np.take_along_axis(np.cumsum(g, axis=-1), last, -1)[..., 0] + cum_gap[run, take]
        sums -= over * np.take_along_axis(g, last, -1)[..., 0]
        steps = np.diff(np.vstack([np.zeros(r), sums, cum_gap[-1]]), axis=0)
        return {name: np.abs(steps).sum(axis=0) / total}

    return block


def _weighted_correlation(x: Floats, y: Floats, counts: Any, n: Floats) -> Floats:
    """Pearson's correlation in each resample (R,), of x and y (N, 1) or (N, R)."""
    x, y = x - (x * counts).sum(axis=0) / n, y - (y * counts).sum(axis=0) / n
    xx, yy = (x * x * counts).sum(axis=0), (y * y * counts).sum(axis=0)
    spread = np.sqrt(np.where((xx > 1e-12 * n) & (yy > 1e-12 * n), xx * yy, np.inf))
    return np.asarray((x * y * counts).sum(axis=0) / spread)


def _pearson(z: Floats, y: Floats) -> Block:
    # Standardised first, so that "no spread left in this resample" is the same test for every scale.
    x, t = ((v - v.mean(axis=0)) / np.maximum(v.std(axis=0), 1e-300) for v in (z, y))

    def block(counts: Any, total: Floats) -> dict[str, Any]:
        per = [_weighted_correlation(x[:, [k]], t[:, [k]], counts, total) for k in range(x.shape[1])]
        return {"pearson": np.mean(per, axis=0)}

    return block


def _spearman(z: Floats, y: Floats) -> Block:
    def ranker(column: Floats) -> Callable[[Floats], Floats]:
        level, group = np.unique(column, return_inverse=True)
        mass = _sparse(np.ones(len(column)), group, np.arange(len(column)), (len(level), len(column)))

        def rank(counts: Floats) -> Floats:
            m = mass @ counts
            return np.asarray((np.cumsum(m, axis=0, dtype=np.float64) - (m - 1) / 2)[group])

        return rank

    pairs = [(ranker(z[:, k]), ranker(y[:, k])) for k in range(z.shape[1])]

    def block(counts: Any, total: Floats) -> dict[str, Any]:
        return {"spearman": np.mean([_weighted_correlation(a(counts), b(counts), counts, total) for a, b in pairs], 0)}

    return block
