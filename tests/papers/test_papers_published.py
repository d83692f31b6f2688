"""The papers' protocols: the files are sound, and their numbers are those of the papers.

The second half reads the papers' own texts, which are not part of the project: from the folder named by MIXWELL_PAPERS,
or from `shared/papers` beside this checkout. Without them it is skipped.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
from pathlib import Path

import pytest

from mixwell.compare.spec import AUTO, REFERENCES
from mixwell.papers import protocols, schema, sources
from mixwell.utils.errors import DataError, OptionError

NAMES = [
    "amplify-table1", "amplify-table2", "amplify-table3", "amplify-table4", "amplify-figure2", "amplify-figure3",
    "audit", "alpha-sensitivity", "nlu-table2", "nlu-table3", "nlu-table4", "nlu-table5", "nlu-figure2",
    "batchmixup-table1", "batchmixup-figure1", "attentionmix-heads",
    "study-gate", "study-clean", "study-noise", "study-overtrain", "study-few", "study-imbalance",
]  # fmt: skip
FILES = sorted(Path(protocols.__file__).parent.glob("*.toml"))

# --- the files ------------------------------------------------------------------------------------------------------


def test_names():
    assert protocols.names() == NAMES
    assert [file.stem for file in FILES] == ["amplify", "attentionmix", "batchmixup", "nlu", "study"]


def test_unknown_name_suggests():
    with pytest.raises(OptionError, match="did you mean 'amplify-table2'"):
        protocols.get("amplify-tabel2")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", schema.SCALES)
def test_every_scale_can_be_planned(name, scale):
    experiment = protocols.get(name)
    runs = experiment.runs(scale)
    if not experiment.trained:
        assert runs == []
        assert experiment.figure_parameters(scale)
        return
    assert runs
    assert len({(r.dataset, r.size, r.row, r.seed) for r in runs}) == len(runs)
    json.dumps([dataclasses.asdict(run) for run in runs])
    if scale == "smoke":
        assert {run.dataset for run in runs} == {"sample"}
        assert {run.model for run in runs} == {"tiny"}
        assert len(runs) <= 8
    if scale == "small":
        assert {run.model for run in runs} == {"minilm"}
        assert all(run.test_rows is not None and run.test_rows <= 1000 for run in runs)
        assert all(experiment.dataset(run.dataset).key not in ("yelp5", "boolq") for run in runs)
    if scale == "full":
        assert all(run.test_rows is None for run in runs)


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_those_of_training(name):
    from mixwell.training.settings import TrainSettings

    for scale in schema.SCALES:
        for run in protocols.get(name).runs(scale):
            if run.method in (*REFERENCES, AUTO):
                continue
            TrainSettings(data="x", method=run.method, method_options=run.options, **run.settings).check()


def test_metric_directions():
    from mixwell.metrics.scores import METRICS

    for metric, higher in schema.METRICS.items():
        assert metric not in METRICS or METRICS[metric].higher_is_better == higher


def test_blocks_scale_with_depth():
    table = protocols.get("amplify-table4")
    layers = {run.row: run.options.get("layers") for run in table.runs("full")}
    assert [layers[row] for row in ("Input layer", "Middle layer", "Last layer")] == [[3], [7], [11]]
    layers = {run.row: run.options.get("layers") for run in table.runs("small")}
    assert [layers[row] for row in ("Input layer", "Middle layer", "Last layer")] == [[1], [3], [5]]
    assert protocols.get("amplify-table2").row("TMix").options_at(12, 12)["layers"] == [6, 8, 11]
    with pytest.raises(OptionError, match="depth"):
        table.runs("full", model="someone/else")
    assert table.runs("full", model="someone/else", depth=24)[0].options["layers"] == [7]


def test_data_sets_bring_their_own_settings():
    runs = {(run.dataset, run.row): run for run in protocols.get("nlu-table4").runs("full")}
    assert runs["cola", "CLS"].options["alpha"] == 0.75
    assert runs["cola", "CLS"].settings["best_metric"] == "mcc"
    assert runs["rte", "CLS"].options["alpha"] == 1.0
    assert runs["rte", "CLS"].settings["learning_rate"] == 3e-5
    assert runs["boolq", "Base"].settings["max_length"] == 256
    assert "alpha" not in runs["cola", "Base"].options
    assert ("rte", "Input") not in runs


def test_the_issue_s_rows():
    rows = {row.label: row for row in protocols.get("amplify-table2").rows}
    assert rows["AMPLIFY, consistent"].options["consistent"] is True
    assert rows["AMPLIFY, padding kept"].options["padding"] == "keep"
    audit = protocols.get("audit").rows
    assert {row.method for row in audit if row.fault == "label_permutation"} == {"embedmix", "sentencemix", "tmix"}
    draws = {row.label: row.draws for row in protocols.get("batchmixup-table1").rows}
    assert draws["w/ MIXUP"] == draws["w/ Nonlinear Mixup"] == 15
    assert draws["w/ BATCHMIXUP"] == 1
    said = " ".join(item.what for name in NAMES for item in protocols.get(name).not_run)
    for what in ("BoolQ", "YELP-5", "DistilBERT", "BERT base"):
        assert what in said


def test_faulty_and_correct_row_differ_in_the_fault_only():
    audit = protocols.get("audit")
    for row in audit.rows:
        if row.fault:
            twin = audit.row(row.label.removesuffix(", labels as published"))
            assert (row.method, row.options, row.blocks) == (twin.method, twin.options, twin.blocks)


# Pairs in which a paper's own table does not bear out its claim.
CONTRADICTED = {
    ("amplify-table3", "AMPLIFY", "No mixup", "sst2", "full"),
    ("amplify-table3", "AMPLIFY", "No mixup", "trec_coarse", "full"),
    ("nlu-table2", "Mani", "Base", "imdb", "full"),
    ("nlu-table2", "Mani", "CLS", "imdb", "full"),
    ("nlu-table3", "CLS", "Base", "agnews", "full"),
    ("nlu-table3", "Mani", "Base", "agnews", "full"),
    ("nlu-table3", "Mani", "CLS", "agnews", "full"),
    ("nlu-table3", "Input", "CLS", "agnews", "32"),
    ("nlu-table3", "Mani", "CLS", "agnews", "32"),
    ("batchmixup-table1", "w/ BATCHMIXUP", "w/ MIXUP", "entailment", "1%"),
}


def test_claims_against_the_published_numbers():
    found = set()
    for name in NAMES:
        experiment = protocols.get(name)
        for claim in experiment.claims:
            values = experiment.values(claim.metric, of=claim.of)
            for verdict in claim.judge(values):
                if verdict.holds is False:
                    found.add((name, verdict.above, verdict.below, verdict.dataset, verdict.size))
                if claim.difference is not None:
                    assert verdict.difference == pytest.approx(claim.difference)
                if claim.ratio is not None and values:
                    above, below = (
                        values[row, verdict.dataset, verdict.size] for row in (verdict.above, verdict.below)
                    )
                    assert below / above == pytest.approx(claim.ratio, abs=0.05)
    assert found == CONTRADICTED


def test_judging_measured_numbers():
    claim = schema.Claim("a is better", "nll", datasets=("d",), sizes=("full",), above=("a",), below=("b", "c"))
    first, second = claim.judge({("a", "d", "full"): 0.4, ("b", "d", "full"): 0.5})
    assert (first.difference, first.holds) == (0.1, True)
    assert (second.difference, second.holds) == (None, None)
    assert claim.judge({("a", "d", "full"): 0.5, ("b", "d", "full"): 0.5})[0].holds is False


def test_derived_numbers_of_the_papers():
    """Their mean column and row; the one slip is noted in the file."""
    table = protocols.get("amplify-table1")
    values = table.values()
    for row in ("1", "3", "5", "7", "9", "20"):
        single = [values[row, data.key, "full"] for data in table.datasets if data.derived is None]
        assert len(single) == 7
        assert values[row, "mean", "full"] == pytest.approx(sum(single) / 7, abs=0.0051)
    table = protocols.get("amplify-table4")
    for of, slips in (("value", set()), ("spread", {"trec_coarse"})):
        values = table.values(of=of)
        wrong = set()
        for data in table.datasets:
            three = [values[f"{row} layer", data.key, "full"] for row in ("Input", "Middle", "Last")]
            if abs(values["Mean", data.key, "full"] - sum(three) / 3) > 0.0051:
                wrong.add(data.key)
        assert wrong == slips


def test_no_path_of_a_machine():
    for file in FILES:
        assert not re.search(r"(?<![\w.:/])/(work|tmp|home|root|Users|mnt)\b", file.read_text(encoding="utf-8"))


# --- wrong files ----------------------------------------------------------------------------------------------------

GOOD = """
[paper]
key = "p"
title = "t"
authors = "a"
reference = "r"
text = "full"
[models.m]
title = "m"
source = "o/m"
blocks = 12
heads = 12
[datasets.d]
title = "D"
folder = "d"
[experiments.e]
kind = "table"
number = "Table 1"
title = "t"
shows = "s"
model = "m"
datasets = ["d"]
sizes = ["full"]
seeds = 2
spread_kind = "standard deviation"
training = { epochs = 1 }
rows = [{ label = "plain", method = "none" }]
[[experiments.e.published]]
columns = ["d"]
[experiments.e.published.values]
plain = ["81.20 ± 0.4"]
"""


def read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return protocols.load(path)


def test_good_file(tmp_path):
    (experiment,) = read(tmp_path, GOOD)
    number = experiment.published[0]
    assert (number.value, number.spread, number.printed) == (81.2, 0.4, "81.20 ± 0.4")
    assert len(experiment.runs()) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('key = "p"', 'key = "p"\ncolour = 1', r"mine.toml: paper: key 'colour' is unknown"),
        ("seeds = 2", "sedes = 2", r"experiments.e: key 'sedes' is unknown \(did you mean 'seeds'"),
        ("epochs = 1", "epoch = 1", r"experiments.e.training: key 'epoch' is unknown \(did you mean 'epochs'"),
        ('title = "D"', "", r"datasets.d: key 'title' is missing"),
        ('folder = "d"', "", r"datasets.d: needs a folder or a hub id"),
        ('folder = "d"', 'folder = "d"\nsplits = { train = "trian" }', r"splits.train: split 'trian' is unknown"),
        ('kind = "table"', 'kind = "tabel"', r"kind 'tabel' is unknown"),
        ('datasets = ["d"]', 'datasets = ["x"]', r"data set 'x' is unknown"),
        ('columns = ["d"]', 'columns = ["x"]', r"published\[0\]: data set 'x' is unknown"),
        ('plain = ["81', 'plian = ["81', r"row 'plian' is unknown \(did you mean 'plain'"),
        ('"81.20 ± 0.4"', '"81.20 +- 0.4"', r"must read like"),
        ('"81.20 ± 0.4"', '"1", "2"', r"2 numbers for 1 columns"),
        ('sizes = ["full"]', 'sizes = ["all"]', r"size"),
        ("seeds = 2", 'seeds = "2"', r"experiments.e.seeds: must be of type int"),
        ('spread_kind = "standard deviation"', "", r"'spread_kind' is missing"),
        ('method = "none"', 'method = ""', r"needs either 'method' or 'derived'"),
        ("[paper]", "[paper", r"mine.toml: not a TOML file"),
        ("seeds = 2", 'seeds = 2\nscales.small.rows = ["x"]', r"scales.small.rows: row 'x' is unknown"),
        ("seeds = 2", 'seeds = 2\nclaims = [{ says = "s", above = ["x"] }]', r"claims\[0\]: row 'x' is unknown"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path, old, new, message):
    assert old in GOOD
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert str(caught.value).startswith("mine.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('method = "nope"', "method 'nope' is unknown"),
        ('method = "amplify", options = { alhpa = 1 }', "no option 'alhpa'"),
        ('method = "amplify", options = { padding = "x" }', "padding='x'"),
    ],
)
def test_methods_must_take_their_options(tmp_path, row, message):
    (experiment,) = read(tmp_path, GOOD.replace('method = "none"', row))
    with pytest.raises(OptionError, match=message):
        experiment.runs()


# --- where the data are ---------------------------------------------------------------------------------------------


def put(folder, split, rows=40):
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as stream:
        for at in range(rows):
            stream.write(json.dumps({"text": f"{split} {at}", "label": "ab"[at % 2]}) + "\n")


def test_locating_says_what_is_missing(tmp_path):
    boolq = protocols.get("nlu-table4").dataset("boolq")
    assert "no folder" in sources.locate(boolq, tmp_path).problem
    assert "google/boolq" in sources.locate(boolq, None).problem
    put(tmp_path / "boolq", "validation")
    problem = sources.locate(boolq, tmp_path).problem
    assert "validation.jsonl.gz" in problem
    assert "add train (CSV" in problem
    put(tmp_path / "boolq", "train")
    assert sources.locate(boolq, tmp_path).problem is None


def test_located_data_are_cut_as_the_protocol_says(tmp_path):
    def sizes(name, key):
        dataset = protocols.get(name).dataset(key)
        rest = {"seed": 0, "validation_rows": None, "test_rows": None, "folder": tmp_path / name}
        cut = sources.prepare(dataset, sources.locate(dataset, tmp_path), **rest).load().splits
        return {split: len(rows) for split, rows in cut.items()}

    for split, rows in (("train", 80), ("validation", 20)):
        put(tmp_path / "rte", split, rows)
    assert sizes("nlu-table4", "rte") == {"train": 72, "validation": 8, "test": 20}
    put(tmp_path / "imdb", "train", 80)
    put(tmp_path / "imdb", "test", 20)
    assert sizes("amplify-table2", "imdb") == {"train": 60, "validation": 20, "test": 20}
    assert sources.locate(protocols.get("nlu-table2").dataset("imdb"), tmp_path).validation_from_test == 3200
    assert sizes("audit", "sample")["train"] == 720


# --- against the papers' texts ---------------------------------------------------------------------------------------


def text_of(name):
    given = os.environ.get("MIXWELL_PAPERS")
    checkout = Path(__file__).resolve().parents[2]
    places = [Path(given)] if given else [up / "shared" / "papers" for up in (checkout.parent, checkout.parent.parent)]
    for place in places:
        if (place / name).is_file():
            return (place / name).read_text(encoding="utf-8")
    return pytest.skip(f"the paper's text {name} is not here: set MIXWELL_PAPERS to the folder that has it")


def ours(name, **wanted):
    """Published numbers as (row, data set, size, metric) -> (value, spread), in print."""
    numbers = protocols.get(name).published
    return {
        (n.row, n.dataset, n.size, n.metric): tuple(n.printed.split(" ± "))
        for n in numbers
        if all(getattr(n, key) == value for key, value in wanted.items())
    }


def plain(cell):
    """A cell of the AMPLIFY and BatchMixup texts without bold print, mathematics and blanks."""
    cell = re.sub(r"</?(b|math)>|\$", "", cell).replace(r"\pm", "±")
    return tuple(part.strip() for part in cell.split("±"))


def lines_before(text, caption):
    """The lines with tabs that stand right above a caption."""
    rows = []
    for line in reversed(text[: text.index(caption)].splitlines()):
        if "\t" in line:
            rows.insert(0, line.split("\t"))
        elif rows:
            return rows
    return rows


@pytest.mark.parametrize(("number", "count"), [(1, 48), (2, 35), (3, 14), (4, 28)])
def test_amplify_tables(number, count):
    rows = lines_before(text_of("amplify.txt"), f"Table {number}. The" if number != 2 else "Table 2. Comparison")
    keys = {
        "MRPC": "mrpc", "SST-2": "sst2", "SST-5": "sst5", "TREC-fine": "trec_fine", "TREC-coarse": "trec_coarse",
        "coarse": "trec_coarse", "fine": "trec_fine", "IMDB": "imdb", "YELP-5": "yelp5", "mean": "mean",
    }  # fmt: skip
    if number == 1:
        header, body = [plain(cell)[0] for cell in rows[0][1:]], rows[1:]
    else:
        assert rows[0][-1] == "IMDB"  # the last column has its name in the line of groups
        header, body = [*rows[1][1:7], "IMDB"], rows[2:]
    printed = {
        (row[0], keys[column], "full", "accuracy"): plain(cell) for row in body for column, cell in zip(header, row[1:])
    }
    assert printed == ours(f"amplify-table{number}")
    assert len(printed) == count


def test_amplify_statements():
    text = text_of("amplify.txt")
    saved = re.search(r"saves (\d+)s, (\d+)s, and (\d+)s compared to EmbedMix, SentenceMix, and TMix", text)
    values = protocols.get("amplify-figure3").values("seconds_saved")
    assert [float(x) for x in saved.groups()] == [
        values[row, "mrpc", "full"] for row in ("EmbedMix", "SentenceMix", "TMix")
    ]
    table = protocols.get("amplify-table2")
    gains = re.search(r"is ([\d.]+)% higher than the baseline, and ([\d.]+)%, ([\d.]+)%, and ([\d.]+)% higher", text)
    lower = re.search(r"variance is reduced by ([\d.]+)\..* by ([\d.]+), ([\d.]+), and ([\d.]+), respectively", text)
    rows = ("No mixup", "EmbedMix", "SentenceMix", "TMix")
    claimed = {(c.of, c.datasets, c.below): c.difference for c in table.claims if c.difference is not None}
    for of, data, found in (("value", "mrpc", gains), ("spread", "trec_fine", lower)):
        assert [claimed[of, (data,), (row,)] for row in rows] == [float(x) for x in found.groups()]
    settings = table.training
    for value, phrase in (
        (settings["learning_rate"] == 2e-5, "learning rate of 2e-5"),
        (settings["adam_epsilon"] == 1e-8, "EPS of 1e-8"),
        (settings["weight_decay"] == 0.01, "weight decay coefficient of 0.01"),
        (settings["batch_size"] == 32, "batch size of 32"),
        (settings["max_length"] == 256, "maximum sequence length of 256"),
        (settings["epochs"] == 15, "maximum epochs of 15"),
        (settings["patience"] == 5, "patience of 5"),
        (settings["warmup"] == 0.1, "accounting for 10% of the total"),
        (settings["scheduler"] == "cosine", "using cosine learning rate"),
        (table.seeds == 3, "uses 3 different random seeds"),
        (table.spread_kind.startswith("variance"), "mean and variance of the results"),
    ):
        assert value
        assert phrase in text


CELL = r"([\d.]+)± ([\d.]+)"


@pytest.mark.parametrize(("number", "count"), [(2, 24), (3, 24), (4, 24)])
def test_nlu_tables(number, count):
    text = text_of("mixup-for-nlu.txt")
    body = text[: text.index(f"Table {number}: ")]
    body = body[body.rindex("Task Model" if number == 4 else "Size Model") :]
    keys = {"CoLA": ("cola", "full"), "RTE": ("rte", "full"), "BoolQ": ("boolq", "full")}
    if number != 4:
        keys = {size: ({2: "imdb", 3: "agnews"}[number], size.lower()) for size in ("Full", "32")}
    printed, place = {}, ("", "")
    for line in re.findall(rf"^(?:(\w+) )?(Base|CLS|Input|Mani?) {CELL} {CELL} {CELL}$", body, re.MULTILINE):
        first, row, *cells = line
        place = keys[first] if first else place
        metrics = ("mcc" if place[0] == "cola" else "accuracy", "nll", "ece")
        for at, metric in enumerate(metrics):
            label = "Mani" if row == "Man" else row
            printed[(label, *place, metric)] = (cells[2 * at], cells[2 * at + 1])
    assert printed == ours(f"nlu-table{number}")
    assert len(printed) == count
    assert re.search(rf"Table {number}: [^.]*(\.[^.]*)*?Standard errors over five runs", text)
    assert protocols.get(f"nlu-table{number}").seeds == 5


def test_nlu_padding_table():
    text = text_of("mixup-for-nlu.txt")
    body = text[text.index("Type Accuracy") : text.index("Table 5: ")]
    # Bold print comes out of the extraction three times over: only the first number of a line counts.
    found = re.findall(r"^(No Pad|(?:unused|SEP|PAD) \((?:pair|max)\)) (\d+\.\d\d)± (\d\.\d)", body, re.MULTILINE)
    printed = {(row, "sst2", "64", "accuracy"): (value, spread) for row, value, spread in found}
    assert printed == ours("nlu-table5")
    assert len(printed) == 7
    assert "random sample of 64 training samples" in " ".join(text.split())


def test_nlu_sizes_and_settings():
    text = text_of("mixup-for-nlu.txt")
    data = {key: protocols.get(name).dataset(key) for name, key in (
        ("nlu-table2", "imdb"), ("nlu-table3", "agnews"), ("nlu-table4", "cola"), ("nlu-table4", "rte"),
        ("nlu-table4", "boolq"),
    )}  # fmt: skip
    sizes = re.findall(r"^(\w+) (Accuracy|Matt Corr) (\d+) (\d+) (\d+)$", text, re.MULTILINE)
    assert len(sizes) == 5
    for title, metric, *counts in sizes:
        found = data[title.lower()]
        assert [found.published[split] for split in schema.SPLITS] == [int(count) for count in counts]
        assert found.metric == ("mcc" if metric == "Matt Corr" else "accuracy")
    settings = re.findall(r"^(\w+) (\d)E . (\d) (\d+) (\d+) ([\d.]+) (\d+) ([\d.]+)$", text, re.MULTILINE)
    assert len(settings) == 5
    for title, digit, power, batch, epochs, dropout, length, alpha in settings:
        found = data[title.lower()]
        assert found.training == {
            "learning_rate": float(f"{digit}e-{power}"), "batch_size": int(batch), "epochs": int(epochs),
            "dropout": float(dropout), "max_length": int(length),
        }  # fmt: skip
        assert found.options == {"alpha": float(alpha)}


def test_batchmixup_table():
    text = text_of("batchmixup.txt")
    rows = lines_before(text, "Table 1: Experimental")
    header = rows[0][-3:]
    assert header == ["entailment", "relation", "intent"]
    printed, size = {}, ""
    for row in rows[1:]:
        *_, label, first, second, third = row
        size = row[0] if row[0].endswith("%") else size
        place = "100%" if "baseline" in row[0] else size
        for column, cell in zip(header, (first, second, third)):
            printed[label or row[0], column, place, "accuracy"] = plain(cell)
    assert printed == ours("batchmixup-table1", metric="accuracy")
    assert len(printed) == 5 * 4 * 3 + 3
    times = re.search(
        r"both take about ([\d.]+)min .* will take\s+\$\\sim (\d+)\$ mins if .* sampled (\d+) times", text
    )
    short, long, draws = times.groups()
    table = protocols.get("batchmixup-table1")
    assert ours("batchmixup-table1", metric="minutes_per_epoch") == {
        (row, "entailment", "100%", "minutes_per_epoch"): (time,)
        for row, time in (
            ("RoBERTa-large", short), ("w/ MIXUP", long), ("w/ Nonlinear Mixup", long), ("w/ BATCHMIXUP", short),
        )
    }  # fmt: skip
    assert table.row("w/ MIXUP").draws == table.row("w/ Nonlinear Mixup").draws == int(draws)
    sizes = re.search(r"has ([\d,]+)/([\d,]+)/([\d,]+) examples in train/dev/test", text).groups()
    assert [int(size.replace(",", "")) for size in sizes] == [
        table.dataset("entailment").published[split] for split in schema.SPLITS
    ]
    figure = protocols.get("batchmixup-figure1").figure_parameters()
    assert f"{figure['shots']}-shot" in text
    assert f"trained {figure['epochs']} epochs" in text


def test_attentionmix_summary():
    text = text_of("attentionmix-summary.txt")
    experiment = protocols.get("attentionmix-heads")
    assert experiment.published == ()
    assert f"{experiment.training['epochs']} epochs" in text
    ratio = next(claim.ratio for claim in experiment.claims if claim.metric == "time_ratio")
    assert f"~{round((ratio - 1) * 100)}% training time" in text


def prose(value, key=""):
    """The words of every text in a TOML file, titles aside."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from prose(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from prose(inner)
    elif isinstance(value, str) and key != "title":
        yield re.findall(r"[a-z]+", value.lower())


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("amplify.toml", "amplify.txt"),
        ("nlu.toml", "mixup-for-nlu.txt"),
        ("batchmixup.toml", "batchmixup.txt"),
        ("attentionmix.toml", "attentionmix-summary.txt"),
    ],
)
def test_no_sentence_is_copied(file, text):
    """No seven words in a row are the paper's, titles aside."""
    words = re.findall(r"[a-z]+", text_of(text).lower())
    theirs = {tuple(words[at : at + 7]) for at in range(len(words) - 6)}
    for mine in prose(protocols.tomllib.loads((Path(protocols.__file__).parent / file).read_text(encoding="utf-8"))):
        copied = [mine[at : at + 7] for at in range(len(mine) - 6) if tuple(mine[at : at + 7]) in theirs]
        assert not copied, f"{file}: {' '.join(copied[0])}"
