"""A race: seeds are added in rounds, and a method is out as soon as its verdict is certain.

After 3, 4, 5, 6, 8, ... seeds every method is judged by the group-sequential rule of `stats.sequential`, so the error
rates are those of one look. Who is better, worse or practically equal is decided and trains no more; so is who cannot
be decided within the seeds that are left. Plain training goes on as long as anybody does. All decisions are functions
of the records: a race that was killed comes to the same end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixwell.compare.records import Failure, Record, Records
from mixwell.compare.schedule import ScheduleOutcome, execute
from mixwell.compare.spec import BASELINE, REFERENCES, CellSpec
from mixwell.compare.stats.judge import BETTER, EQUAL, UNSURE, WITHHELD, WORSE, Difference, Rules
from mixwell.compare.stats.sequential import LOOKS, looks_until, nominal_level
from mixwell.compare.stats.verdicts import PRIMARY, compare
from mixwell.compare.summary import learned, seed_result
from mixwell.utils.console import clock
from mixwell.utils.errors import OptionError
from mixwell.utils.titles import method_title

if TYPE_CHECKING:
    from mixwell.compare.engines.base import Engine
    from mixwell.compare.live import LiveView

SEEDS = 18  # the most, unless another number is given
FUTILE = 0.05  # the least probability of a verdict that is worth more seeds,
FUTILE_FROM = 5  # judged from so many seeds on: three say too little about the spread
_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """What a race may cost: so many trainings, or so many seconds of training summed over them; None for no limit."""

    runs: int | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, text: str | None) -> Budget:
        """Read `60 runs`, `30m`, `2h` or `90s`.

        Raises:
            OptionError: it is nothing of that.
        """
        if text is None:
            return cls()
        runs = re.fullmatch(r"\s*(\d+)\s*(?:runs?)?\s*", text)
        time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\w*\s*", text)
        if runs and int(runs[1]) > 0:
            return cls(runs=int(runs[1]))
        if time and float(time[1]) > 0:
            return cls(seconds=float(time[1]) * _UNITS[time[2]])
        raise OptionError(
            f"budget {text!r} cannot be read; write a time such as 30m or 2h, or a number such as '60 runs'"
        )

    def words(self, runs: int, seconds: float) -> str:
        """What is spent, and of what."""
        if self.runs is not None:
            return f"{runs} of {self.runs} runs, {clock(seconds)} of training"
        whole = f" of {clock(self.seconds)}" if self.seconds is not None else ""
        return f"{runs} runs, {clock(seconds)}{whole} of training"


@dataclass
class Lane:
    """The race of one comparison.

    Attributes:
        title: of its data.
        cells: (method, seed) -> run, of all methods and seeds that there may be.
        seeds: in the order in which they are run.
        methods: the fine-tuned ones, plain training first.
        records: the finished runs so far.
        looks: the rounds judged so far, by their numbers of seeds.
        wanted: seeds of the round that runs.
        out: method -> why and after how many seeds it trains no more.
        ended: why the whole lane has ended; empty while it goes on.
    """

    title: str
    cells: dict[tuple[str, int], CellSpec]
    seeds: list[int]
    methods: list[str]
    records: dict[tuple[str, int], Record] = field(default_factory=dict)
    looks: list[int] = field(default_factory=list)
    wanted: int = 0
    out: dict[str, str] = field(default_factory=dict)
    ended: str = ""

    @property
    def active(self) -> list[str]:
        """Who still trains."""
        others = [method for method in self.methods if method != BASELINE and method not in self.out]
        return [BASELINE, *others] if others else []

    def spent(self) -> tuple[int, float]:
        """Trainings so far, and their seconds."""
        own = [record for (method, _), record in self.records.items() if method not in REFERENCES]
        return len(own), sum(float(record.result["timing"]["seconds"]) for record in own)

    def round(self) -> list[CellSpec]:
        """The runs of the round, the references among them."""
        chosen = [*self.active, *(name for name in REFERENCES if (name, self.seeds[0]) in self.cells)]
        return [self.cells[name, seed] for seed in self.seeds[: self.wanted] for name in chosen]

    def next_seeds(self) -> int:
        """The number of seeds after the next round."""
        done = self.looks[-1] if self.looks else 0
        return min(next((look for look in LOOKS if look > done), len(self.seeds)), len(self.seeds))

    def grid_rows(self, running: Collection[str], done: Collection[str] = ()) -> list[tuple[str, str, str]]:
        """Per method: its name, a sign for each seed and how it stands.

        The signs: + finished, > running, . in this round, - perhaps later, blank: not needed.

        Args:
            running: keys of the runs that are being trained.
            done: keys of runs that finished in this round.
        """
        rows = []
        for method in self.methods:
            signs = ""
            for number, seed in enumerate(self.seeds):
                key = self.cells[method, seed].key
                if (method, seed) in self.records or key in done:
                    signs += "+"
                elif key in running:
                    signs += ">"
                else:
                    signs += " " if method in self.out or self.ended else "." if number < self.wanted else "-"
            rows.append((method, signs, self.out.get(method, "baseline" if method == BASELINE else "in the race")))
        return rows


@dataclass(frozen=True)
class RaceResult:
    """How a race ended.

    Attributes:
        lanes: one for each comparison.
        budget: what it was allowed.
        possible: trainings of the full grid.
    """

    lanes: tuple[Lane, ...]
    budget: Budget
    possible: int

    @property
    def spent(self) -> tuple[int, float]:
        """Trainings, and their seconds."""
        each = [lane.spent() for lane in self.lanes]
        return sum(runs for runs, _ in each), sum(seconds for _, seconds in each)

    def holds(self, key: str) -> bool:
        """Whether a run is among those that lanes have taken up."""
        return any(record.spec.key == key for lane in self.lanes for record in lane.records.values())

    def lines(self) -> list[str]:
        """In words: what was spent, and for each comparison who is out, when and why."""
        runs, seconds = self.spent
        share = f"{100 * runs / max(self.possible, 1):.0f} % of the {self.possible} runs of the full grid"
        lines = [f"Race: {self.budget.words(runs, seconds)}, {share}."]
        for lane in self.lanes:
            rounds = ", ".join(map(str, lane.looks)) or "none"
            lines.append(f"{lane.title}: rounds at {rounds} seeds; {lane.ended or 'no method is left'}.")
            lines += [
                f"  {method_title(method)}: {lane.out.get(method, 'not decided')}"
                for method in lane.methods
                if method != BASELINE
            ]
        return lines


def lanes_of(cells: Sequence[CellSpec]) -> list[Lane]:
    """The races of planned runs, one for each comparison."""
    lanes: dict[str, Lane] = {}
    for cell in cells:
        title = f"{cell.name}, {cell.title}"
        lane = lanes.setdefault(cell.group_key, Lane(title, {}, [], []))
        lane.cells[cell.label, cell.seed] = cell
        if cell.seed not in lane.seeds:
            lane.seeds.append(cell.seed)
        if cell.label not in lane.methods and cell.method not in REFERENCES:
            lane.methods.append(cell.label)
    return list(lanes.values())


def race(
    cells: Sequence[CellSpec],
    records: Records,
    engine: Engine,
    view: LiveView,
    budget: Budget,
    *,
    level: float,
    equal_within: float,
    retry_failed: bool = False,
) -> tuple[RaceResult, ScheduleOutcome]:
    """Run a race.

    Args:
        cells: all runs there may be.
        records: the folder, made before.
        engine: where they run; closed at the end.
        view: shows what happens.
        budget: what it may cost.
        level: of the verdicts.
        equal_within: points of the main metric that count as no difference.
        retry_failed: try runs again that failed before.

    Raises:
        OptionError: the budget is too small for the first round.
    """
    lanes = lanes_of(cells)
    fine_tuned = sum(cell.method not in REFERENCES for cell in cells)
    result = RaceResult(tuple(lanes), budget, fine_tuned)
    check_first_round(lanes, budget)
    outcome = ScheduleOutcome()
    view.race = result
    try:
        while True:
            for lane in lanes:
                choose_round(lane, result)
            going = [lane for lane in lanes if not lane.ended]
            if not going:
                return result, outcome
            known = outcome.finished.keys() | outcome.failed.keys()
            wanted = [cell for lane in going for cell in lane.round() if cell.key not in known]
            done = execute(wanted, records, engine, view, retry_failed=retry_failed, close=False)
            outcome.trained += done.trained
            outcome.failed |= done.failed
            outcome.finished |= done.finished
            for lane in going:
                _after_round(lane, outcome, records, view, level, equal_within)
    finally:
        engine.close()


def check_first_round(lanes: Sequence[Lane], budget: Budget) -> None:
    """Raise `OptionError` if not even the first round fits into a number of runs."""
    need = sum(len(lane.methods) * min(LOOKS[0], len(lane.seeds)) for lane in lanes)
    if budget.runs is not None and budget.runs < need:
        raise OptionError(
            f"budget {budget.runs} runs is too small: the first round, {LOOKS[0]} seeds of each method, has {need} runs"
        )


def choose_round(lane: Lane, result: RaceResult) -> None:
    """Set how many seeds a lane has after its next round, as far as the budget goes; or end it."""
    if lane.ended:
        return
    done = lane.looks[-1] if lane.looks else 0
    lane.wanted = lane.next_seeds()
    if not lane.active:
        lane.ended = "no method is left"
    elif done >= len(lane.seeds):
        lane.ended = f"all {done} seeds are used"
    elif lane.looks:
        # What other lanes of this round will cost is taken off too.
        runs, seconds = result.spent
        running = [
            other for other in result.lanes if not other.ended and other is not lane and other.wanted > _last(other)
        ]
        planned = sum(len(other.active) * (other.wanted - _last(other)) for other in running)
        mean = seconds / max(runs, 1)
        left = math.inf
        if result.budget.runs is not None:
            left = result.budget.runs - runs - planned
        if result.budget.seconds is not None and mean > 0:
            left = min(left, (result.budget.seconds - seconds) / mean - planned)
        affordable = done + (max(0, int(left // len(lane.active))) if math.isfinite(left) else len(lane.seeds))
        lane.wanted = min(lane.wanted, affordable)
        if lane.wanted <= done:
            lane.ended = "the budget is used up"


def _last(lane: Lane) -> int:
    return lane.looks[-1] if lane.looks else 0


def _after_round(
    lane: Lane, done: ScheduleOutcome, records: Records, view: LiveView, level: float, equal_within: float
) -> None:
    """Take up the records of a round, judge, and say who is out."""
    for key, cell in lane.cells.items():
        if cell.key in done.finished:
            lane.records[key] = done.finished[cell.key]
    failed = [failure for cell in lane.cells.values() if (failure := done.failed.get(cell.key)) is not None]
    lane.looks.append(lane.wanted)
    mark = next(iter(lane.cells.values())).group_mark
    if lane.wanted not in records.looks().get(mark, ()):
        records.log("look", comparison=mark, seeds=lane.wanted)
    for method, why in judge(lane, failed, level, equal_within).items():
        lane.out[method] = f"{why}, after {lane.wanted} seeds"
        view.note(f"{lane.title}: {method_title(method)} is out after {lane.wanted} seeds: {why}")


def judge(lane: Lane, failed: Sequence[Failure], level: float, equal_within: float) -> dict[str, str]:
    """Who is out after the rounds so far, and why.

    Args:
        lane: with the records of all its rounds.
        failed: its runs that failed.
        level: of the verdicts.
        equal_within: points of the main metric that count as no difference.
    """
    by_method: dict[str, list[Record]] = {}
    for (method, _), record in sorted(lane.records.items(), key=lambda item: item[0][1]):
        by_method.setdefault(method, []).append(record)
    spec = next(iter(lane.cells.values()))
    if BASELINE not in by_method:
        return dict.fromkeys(lane.active[1:], "plain training failed")
    learning = learned(spec, by_method)
    points = None if spec.task == "regression" else equal_within / 100
    rules = Rules(tuple(lane.looks), points, learning.withheld(BASELINE))
    seeds = {record.spec.seed for record in by_method[BASELINE]}
    order = [BASELINE, *(name for name in by_method if name != BASELINE)]
    shared = [name for name in order if seeds & {record.spec.seed for record in by_method[name]}]
    results = {name: [seed_result(record) for record in by_method[name]] for name in shared}
    metric = PRIMARY[spec.task]
    found = compare(results, BASELINE, [metric], task=spec.task, level=level, apart=REFERENCES, rules=rules)
    out: dict[str, str] = {}
    for method in lane.active[1:]:
        if method not in results or (difference := found.row(method, metric).difference) is None:
            reasons = [failure.reason for failure in failed if failure.spec.label == method]
            out[method] = f"failed ({reasons[0]})" if reasons else "failed"
        elif why := why_out(difference, rules, level, len(lane.methods) - 1, len(lane.seeds), metric):
            out[method] = why
    return out


def why_out(d: Difference, rules: Rules, level: float, family: int, most: int, metric: str) -> str:
    """Why a method trains no more; empty if it goes on."""
    size = f"{100 * d.mean:+.1f} points" if metric != "mse" else f"{d.mean:+.3g}"
    if d.verdict in (BETTER, WORSE, EQUAL):
        return f"{d.verdict} ({size})"
    if d.verdict == WITHHELD:
        return f"{d.verdict}: {d.note.split(';')[0]}"
    if d.seeds >= FUTILE_FROM and chance_of_verdict(d, rules, (1 - level) / max(family, 1), most, 1 - level) < FUTILE:
        return f"{UNSURE} ({size}), and {most} seeds would not decide it"
    return ""


def chance_of_verdict(d: Difference, rules: Rules, rate: float, most: int, each: float = 0.05) -> float:
    """The probability that `most` seeds lead to any verdict, given what was seen.

    The mean after all seeds is predicted from the present one: normal, with the variance that the seeds to come add.

    Args:
        d: the difference so far.
        rules: for the looks so far and what is practically equal.
        rate: the error rate of this method's test for a difference.
        most: seeds at the end.
        each: the error rate of "practically equal".
    """
    from scipy import special

    if most <= d.seeds:
        return 0.0
    own = d.interval.own * d.seeds / most
    error = math.sqrt(own + d.interval.shared)
    spread = math.sqrt(max(d.interval.own * (1 - d.seeds / most), 1e-30))
    if error == 0:
        return 1.0
    df = (most - 1) * (own + d.interval.shared) / own if own > 0 else 1e6
    looks = looks_until(most, [*(rules.looks or ()), *(look for look in LOOKS if d.seeds < look < most)])
    level, level_equal = nominal_level(rate, looks), nominal_level(2 * each, looks)

    def below(value: float) -> float:
        return float(special.ndtr((value - d.mean) / spread))

    reach = float(-special.stdtrit(min(df, 1e6), level / 2)) * error
    different = below(-reach) + 1 - below(reach)
    equal = 0.0
    if rules.equal_within is not None:
        inner = rules.equal_within - float(-special.stdtrit(min(df, 1e6), level_equal / 2)) * error
        equal = below(inner) - below(-inner) if inner > 0 else 0.0
    return min(1.0, different + equal)
