"""`mixwell paper`: every protocol end to end at scale smoke, and what stands in its tables."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parts
from mixwell.cli import main
from mixwell.compare.records import Records
from mixwell.metrics.measure import measure
from mixwell.papers import output, packs, pictures, planning, protocols, results, runner, sources, tables
from mixwell.papers.differences import FAILS, HOLDS, PARTLY, UNKNOWN, UNSURE, PairedDifferences
from mixwell.papers.experiment import Request
from mixwell.papers.markdown import markdown
from mixwell.papers.results import MeasuredRun, Outputs, Results
from mixwell.papers.run_file import anonymous
from mixwell.papers.schema import SplitPart
from mixwell.utils.errors import DataError, OptionError, RunError
from sharing import only_one, shared_folder

NAMES = [
    "amplify-table1", "amplify-table2", "amplify-table3", "amplify-table4", "amplify-figure2", "amplify-figure3",
    "nlu-table2", "nlu-table3", "nlu-table4", "nlu-table5", "nlu-figure2", "batchmixup-table1", "batchmixup-figure1",
    "attentionmix-heads", "audit", "alpha-sensitivity",
    "study-gate", "study-clean", "study-noise", "study-overtrain", "study-few", "study-imbalance",
]  # fmt: skip
FAST = ("--scale", "smoke", "--workers", "0", "--threads", "1", "--quiet")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a protocol at scale smoke, once; what that prints is no output of the test that happens to be the first."""
    place = shared_folder(tmp_path_factory, "papers")

    def run(name: str) -> Path:
        with only_one(place / f"{name}.lock"):
            if not (place / name).exists():
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                    code = main(["paper", "run", name, *FAST, "--output", str(place / name)])
                assert code == 0, printed.getvalue()
        return place / name

    return run


