"""Does what a paper says hold? Its claims, and the order of its rows, against what was measured.

A pair of rows bears a claim out if the interval of their difference lies on the claimed side of 0. A claim over
several pairs holds if each pair does ("where tested" if some pairs, or data sets of a mean, were not run); it does not
hold if a pair lies on the other side after Holm's adjustment over the claim's pairs; else there is not enough evidence.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from mixwell.compare.stats.intervals import holm
from mixwell.papers.differences import (
    FAILS,
    HOLDS,
    PARTLY,
    TIMES,
    UNKNOWN,
    UNSURE,
    PairedDifference,
    PairedDifferences,
    Place,
    decide,
    direction,
)
from mixwell.papers.experiment import Experiment
from mixwell.papers.measured import Results
from mixwell.papers.schema import METRICS, SAMPLE, Claim


def together(words: Sequence[str], pairs: Sequence[PairedDifference | None], signs: Sequence[int], level: float) -> str:
    """The verdict on several pairs of rows.

    Args:
        words: each pair's own verdict.
        pairs: the differences.
        signs: the side on which each is borne out.
        level: of the intervals.
    """
    known = [(word, pair, sign) for word, pair, sign in zip(words, pairs, signs) if pair is not None]
    if not known:
        return UNKNOWN
    if all(word == HOLDS for word, _, _ in known):
        return HOLDS if len(known) == len(pairs) else PARTLY
    adjusted = holm([pair.p for _, pair, _ in known])
    against = [p for p, (_, pair, sign) in zip(adjusted, known) if sign * pair.mean < 0 and pair.seeds > 1]
    return FAILS if any(p < 1 - level for p in against) else UNSURE


class Judge:
    """Compares what a paper says with what was measured."""

    def __init__(self, results: Results, experiment: Experiment, differences: PairedDifferences) -> None:
        self.experiment, self.differences, self.level = experiment, differences, differences.level
        self.beside = {(run.dataset, run.size): run.beside for run in results.runs}
        self.smoke = results.run_json["scale"] == "smoke"

    def places(self, dataset: str, size: str, timed: bool) -> list[tuple[str, list[Place]]]:
        """Where a published place was measured: name and places, several for a mean over data sets."""
        measured = list(self.beside)
        if self.smoke:
            return [(f"{SAMPLE.key}, {place[1]}", [place]) for place in measured]
        fits = [place for place in measured if self.beside[place] == size]
        if self.experiment.is_mean(dataset):
            sizes = list(dict.fromkeys(place[1] for place in fits))
            return [(f"{dataset}, {own}", [place for place in fits if place[1] == own]) for own in sizes]
        places = [place for place in fits if place[0] == dataset]
        if timed and not places:  # what an update costs does not depend on how many rows there are
            places = [place for place in measured if place[0] == dataset]
        return [(f"{name}, {own}", [(name, own)]) for name, own in places]

    def claim(self, claim: Claim) -> dict[str, Any]:
        """One claim: its verdict, and each pair of rows behind it."""
        sign, timed = direction(claim.metric, claim.of), claim.metric in TIMES
        entries, pairs = [], []
        seen, means = set(), set()  # means: (data sets that were run, data sets the paper averages over)
        for dataset, size in itertools.product(claim.datasets, claim.sizes):
            for above, below in itertools.product(claim.above, claim.below):
                where = self.places(dataset, size, timed)
                compared = [(name, self._difference(above, below, places, claim)) for name, places in where]
                if self.experiment.is_mean(dataset) and not self.smoke:
                    means |= {(len(places), len(self.experiment.averaged)) for _, places in where}
                usable: list[tuple[str, PairedDifference | None]] = [pair for pair in compared if pair[1] is not None]
                for name, pair in (usable[:1] if timed else usable) or [(f"{dataset}, {size}", None)]:
                    key = (above, below, name if pair is not None or not self.smoke else "")
                    if key in seen:
                        continue
                    seen.add(key)
                    pairs.append(pair)
                    entries.append(self._entry(above, below, name, pair, claim, sign))
        words = [entry["verdict"] for entry in entries]
        printed = [verdict.holds for verdict in claim.judge(self.experiment.values(claim.metric, of=claim.of))]
        known = [pair for pair in pairs if pair is not None]
        verdict = together(words, pairs, [sign] * len(pairs), self.level)
        partly = sorted(f"{run} of {whole} data sets" for run, whole in means if run < whole)
        if verdict == HOLDS and partly:
            verdict = PARTLY
        return {
            "says": claim.says,
            "metric": claim.metric,
            "of": claim.of,
            "verdict": verdict,
            "tested": ", ".join([f"{len(known)} of {len(pairs)} pairs", *partly]),
            "in_direction": sum(sign * pair.mean > 0 for pair in known),
            "published": {
                "difference": claim.difference,
                "ratio": claim.ratio,
                "pairs_that_hold": sum(holds is True for holds in printed),
                "pairs_known": sum(holds is not None for holds in printed),
            },
            "pairs": entries,
        }

    def _difference(self, above: str, below: str, places: Sequence[Place], claim: Claim) -> PairedDifference | None:
        pairs = [self.differences.of(above, below, place, claim.metric, claim.of) for place in places]
        if len(places) == 1:
            return pairs[0]
        averaged = self.differences.scored(claim.metric) and claim.of == "value"
        return self.differences.mean(pairs, places) if averaged else None

    def _entry(
        self, above: str, below: str, where: str, pair: PairedDifference | None, claim: Claim, sign: int
    ) -> dict[str, Any]:
        entry: dict[str, Any] = {"above": above, "below": below, "where": where, "verdict": UNKNOWN}
        if pair is None:
            return {**entry, "why": "not run"}
        entry |= {"difference": pair.to_dict(), "verdict": pair.decides(sign, self.level)}
        if claim.metric in TIMES:
            dataset, size = where.rsplit(", ", 1)
            rows = self.differences.groups[dataset, size]
            seeds = [seed for seed in rows[above] if seed in rows[below]]
            times = [rows[below][seed].minutes_per_epoch / rows[above][seed].minutes_per_epoch for seed in seeds]
            entry["ratio"] = statistics.median(times)
        return entry

    # --- the order of the rows ---

    def order(self, dataset: str, size: str) -> dict[str, Any] | None:
        """The published order of the rows in one place against the measured one; None where nothing is published."""
        beside = self.beside[dataset, size]
        if beside is None:
            return None
        metric = self.experiment.dataset(dataset).metric
        printed = {
            row: value
            for (row, data, published_size), value in self.experiment.values(metric).items()
            if (data, published_size) == (dataset, beside) and row in self.differences.groups[dataset, size]
        }
        if len(printed) < 2:
            return None
        rows = self.differences.groups[dataset, size]
        means = {row: sum(run.value(metric) for run in rows[row].values()) / len(rows[row]) for row in printed}
        more = METRICS[metric]
        pairs, signs = [], []
        for first, second in itertools.combinations(printed, 2):
            if printed[first] == printed[second]:
                continue
            better, worse = sorted((first, second), key=lambda row: printed[row], reverse=more)
            pair = self.differences.of(better, worse, (dataset, size), metric)
            pairs.append(pair)
            signs.append(direction(metric))
        known = [pair for pair in pairs if pair is not None]
        # That all hold needs no adjusting; that single ones of many do or do not, does.
        alone = [UNKNOWN if pair is None else pair.decides(sign, self.level) for pair, sign in zip(pairs, signs)]
        judged = decide(known, direction(metric), self.level)
        return {
            "dataset": dataset,
            "size": size,
            "beside": beside,
            "metric": metric,
            "published": sorted(printed, key=lambda row: printed[row], reverse=more),
            "measured": sorted(printed, key=lambda row: means[row], reverse=more),
            "pairs": len(known),
            "same_side": sum(sign * pair.mean > 0 for sign, pair in zip(signs, pairs) if pair is not None),
            "shown": judged.count(HOLDS),
            "against": judged.count(FAILS),
            "verdict": together(alone, pairs, signs, self.level),
        }