# --- list and show ----------------------------------------------------------------------------------------------------


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(protocols.names()) == sorted(NAMES)
    assert main(["paper", "list"]) == 0
    found = capsys.readouterr().out
    assert all(name in found for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_show(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "show", name]) == 0
    found = capsys.readouterr().out
    experiment = protocols.get(name)
    assert experiment.number.removeprefix("none: ") in found and (
        "grid at scale small" in found or "parameters at scale small" in found
    )
    assert all(number.printed in found for number in experiment.published)
    assert "chosen on validation" in found or not experiment.trained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "amplify-tabel1"], "did you mean 'amplify-table1'?"),
        (["show", "audit", "--scale", "big"], "scale 'big' is unknown"),
        (["run", "nothing"], "paper experiment 'nothing' is unknown"),
        (["run", "audit", *FAST, "--rows", "EmbdMix"], "did you mean 'EmbedMix'?"),
        (["run", "audit", *FAST, "--only", "mrpc"], "data set 'mrpc' is not in this run"),
        (["run", "audit", *FAST, "--seeds", "0"], "--seeds must be at least 1"),
        (["run", "amplify-figure2", *FAST, "--seeds", "0"], "it is drawn from parameters alone"),
        (["run", "amplify-figure2", *FAST, "--packed", "nowhere"], "--packed does not go with amplify-figure2"),
        (["run", "audit", *FAST, "--data", __file__], "is a file; name the folder that has one folder"),
        (["run", "audit", *FAST, "--records", __file__], "--records"),
        (["run", "audit", *FAST, "--packed", "nowhere"], "nowhere: not the folder of a paper's run; name what"),
        (["run", "nothing", "--tables-only"], "paper experiment 'nothing' is unknown"),
        (["run", "audit", "--scale", "big", "--tables-only"], "scale 'big' is unknown"),
        (["run", "audit", *FAST, "--output", "/proc/x"], "/proc/x"),
        (["run", "audit", *FAST, "--model", "no/where/at"], "model no/where/at: no such folder"),
        (["table", "nowhere"], "not the folder of a paper's run"),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--output", str(tmp_path / "out")] if words[0] == "run" and "--output" not in words else []
    assert main(["paper", *words, *more]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and message in errors[0]


def test_missing_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rte").mkdir()
    (tmp_path / "rte" / "train.jsonl").write_text('{"text": "a", "label": "b"}\n')
    words = ["paper", "run", "nlu-table4", "--scale", "small", "--model", "tiny", "--workers", "0", "--quiet"]
    assert main([*words, "--data", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"CoLA: there is no folder {tmp_path / 'cola'}" in error and "nyu-mll/glue:cola" in error
    assert "has train.jsonl; add validation" in error
    assert not (tmp_path / "out" / "run.json").exists()


# --- every protocol ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", parts.some(NAMES, 2))
def test_smoke(name: str, smoke: Any) -> None:
    folder, experiment = smoke(name), protocols.get(name)
    text = (folder / "table.md").read_text()
    assert experiment.title in text and f"mixwell paper run {name} --scale smoke" in text
    assert (folder / "figure.svg").is_file() == (experiment.kind == "figure")
    if not experiment.trained:
        assert "numbers" in json.loads((folder / "figure.json").read_text())
        return
    made = json.loads((folder / "table.json").read_text())
    runs = experiment.runs("smoke")
    assert made["trained"] == len(runs) and not made["failed"] and not made["missing"]
    assert {cell["row"] for cell in made["cells"] if not cell.get("derived")} == {run.row for run in runs}
    assert len(made["claims"]) == len(experiment.claims)
    assert "validation" in made["best_epoch"] and "never on test" in text
    assert "says nothing about the paper" in text and made["not_run"]
    for cell in made["cells"]:
        assert cell["mean"] is not None and math.isfinite(cell["mean"])
    # One seed decides nothing.
    assert {claim["verdict"] for claim in made["claims"]} <= {UNSURE, UNKNOWN}


def test_tables_come_from_records_alone(smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(smoke("nlu-figure2"), folder)
    names = ("table.json", "table.md", "figure.svg")
    before = {name: (folder / name).read_bytes() for name in names}
    for name in names:
        (folder / name).unlink()
    assert main(["paper", "table", str(folder)]) == 0
    assert {name: (folder / name).read_bytes() for name in names} == before
    # A pack has the same tables, but for the user's paths.
    assert main(["paper", "pack", str(folder), str(tmp_path / "pack")]) == 0
    assert "MB" in capsys.readouterr().out
    packed, whole = (json.loads((at / "table.json").read_text()) for at in (tmp_path / "pack", folder))
    assert packed.pop("commands") != whole.pop("commands") and packed == whole
    assert (tmp_path / "pack" / "figure.svg").read_bytes() == before["figure.svg"]
    first = next(iter(protocols.get("nlu-figure2").runs("smoke")))
    content = b"".join(file.read_bytes() for file in (tmp_path / "pack").iterdir())
    assert str(tmp_path).encode() not in content and str(folder).encode() not in content and first.seed == 0
    with open(Path(sources.__file__).parents[1] / "data" / "sample" / "test.csv", encoding="utf-8") as stream:
        texts = [line.split(",")[0].strip('"') for line in stream][1:50]
    assert not any(text.encode() in content for text in texts if len(text) > 15)


def test_the_picture_shows_differences_with_intervals(smoke: Any) -> None:
    made = output.write(smoke("amplify-table3"))
    for name in pictures.NAMES:
        assert (smoke("amplify-table3") / name).is_file()
        assert f"({name})" in (smoke("amplify-table3") / "table.md").read_text()
    bare = [{**cell, "difference": None} for cell in made["cells"]]
    assert pictures.differences({**made, "cells": bare}) is None
    assert pictures.temperature({**made, "cells": [cell for cell in bare if cell["metric"] != "nll_after"]}) is None
    for cell in made["cells"]:
        if cell["difference"] is not None:
            cell["difference"] |= {"mean": -1.5, "lo": -2.0, "hi": -1.0}
        cell["published_value"] = 80.0 + (cell["row"] != made["plain"])
    shown = pictures.panels(made)
    rows = {cell["row"] for cell in made["cells"]} - {made["plain"]}
    assert [{bar.label for bar in bars} for bars in shown.values()] == [rows]
    assert all(bar.published == 1.0 and (bar.mean, bar.lo, bar.hi) == (-1.5, -2.0, -1.0) for bar in shown["sample, 96"])
    assert all(picture.lstrip().startswith("<?xml") for picture in pictures.draw(made).values())


def change(lines: list[Any], name: str) -> list[Any]:
    """The lines of cells.jsonl after something happened to them."""
    first = json.loads(json.dumps(lines[0]))
    if name == "another seed":
        first["identity"]["seed"] = 5
    if name == "a better accuracy":
        first["result"]["test"]["before"]["accuracy"] = 0.95
    if name == "a better loss":
        first["result"]["test"]["before"]["nll"] -= 0.1
    if name in ("outputs", "result", "identity", "key"):
        del first[name]
    return {"a list": [[1]], "lost": []}.get(name, [first]) + lines[1:]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("another seed", "does not belong to its record"),
        ("a better accuracy", "does not belong to its record"),
        ("a better loss", "does not belong to its record"),
        ("lost", "1 of 2 trainings are not in cells.jsonl"),
        *((name, "the pack is damaged") for name in ("outputs", "result", "identity", "key", "a list")),
    ],
)
def test_a_changed_pack_is_refused(
    name: str, message: str, smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = packs.pack(smoke("amplify-table3"), tmp_path / "pack")
    assert results.read(path).runs
    lines = [json.loads(line) for line in (path / "cells.jsonl").read_text().splitlines()]
    (path / "cells.jsonl").write_text("".join(json.dumps(line) + "\n" for line in change(lines, name)))
    assert main(["paper", "table", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["records", "cells", "scale", "request", "missing", "experiment", "dataset"])
def test_a_damaged_run_json_is_named(name: str, smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = packs.pack(smoke("amplify-table3"), tmp_path / "pack")
    run = json.loads((path / "run.json").read_text())
    if name == "dataset":
        run["cells"][0][name] = "elsewhere"
    else:
        del run[name]
    (path / "run.json").write_text(json.dumps(run))
    for words in (["table"], ["rerun"], ["run", "audit", *FAST, "--output", str(tmp_path / "out"), "--packed"]):
        assert main(["paper", *words, str(path)]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert "run.json: damaged" in error or "experiment 'None' is unknown" in error


def test_a_pack_takes_nothing_elses_place(smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, figure = smoke("amplify-table3"), smoke("amplify-figure2")
    packed, drawn = packs.pack(run, tmp_path / "table"), packs.pack(figure, tmp_path / "figure")
    copy = tmp_path / "copy"
    shutil.copytree(smoke("audit"), copy)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text("mine")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    capsys.readouterr()
    for source, target, message in (
        (run, drawn, "has experiment amplify-figure2, not amplify-table3"),
        (figure, packed, "has experiment amplify-table3, not amplify-figure2"),
        (smoke("audit"), packed, "has experiment amplify-table3, not audit"),
        (smoke("audit"), copy, "is the folder of a run, not a pack"),
        (run, tmp_path / "notes", "is not empty and no pack"),
        (run, tmp_path / "odd", "damaged"),
        (run, "/proc/x", "/proc/x"),
    ):
        for more in ([], ["--add"]) if target != "/proc/x" else ([],):
            assert main(["paper", "pack", str(source), str(target), *more]) == 2
            (error,) = capsys.readouterr().err.splitlines()
            assert message in error
    assert main(["paper", "pack", str(figure), str(drawn), "--add"]) == 2
    assert "a figure, which has no parts" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert packs.pack(run, packed) == packed and packs.pack(figure, drawn) == drawn  # anew


def test_packs_of_packs_keep_their_pages(smoke: Any, tmp_path: Path) -> None:
    pack = packs.pack(smoke("audit"), tmp_path / "pack")
    packs.pack(smoke("audit"), pack, add=True)
    packs.pack(pack, tmp_path / "copy")
    for name in ("run.json", "table.md", "report.html", "report-sample.html", "cells.jsonl"):
        assert (tmp_path / "copy" / name).read_bytes() == (pack / name).read_bytes(), name


def test_figures_are_computed_again(smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("amplify-figure2", "batchmixup-figure1"):
        folder = packs.pack(smoke(name), tmp_path / name)
        assert main(["paper", "rerun", str(folder)]) == 0
        assert f"{name}: the same numbers, bit for bit" in capsys.readouterr().out
    made = json.loads((folder / "figure.json").read_text())
    for shift, code, words in ((1e-9, 0, "in the digits that the table prints"), (0.1, 1, "other numbers")):
        made["numbers"]["best_possible"] += shift
        (folder / "figure.json").write_text(json.dumps(made))
        assert main(["paper", "rerun", str(folder)]) == code
        assert words in capsys.readouterr().out
    assert main(["paper", "run", "audit", *FAST, "--packed", str(folder), "--output", str(tmp_path / "out")]) == 2
    assert "is a figure and has no trainings" in capsys.readouterr().err


def test_models_lose_their_folders(tmp_path: Path) -> None:
    for words in (["--model", str(tmp_path)], [f"--model={tmp_path}"], ["-m", str(tmp_path)], ["-m", "~/x/model"]):
        found = " ".join(anonymous(["mixwell", "paper", "run", "audit", *words]))
        assert str(tmp_path.parent) not in found and "~" not in found and "=/" not in found
    assert anonymous(["--model", "google-bert/bert-base-uncased"])[1] == "google-bert/bert-base-uncased"


def test_parts_make_one_pack(smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An experiment may be run in parts, on several days or machines."""
    folder = smoke("audit")
    whole = results.read(packs.pack(folder, tmp_path / "whole"))
    rows = list(dict.fromkeys(cell.row for cell in whole.runs))
    parts = []
    for name, kept in (("first", rows[:3]), ("second", rows[2:])):  # they have a row in common
        run = {**whole.run_json, "command": [name], "cut": [f"--rows {name}."], "missing": 0}
        run["cells"] = [each for each in whole.run_json["cells"] if each["row"] in kept]
        parts.append(Results(run, tuple(measured for measured in whole.runs if measured.row in kept)))
    both = packs.joined(*parts, "there")
    assert [cell.key for cell in both.runs] == [cell.key for cell in whole.runs] and both.missing == 0
    assert tables.build(both)["cells"] == tables.build(whole)["cells"]
    assert tables.build(both)["commands"] == [["first"], ["second"]]
    assert both.run_json["cut"] == []  # together they have all
    less = packs.joined(parts[0], dataclasses.replace(parts[0], failed=((parts[0].runs[0].title, "x"),)), "there")
    assert less.run_json["cut"] == [f"sample: the rows {', '.join(map(repr, rows[3:]))} are left out."]
    assert not less.failed and less.missing == 0  # what failed in one part was trained in the other
    other = dataclasses.replace(parts[0], run_json={**parts[0].run_json, "model": "other"})
    with pytest.raises(RunError, match="there has model other, not"):
        packs.joined(other, parts[1], "there")
    assert main(["paper", "pack", str(folder), str(tmp_path / "whole"), "--add"]) == 0
    pages = json.loads((tmp_path / "whole" / "run.json").read_text())["pages"]
    assert {name: page["cells"] for name, page in pages.items()} == {"report.html": 7, "report-sample.html": 7}
    assert (tmp_path / "whole" / "report-sample.html").is_file()
    again = (tmp_path / "whole" / "table.md").read_text()
    assert again.count("mixwell paper run audit") == 2 and "## Commands" in again
    with pytest.raises(RunError, match="not a pack"):
        packs.pack(folder, folder, add=True)
    pack = str(tmp_path / "whole")
    words = ["--packed", pack, "--seeds", "2", "--rows", rows[1], "--output", str(tmp_path / "rest")]
    assert main(["paper", "run", "audit", *FAST, *words]) == 0
    assert len(Records(tmp_path / "rest" / "records").names()) == 2  # only the second seed was trained
    assert len(results.read(tmp_path / "rest").runs) == 4
    assert main(["paper", "pack", str(tmp_path / "rest"), pack, "--add"]) == 0
    more = [cell for cell in results.read(pack).runs if cell.seed == 1]
    assert [cell.row for cell in more] == [rows[0], rows[1]]
    # The pages are of fewer trainings than the table now.
    assert not list((tmp_path / "whole").glob("report*.html"))


def test_a_run_takes_what_packs_of_other_experiments_have(
    smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The correct rows of the audit are rows of Table 2."""
    pack = packs.pack(smoke("amplify-table2"), tmp_path / "pack")
    assert main(["paper", "run", "audit", *FAST, "--packed", str(pack), "--output", str(tmp_path / "run")]) == 0
    folder, experiment = tmp_path / "run", protocols.get("audit")
    names = set(Records(folder / "records").names())
    from_pack = {cell.row for cell in results.read(folder).runs if cell.key not in names}
    shared = {run.row for run in experiment.runs("smoke")} & {cell.row for cell in results.read(pack).runs}
    assert from_pack == shared == {"No mixup", "EmbedMix", "TMix"}  # smoke leaves SentenceMix out of Table 2
    made, whole = (json.loads((at / "table.json").read_text()) for at in (folder, smoke("audit")))
    assert not made["missing"] and made["audit"] == whole["audit"]
    assert not (folder / "report.html").exists()  # a pack has too little for a page
    # A pack of such a run stands alone.
    alone = packs.pack(folder, tmp_path / "alone")
    shutil.rmtree(pack)
    assert output.write(alone)["audit"] == whole["audit"]
    assert str(tmp_path) not in (alone / "run.json").read_text()
    capsys.readouterr()
    assert main(["paper", "run", "audit", *FAST, "--packed", str(smoke("audit")), "--output", str(tmp_path / "x")]) == 2
    assert "is the folder of a run, not a pack" in capsys.readouterr().err


def test_one_cell_reruns_to_the_same_number(smoke: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = packs.pack(smoke("audit"), tmp_path / "pack")
    assert main(["paper", "rerun", str(path), "--cell", "2"]) == 0
    assert "the same numbers, bit for bit" in capsys.readouterr().out
    with pytest.raises(RunError, match="none of number 99"):
        runner.rerun(path, None, 99)


def test_a_stopped_run_goes_on(smoke: Any, tmp_path: Path) -> None:
    """Cuts are reported; the same folder then does the rest, and only that."""
    from mixwell.compare.engines.inline import InlineEngine

    class Counting(InlineEngine):
        ran: list[str] = []  # noqa: RUF012

        def submit(self, spec: Any) -> None:
            self.ran.append(spec.label)
            super().submit(spec)

    out = tmp_path / "out"
    part = Request("amplify-table2", "smoke", rows=("embedmix,AMPLIFY, consistent",), seeds=2)
    made = runner.run(part, out, engine=Counting)
    assert sorted(Counting.ran) == sorted(2 * ["No mixup", "EmbedMix", "AMPLIFY, consistent"])
    assert len(made["cut"]) == 2 and "'TMix'" in made["cut"][0] and "--seeds 2" in made["cut"][1]
    assert {cell["seeds"] for cell in made["cells"] if cell["metric"] == "accuracy"} == {2}
    Counting.ran.clear()
    # Another experiment with the same records trains only what is new.
    other = Request("audit", "smoke", rows=("EmbedMix", "EmbedMix, labels as published"))
    runner.run(other, tmp_path / "audit", records=out / "records", engine=Counting)
    assert Counting.ran == ["EmbedMix, labels as published"]
    with pytest.raises(RunError, match="is the run of amplify-table2, not of audit"):
        runner.run(other, out)


def test_rows_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    """MiniLM has six layers: those above are listed, not dropped in silence."""
    request = Request("attentionmix-heads", "smoke", model="minilm")
    experiment = protocols.get("attentionmix-heads")
    every = {**experiment.scales, "smoke": dataclasses.replace(experiment.scales["smoke"], rows=())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "get", lambda name: dataclasses.replace(experiment, scales=every))
        made = planning.plan(request, tmp_path)
    left = {each["what"] for each in made.not_run}
    assert {f"row 'layer {at}, mean'" for at in range(6, 12)} <= left and "row 'layer 5, mean'" not in left
    assert all("layer 7" not in run.row for run in made.runs)


# --- data -------------------------------------------------------------------------------------------------------------


def write_rows(path: Path, split: str, count: int, classes: int = 2) -> None:
    path.mkdir(parents=True, exist_ok=True)
    with gzip.open(path / f"{split}.jsonl.gz", "wt", encoding="utf-8") as stream:
        for at in range(count):
            stream.write(json.dumps({"text": f"{split} text number {at}", "label": f"class {at % classes}"}) + "\n")


def loaded(name: str, key: str, root: Path, place: Path, seed: int = 0, **caps: int | None) -> Any:
    experiment = protocols.get(name)
    dataset = experiment.dataset(key)
    located = sources.locate(dataset, root)
    assert located.problem is None
    cut = sources.split_seed(experiment, dataset, seed)
    values = {"validation_rows": None, "test_rows": None, **caps}
    return sources.prepare(dataset, located, seed=cut, folder=place, **values).load()  # type: ignore[arg-type]


def ids(data: Any, split: str) -> set[str]:
    return set(data.splits[split]["row_id"].to_pylist())


def test_validation_out_of_test(tmp_path: Path) -> None:
    """IMDb: 3200 of the test rows become validation, train stays whole."""
    write_rows(tmp_path / "imdb", "train", 40)
    write_rows(tmp_path / "imdb", "test", 3300)
    data = loaded("nlu-table2", "imdb", tmp_path, tmp_path / "splits")
    assert data.train.num_rows == 40 and data.validation.num_rows == 3200 and data.test.num_rows == 100
    assert not ids(data, "validation") & ids(data, "test") and all(row.startswith("test:") for row in ids(data, "test"))
    capped = loaded("nlu-table2", "imdb", tmp_path, tmp_path / "splits", validation_rows=30, test_rows=20)
    assert ids(capped, "test") < ids(data, "test") and capped.test.num_rows == 20 and capped.validation.num_rows == 30
    assert "text number" not in (tmp_path / "splits" / "imdb-0.json").read_text()
    write_rows(tmp_path / "few" / "imdb", "train", 40)
    write_rows(tmp_path / "few" / "imdb", "test", 50)
    with pytest.raises(DataError, match="has 50 test rows, and the protocol takes 3200 of them"):
        loaded("nlu-table2", "imdb", tmp_path / "few", tmp_path / "splits")


def test_a_new_cut_for_each_seed(tmp_path: Path) -> None:
    """AMPLIFY cuts a quarter of TREC's train anew for each seed; other papers keep one cut, and test never changes."""
    for name, key, folder in (("amplify-table2", "trec_coarse", "trec"), ("attentionmix-heads", "mr", "mr")):
        write_rows(tmp_path / folder, "train", 200)
        write_rows(tmp_path / folder, "test", 30)
        first, second = (loaded(name, key, tmp_path, tmp_path / "splits", seed) for seed in (0, 1))
        assert ids(first, "test") == ids(second, "test")
        assert (ids(first, "validation") == ids(second, "validation")) == (folder == "mr")
    assert (first.validation.num_rows, first.test.num_rows) == (20, 40)  # the one file of MR is cut for both
    trec = loaded("amplify-table2", "trec_coarse", tmp_path, tmp_path / "splits")
    assert (trec.train.num_rows, trec.validation.num_rows, trec.test.num_rows) == (150, 50, 30)


def test_hub_splits_have_their_own_names(tmp_path: Path) -> None:
    """RTE on the hub: its validation is our test, and our validation is cut from train."""
    import datasets

    parts = {
        split: datasets.Dataset.from_dict(
            {"sentence1": [f"{split} a {at}" for at in range(n)], "sentence2": [f"b {at}" for at in range(n)],
             "label": [at % 2 for at in range(n)]}
        )
        for split, n in (("train", 100), ("validation", 20))
    }  # fmt: skip
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    dataset = dataclasses.replace(protocols.get("nlu-table4").dataset("rte"), hub=str(tmp_path / "saved"))
    assert sources.locate(dataset, None).problem is not None
    located = sources.locate(dataset, None, hub=True)
    source = sources.prepare(dataset, located, seed=0, validation_rows=None, test_rows=None, folder=tmp_path / "splits")
    data = source.load()
    assert (data.train.num_rows, data.validation.num_rows, data.test.num_rows) == (90, 10, 20)
    assert all(row.startswith("validation:") for row in ids(data, "test"))
    assert all(row.startswith("train:") for row in ids(data, "validation"))
    missing = dataclasses.replace(dataset, splits={**dataset.splits, "test": SplitPart("test")})
    with pytest.raises(DataError, match="has no test rows with labels"):
        sources.prepare(missing, located, seed=0, validation_rows=None, test_rows=None, folder=tmp_path / "splits")


# --- what the runner adds to training ---------------------------------------------------------------------------------


def test_the_label_mistake() -> None:
    """The faulty method differs from the correct one in the labels alone, and is in no list."""
    import torch

    import mixwell
    from mixwell.core.draw import generator
    from mixwell.methods import load_all, method_class
    from mixwell.methods.attach import attach
    from mixwell.papers import audit
    from zoo import batch, sharpen, tiny

    assert not any(name.startswith("audit") for name in (*mixwell.methods(), *load_all()))
    given = batch("bert")
    labels = given["labels"]
    for name in ("embedmix", "sentencemix", "tmix"):
        outputs = {}
        for method in (name, f"audit-{name}"):
            model = sharpen(tiny("bert")).train()
            torch.manual_seed(5)
            with attach(model, method, alpha=1.0) as mixer:
                found = model(**given)
                outputs[method] = found.logits.detach(), found.loss.detach(), mixer.last
        (right, right_loss, plan), (wrong, wrong_loss, other) = outputs.values()
        assert torch.equal(right, wrong) and torch.equal(plan.permutation, other.permutation) and plan.lam == other.lam
        assert not torch.equal(right_loss, wrong_loss)
        strange = torch.randperm(len(labels), generator=generator(plan.seed, audit._STREAM))
        assert not torch.equal(strange, plan.permutation)
        loss = torch.nn.functional.cross_entropy
        paid = plan.lam * loss(wrong, labels) + (1 - plan.lam) * loss(wrong, labels[strange])
        assert torch.allclose(paid, wrong_loss, rtol=1e-5)
        assert method_class(f"audit-{name}").hidden


def test_updates_of_one_batch_and_the_watched_test_set(smoke: Any) -> None:
    folder = smoke("batchmixup-table1")
    steps = {cell.row: cell.result["steps"] for cell in results.read(folder).runs}
    assert steps["w/ MIXUP"] == 15 * steps["w/ MIXUP, 1 draw"] == 15 * steps["RoBERTa-large"]
    made = json.loads((folder / "table.json").read_text())
    (claim,) = [claim for claim in made["claims"] if claim["metric"] == "minutes_per_epoch"]
    assert all(pair["ratio"] > 2 for pair in claim["pairs"]) and claim["published"]["ratio"] == 13.3
    assert any("15 updates in a row" in note for note in made["notes"])
    curve = results.read(smoke("nlu-figure2")).runs[0].result["curve"]
    assert len(curve) == 3 and all(math.isfinite(point["test_loss"]) for point in curve)


def test_repeated_batches_are_the_same_rows() -> None:
    from mixwell.training.callbacks import Repeated

    found = Repeated([{"x": 1}, {"x": 2}], 3)
    assert [batch["x"] for batch in found] == [1, 1, 1, 2, 2, 2] and len(found) == 6


# --- statistics on made-up records ------------------------------------------------------------------------------------


MRPC = ("mrpc", "150", "full")


def made_up(
    name: str,
    accuracy: dict[str, float],
    *,
    seeds: int = 8,
    place: tuple[str, str, str] = MRPC,
    noise: dict[str, int] | None = None,
) -> Results:
    """A run in which each row has a given share of its test rows right, with a little noise."""
    dataset, size, beside = place
    labels = np.arange(600) % 2
    runs = []
    for row, share in accuracy.items():
        reach = (noise or {}).get(row, 6)
        for seed in range(seeds):
            rng = np.random.default_rng(seed * 17)  # all rows of a seed err on the same examples first
            right = rng.permutation(len(labels)).argsort() < share * len(labels) + np.random.default_rng(
                [seed, *row.encode()]
            ).integers(-reach, reach + 1)
            logits = np.stack([1.0 * (labels == 0), 1.0 * (labels == 1)], 1) * np.where(right, 3, -3)[:, None]
            outputs = Outputs.of(logits.astype(np.float32), labels)
            result = {
                "test": {"rows": 600, "before": measure(logits, labels)},
                "timing": {"seconds_per_step": 0.1 if "MIXUP" not in row else 0.5}, "steps": 100, "epochs": 10,
                "curve": [],
            }  # fmt: skip
            identity = {"settings": {"best_metric": "accuracy"}}
            runs.append(
                MeasuredRun(dataset, size, beside, row, seed, ("accuracy",), f"{row}{seed}", identity, result, outputs)
            )
    run = {
        "experiment": name,
        "scale": "small",
        "model": "minilm",
        "command": [],
        "not_run": [],
        "cut": [],
        "notes": [],
    }
    return Results(run, tuple(runs))


BASELINES = ("EmbedMix", "SentenceMix", "TMix")


@pytest.mark.parametrize(
    ("ours", "verdict"), [(0.85, HOLDS), (0.55, FAILS), (0.702, UNSURE)], ids=["above", "below", "equal"]
)
def test_claims_and_order(ours: float, verdict: str) -> None:
    accuracy = {"No mixup": 0.7, **dict.fromkeys(BASELINES, 0.7), "Ours": ours}
    made = tables.build(made_up("amplify-table2", accuracy))
    first = made["claims"][0]
    assert first["verdict"] == (PARTLY if verdict == HOLDS else verdict) and first["tested"] == "4 of 20 pairs"
    assert first["published"]["pairs_that_hold"] == first["published"]["pairs_known"] == 20
    (sst2,) = [claim for claim in made["claims"] if claim["says"].startswith("On SST-2")]
    assert sst2["verdict"] == UNKNOWN and sst2["pairs"][0]["why"] == "not run"
    (gain,) = [claim for claim in made["claims"] if claim["published"]["difference"] == 1.83]
    measured_gain = gain["pairs"][0]["difference"]
    assert measured_gain["lo"] < 100 * (ours - 0.7) < measured_gain["hi"] and measured_gain["seeds"] == 8
    (order,) = made["orders"]
    assert order["published"] == ["Ours", "EmbedMix", "TMix", "SentenceMix", "No mixup"] and order["pairs"] == 10
    # Rows that are truly alike can neither show nor refute the whole order.
    assert order["verdict"] == (FAILS if verdict == FAILS else UNSURE)
    entry = next(cell for cell in made["cells"] if cell["row"] == "Ours" and cell["metric"] == "accuracy")
    assert entry["published"] == "83.03 ± 0.110" and abs(entry["mean"] - 100 * ours) < 1
    words = {HOLDS: "better", FAILS: "worse", UNSURE: "not enough evidence"}
    assert entry["difference"]["verdict"] == words[verdict]
    assert "83.03 ± 0.110" in markdown(made)


def test_means_over_data_sets_and_derived_rows() -> None:
    parts = [
        made_up("amplify-table1", {"No mixup": 0.6, "5": 0.8, "1": 0.6}, place=(key, "150", "full"))
        for key in ("mrpc", "trec_fine")
    ]
    made = tables.build(Results(parts[0].run_json, parts[0].runs + parts[1].runs))
    entry = next(cell for cell in made["cells"] if (cell["dataset"], cell["row"]) == ("mean", "5"))
    assert abs(entry["mean"] - 80) < 1 and entry["published"] == "86.50" and entry["difference"]["verdict"] == "better"
    single = next(c for c in made["cells"] if (c["dataset"], c["row"], c["metric"]) == ("mrpc", "5", "accuracy"))
    width, alone = (each["difference"]["hi"] - each["difference"]["lo"] for each in (entry, single))
    assert width < alone  # two data sets tell more than one
    claim = made["claims"][0]
    assert claim["verdict"] == PARTLY and claim["tested"] == "1 of 5 pairs, 2 of 7 data sets"
    assert "## mean over mrpc, trec_fine (2 of 7 data sets), 150" in markdown(made)
    # All rows on two of seven data sets: still no verdict on the paper's mean.
    rows = {"5": 0.8} | dict.fromkeys(("No mixup", "1", "3", "7", "9", "20"), 0.6)
    every = [made_up("amplify-table1", rows, place=(key, "150", "full")) for key in ("mrpc", "trec_fine")]
    claim = tables.build(Results(every[0].run_json, every[0].runs + every[1].runs))["claims"][0]
    assert claim["verdict"] == PARTLY and claim["tested"] == "5 of 5 pairs, 2 of 7 data sets"
    # TREC's two label sets have their texts in common: two of them tell no more than one.
    both = Results(parts[0].run_json, parts[0].runs + parts[1].runs)
    pairs = PairedDifferences(both, protocols.get("amplify-table1"), 0.95)
    one = pairs.of("5", "1", ("mrpc", "150"), "accuracy")
    apart = pairs.mean([one, one], [("mrpc", "150"), ("trec_fine", "150")])
    kin = pairs.mean([one, one], [("trec_coarse", "150"), ("trec_fine", "150")])
    assert one is not None and apart is not None and kin is not None
    assert kin.hi - kin.lo == pytest.approx(one.hi - one.lo) and apart.hi - apart.lo < 0.8 * (kin.hi - kin.lo)
    table4 = tables.build(made_up("amplify-table4", {"Input layer": 0.6, "Middle layer": 0.7, "Last layer": 0.8,
                                                     "No mixup": 0.5}))  # fmt: skip
    mean = next(cell for cell in table4["cells"] if cell["row"] == "Mean")
    assert abs(mean["mean"] - 70) < 1 and mean["published"] == "82.84 ± 0.322"
    less = tables.build(made_up("amplify-table4", {"Input layer": 0.6, "No mixup": 0.5}))
    assert not [cell for cell in less["cells"] if cell["row"] == "Mean"]  # of three rows, not of those there are
    table1 = tables.build(made_up("batchmixup-table1", {"RoBERTa-large": 0.7, "w/ MIXUP": 0.7, "w/ BATCHMIXUP": 0.7},
                                  place=("entailment", "1%", "1%")))  # fmt: skip
    guess = next(cell for cell in table1["cells"] if cell["row"].startswith("random"))
    assert guess["mean"] == 50
    (claim,) = [claim for claim in table1["claims"] if claim["metric"] == "minutes_per_epoch"]
    assert claim["tested"] == "1 of 2 pairs"  # measured at 1 % for the published 100 %: a ratio of times


def test_audit_gives_the_cost_with_an_interval() -> None:
    rows = {"No mixup": 0.7, "EmbedMix": 0.75, "EmbedMix, labels as published": 0.7}
    parts = [made_up("audit", rows, place=(key, "150", "full")) for key in ("mrpc", "trec_fine")]
    made = tables.build(Results(parts[0].run_json, parts[0].runs + parts[1].runs))
    found = {metric: [each for each in made["audit"] if each["metric"] == metric] for metric in ("accuracy", "nll")}
    for metric, entries in found.items():
        assert [entry["dataset"] for entry in entries] == ["mrpc", "trec_fine", "mean of 2"]
        for entry in entries:  # the faulty row is worse in both: 5 points right less, 3 nats more for each of them
            size = 5 if metric == "accuracy" else 15
            assert entry["cost"]["lo"] < size < entry["cost"]["hi"] and entry["verdict"] == "costs"
    assert {entry["metric"] for entry in made["audit"]} == {"accuracy", "nll", "ece"}
    assert "cost of the mistake" in markdown(made)


def test_variances_are_compared() -> None:
    for rows, verdict in (({"No mixup": 6, "Ours": 60}, FAILS), ({"No mixup": 60, "Ours": 6}, HOLDS)):
        found = made_up(
            "amplify-table2", dict.fromkeys(rows, 0.7), seeds=12, place=("trec_fine", "300", "full"), noise=rows
        )
        claims = [claim for claim in tables.build(found)["claims"] if claim["of"] == "spread"]
        assert claims[0]["verdict"] == verdict and claims[1]["verdict"] == UNKNOWN


def test_claims_where_less_is_better() -> None:
    """Losses and calibration errors: the row that is better has less of them."""
    for shares, verdict in (({"Base": 0.7, "CLS": 0.9}, HOLDS), ({"Base": 0.9, "CLS": 0.7}, FAILS)):
        rows = {**shares, "Input": shares["CLS"], "Mani": shares["CLS"]}
        made = tables.build(made_up("nlu-table2", rows, place=("imdb", "32", "32")))
        (claim,) = [each for each in made["claims"] if "lower test loss" in each["says"]]
        assert claim["verdict"] == (PARTLY if verdict == HOLDS else FAILS) and claim["tested"] == "3 of 6 pairs"


def test_scores_after_the_temperature(smoke: Any) -> None:
    found = results.read(smoke("nlu-table3"))
    after = {"nll": 0.25, "ece": 0.125}
    changed = [
        dataclasses.replace(cell, result={**cell.result, "test": {**cell.result["test"], "after": after}})
        for cell in found.runs
    ]
    made = tables.build(dataclasses.replace(found, runs=tuple(changed)))
    for metric, value in after.items():
        columns = {c["metric"]: c["mean"] for c in made["cells"] if c["row"] == "CLS"}
        assert columns[f"{metric}_after"] == 100 * value != columns[metric]
    assert "test loss after T x 100 | ECE after T" in markdown(made)


def test_the_loss_of_the_last_epoch(smoke: Any) -> None:
    folder = smoke("nlu-table3")
    found = results.read(folder)
    made = tables.build(found)
    means = {cell["row"]: cell["mean"] for cell in made["cells"] if cell["metric"] == "nll_last"}
    records = Records(folder / "records")
    for cell in found.runs:
        wanted = records.read(cell.key).result["history"][-1]["validation"]["nll"]
        assert means[cell.row] == pytest.approx(100 * wanted, rel=1e-6)
    # A training that was stopped early has another last epoch than the others; packs of before have none.
    for change in ({"stopped_early": True}, {"last": None}):
        first = dataclasses.replace(found.runs[0], result={**found.runs[0].result, **change})
        less = tables.build(dataclasses.replace(found, runs=(first, *found.runs[1:])))
        assert not [cell for cell in less["cells"] if cell["metric"] == "nll_last"]


def test_compact_outputs_keep_the_metrics() -> None:
    rng = np.random.default_rng(3)
    for classes in (2, 3, 7, 300):
        labels = rng.integers(0, classes, 500)
        logits = (2 * rng.normal(size=(500, classes)) + 2 * np.eye(classes)[labels]).astype(np.float32)
        logits[:5] = 0  # ties
        kept = Outputs.of(logits, labels)
        exact, again = measure(logits, labels), measure(kept.logits(), labels)
        for name in ("accuracy", "mcc", "macro_f1"):
            assert exact[name] == pytest.approx(again[name], abs=1e-12), (classes, name)
        assert again["nll"] == pytest.approx(exact["nll"], rel=2e-4)
        assert again["ece"] == pytest.approx(exact["ece"], abs=2e-3)


def test_words() -> None:
    assert planning.match_rows(["a, b,a"], ["a", "a, b"]) == ["a, b", "a"]
    with pytest.raises(OptionError, match="did you mean 'EmbedMix'"):
        planning.match_rows(["EmbdMix"], ["TMix", "EmbedMix"])
    command = ["mixwell", "paper", "run", "x", "--data", "/home/me/d", "--output=/home/me/o", "--seeds", "3"]
    assert anonymous(command) == [*command[:5], "DATA", "--output=OUTPUT", "--seeds", "3"]


def test_beta_densities() -> None:
    from mixwell.core.draw import draw_lam, generator
    from mixwell.papers.figures import densities

    found = densities({"alphas": [0.2, 2.0], "points": 99, "samples": [1, 5], "samples_alpha": 0.1})
    rng = generator(1)
    for rule, alpha, samples, mean in (
        ("max_of", 0.1, 5, found["means"]["max_of"]["5"]),
        ("folded", 0.2, 1, found["means"]["folded"]["0.2"]),
    ):
        drawn = [draw_lam(rule, alpha, samples, rng) for _ in range(4000)]
        assert np.mean(drawn) == pytest.approx(mean, abs=0.01)
    assert np.trapezoid(found["beta"]["2.0"], found["x"]) == pytest.approx(1, abs=0.01)
