"""The report page in a real browser: it sorts, filters, prints, tells what the records hold and runs nothing else."""

from __future__ import annotations

import csv
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import axe_violations, no_sideways_scroll, open_page, start_browser
from test_compare import SETTINGS, FakeEngine
from test_training import BASE, make_model

from mixwell.cli import main
from mixwell.compare.live import LiveView
from mixwell.compare.planning import plan
from mixwell.compare.records import CellResult, Records
from mixwell.compare.schedule import execute
from mixwell.compare.spec import CellSpec, chosen_test_rows
from mixwell.compare.summary import Summary, read_summary
from mixwell.metrics.measure import measure
from mixwell.metrics.scores import METRICS, softmax
from mixwell.metrics.temperature import fit_temperature
from mixwell.report import charts
from mixwell.report import compare as export

EVIL = '<script>document.title="broken"</script>'
LABELS = [EVIL, "'\"><img src=x onerror=alert(1)>", "a & b", "$x^2$", "fünf", "six", "seven"]
METHODS = ["amplify", "embedmix", "tmix", "cls", "input", "manifold", "batchmixup", "nonlinear"]
SEEDS = 5
ROWS = 84


def outputs(spec: CellSpec) -> CellResult:
    """Made-up outputs whose quality depends on the method, for the test rows that the data really have."""
    draw = np.random.default_rng([int(spec.key[:7], 16), spec.seed])
    truth = [at % len(LABELS) for at in range(ROWS)]
    chosen = chosen_test_rows(ROWS, spec.max_test)
    labels = np.array(truth if chosen is None else [truth[at] for at in chosen])
    made = {}
    skill = {"amplify": 3.2, "cls": 0.8}.get(spec.method, 2.0) + 0.5 * (spec.sample.fraction or 1)
    for split in ("validation", "test"):
        noise = draw.normal(size=(len(labels), len(LABELS)))
        made[f"{split}_logits"] = (1.7 * (noise + skill * np.eye(len(LABELS))[labels])).astype(np.float32)
        made[f"{split}_labels"] = labels
    heat = fit_temperature(made["validation_logits"], labels)
    pair = made["test_logits"], labels
    result = {
        "task": spec.task,
        "labels": LABELS,
        "temperature": heat,
        "test": {
            "rows": len(labels),
            "before": measure(*pair),
            "after": measure(*pair, "single_label", heat),
        },
        "train_rows": round(210 * (spec.sample.fraction or 1)),
        "history": [
            {"epoch": at, "step": 7 * at, "train_loss": 2 / at, "validation": {"loss": 2 / at + 0.3}}
            for at in range(1, 9)
        ],
        "timing": {"seconds": 1.0, "seconds_per_step": 0.1 + 0.001 * spec.seed},
        "versions": {"mixwell": "0"},
    }  # fmt: skip
    return CellResult(result, made)


def write_data(path: Path, count: int, shift: int) -> None:
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for at in range(count):
            writer.writerow([f"row {at + shift} says {EVIL} & more", LABELS[at % len(LABELS)]])


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """10 methods, 5 seeds, 3 data sets of which one at two sizes; names, labels and texts try to break out."""
    from mixwell.compare import grid as grids

    place = tmp_path_factory.mktemp("pages")
    make_model(place / "tiny")
    planned = []
    for number, name in enumerate(["films", f"{EVIL} & co", "questions"]):
        folder = place / f"data{number}"
        folder.mkdir()
        for split, count in (("train", 210), ("validation", 42), ("test", ROWS)):
            write_data(
                folder / f"{split}.csv", count, 1000 * number + {"train": 0, "validation": 300, "test": 600}[split]
            )
        values: dict[str, Any] = {
            "data": str(folder), "model": str(place / "tiny"), "seeds": SEEDS, "methods": METHODS,
            "settings": {**BASE, **SETTINGS}, "references": False,
        }  # fmt: skip
        if number == 2:
            values["fractions"] = [0.5, 1.0]
        planned += [replace(cell, name=name) for cell in plan(grids.make_grid({}, values))]
    planned = [replace(each, label=EVIL) if each.method == "tmix" else each for each in planned]
    found = Records(place / "out")
    found.create()
    found.log("command", command=f"mixwell compare data --methods {EVIL}")
    execute(planned, found, FakeEngine(outputs_of), LiveView())
    return found


def outputs_of(spec: CellSpec) -> Any:
    from mixwell.compare.engines.base import Finished

    return Finished(spec.key, outputs(spec))


@pytest.fixture(scope="module")
def summary(records: Records) -> Summary:
    return read_summary(records)


@pytest.fixture(scope="module")
def page_path(summary: Summary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(export.export(summary, "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as found:
        yield found


def board(page: Any) -> list[list[str]]:
    """The visible rows of the leaderboard as texts."""
    return page.evaluate(
        "[...document.querySelectorAll('#board tbody tr')].filter(r => !r.hidden)"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )


def test_fast_and_small(records: Records, page_path: Path, tmp_path: Path) -> None:
    began = time.process_time()
    assert main(["report", str(records.path), "-o", str(tmp_path / "r.html")]) == 0
    # Processor time, since another test may have the second core; of it statistics take the most.
    assert time.process_time() - began < 10
    assert (tmp_path / "r.html").read_bytes() == page_path.read_bytes()
    assert page_path.stat().st_size < 5_000_000


def test_numbers_are_those_of_the_records(browser: Any, page_path: Path, summary: Summary, records: Records) -> None:
    with open_page(page_path, browser=browser) as page:
        heads = page.locator("#board thead button").all_text_contents()
        rows = page.evaluate(
            "[...document.querySelectorAll('#board tbody tr')]"
            ".map(r => [...r.cells].map(c => [c.textContent, c.dataset.value]))"
        )
    assert len(rows) == sum(len(group.methods) for group in summary.groups) == 4 * 12
    cells = [records.read(key) for key in records.names()]
    checked = 0
    for row in rows:
        at = dict(zip(heads, row))
        method, data, size = at["method"][1], at["data"][0], int(at["training rows"][1])
        same = [c for c in cells if (c.spec.label, c.spec.name, c.result["train_rows"]) == (method, data, size)]
        if not same:
            assert method in ("none + temperature", "guessing")
            continue
        for head, part, metric in (
            ("accuracy %", "before", "accuracy"), ("NLL", "before", "nll"), ("NLL after T", "after", "nll"),
            ("ECE %", "before", "ece"), ("ECE after T %", "after", "ece"),
        ):  # fmt: skip
            wanted = float(np.mean([c.result["test"][part][metric] for c in same]))
            text, value = at[head]
            assert float(value) == pytest.approx(wanted, abs=1e-9), (method, data, head)
            shown = float(re.match(r"[\d.]+", text).group())  # type: ignore[union-attr]
            assert shown == pytest.approx(100 * wanted if "%" in head else wanted, abs=0.051 if "%" in head else 6e-5)
            checked += 1
        assert int(at["seeds"][1]) == SEEDS == len(same)
    assert checked == 4 * 10 * 5


def test_sorting_by_mouse_and_keyboard(browser: Any, page_path: Path) -> None:
    with open_page(page_path, browser=browser) as page:
        heads = page.locator("#board thead button").all_text_contents()
        at = heads.index("accuracy %")

        def column() -> list[float]:
            return [float(row[at].split(" ")[0]) for row in board(page)]

        head = page.locator("#board thead th").nth(at)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending" and column() == sorted(column(), reverse=True)
        page.keyboard.press("Enter")  # the button has the focus
        assert head.get_attribute("aria-sort") == "ascending" and column() == sorted(column())
        page.keyboard.press("Tab")  # the next head
        page.keyboard.press("Space")
        other = page.locator("#board thead th").nth(at + 1)
        assert other.get_attribute("aria-sort") == "descending" and head.get_attribute("aria-sort") == "none"
        values = [float(v) for v in page.eval_on_selector_all(
            f"#board tbody td:nth-child({at + 2})", "cells => cells.map(c => c.dataset.value)") if v != ""]  # fmt: skip
        assert values == sorted(values, reverse=True)
        # Rows without a number stay at the end, whichever the direction.
        assert board(page)[-1][at + 1] == ""
        assert "sorted by difference" in (page.text_content("#status") or "")
        page.locator("#board thead button").nth(heads.index("ECE %")).click()
        assert page.locator("#board thead th").nth(heads.index("ECE %")).get_attribute("aria-sort") == "ascending"


def test_filtering(browser: Any, page_path: Path) -> None:
    with open_page(page_path, browser=browser) as page:
        shown = page.locator("article:visible")
        assert shown.count() == 4 and len(board(page)) == 48
        page.select_option("#choose-data", "questions")
        assert shown.count() == 2 and len(board(page)) == 24
        page.select_option("#choose-sample", "50 % of train")
        assert shown.count() == 1 and len(board(page)) == 12
        page.select_option("#choose-data", "films")
        assert shown.count() == 0 and page.locator("#none-match").is_visible()
        # By keyboard: back to all.
        page.focus("#choose-sample")
        page.keyboard.press("Home")
        page.focus("#choose-data")
        page.keyboard.press("Home")
        assert shown.count() == 4 and not page.locator("#none-match").is_visible()


def test_one_method_in_detail(browser: Any, page_path: Path, summary: Summary) -> None:
    with open_page(page_path, browser=browser) as page:
        for method in ("amplify", "none", EVIL):
            page.select_option("#choose-method", method)
            shown = page.locator("section.method:visible")
            assert shown.count() == 4
            assert set(shown.evaluate_all("all => all.map(each => each.dataset.method)")) == {method}
        # The calibration errors of the diagrams are the means over seeds.
        page.select_option("#choose-method", "amplify")
        title = page.locator("article >> nth=0 >> section.method:visible figcaption.title").all_text_contents()
        group = summary.groups[0]
        row, calibrated = group.row("amplify", "ece"), group.row("amplify", "ece_after")
        assert row is not None and calibrated is not None
        assert f"calibration error {100 * row.mean:.1f} %" in title[0]
        assert f"calibration error {100 * calibrated.mean:.1f} %" in title[1]


def test_mistakes_and_matrix_equal_the_records(browser: Any, page_path: Path, records: Records) -> None:
    cells = [records.read(key) for key in records.names()]
    cells = [c for c in cells if c.spec.name == "films" and c.spec.label == "cls"]
    found = [c.outputs() for c in cells]
    truth = found[0]["test_labels"]
    mean = np.mean([softmax(o["test_logits"] / c.result["temperature"]) for o, c in zip(found, cells)], axis=0)
    wrong = [at for at in range(len(truth)) if mean[at].argmax() != truth[at]]
    worst = max(wrong, key=lambda at: mean[at].max())
    with open_page(page_path, browser=browser) as page:
        page.select_option("#choose-data", "films")
        page.select_option("#choose-method", "cls")
        shown = page.locator("article:visible section.method:visible")
        first = shown.locator("table >> nth=-1").locator("tbody tr").first.locator("td").all_text_contents()
        file = records.path.parent / "data0" / "test.csv"
        texts = [row["text"] for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
        assert first[:3] == [texts[worst], LABELS[truth[worst]], LABELS[mean[worst].argmax()]]
        assert first[3] == f"{100 * mean[worst].max():.0f} %"
        counts = shown.locator("table.heat tbody td").evaluate_all("all => all.map(each => Number(each.title))")
    matrix = np.zeros((7, 7), dtype=int)
    for output in found:
        for label, guess in zip(output["test_labels"], output["test_logits"].argmax(axis=1)):
            matrix[label, guess] += 1
    assert np.array(counts).reshape(7, 7).tolist() == matrix.tolist()


def test_forest_shows_the_difference(browser: Any, page_path: Path, summary: Summary) -> None:
    with open_page(page_path, browser=browser) as page:
        box = page.locator("article >> nth=0 >> [data-switch]")
        assert box.locator("figure:visible").count() == 1
        titles = " ".join(box.locator("figure:visible svg.wide title").all_text_contents())
        row = summary.groups[0].row("amplify", "accuracy")
        assert row is not None and row.difference is not None
        assert f"AMPLIFY: {100 * row.difference.mean:+.1f} [" in titles
        box.get_by_role("button", name="NLL after T").press("Enter")
        assert (
            box.locator("figure:visible figcaption.title").text_content() == "Negative log-likelihood after temperature"
        )
        assert box.locator("button[aria-pressed=true]").all_text_contents() == ["NLL after T"]


def test_what_is_far_off_does_not_squeeze_the_others() -> None:
    near = charts.ForestRow("Manifold", 1.0, 0.0, 2.0, "", "+1.0")
    far = charts.ForestRow("TF-IDF", -30.0, -50.0, -10.0, "", "-30.0", aside=True)
    alone = str(charts.forest([near], label="x", better="right"))
    both = str(charts.forest([near, far], label="x", better="right"))
    place = r'class="zero"[^>]*x1="([\d.]+)"|x1="([\d.]+)"[^>]*class="zero"'
    assert re.findall(place, alone) == re.findall(place, both) != []
    assert "\u25c2 -30" in both and "\u25c2" not in alone


def test_texts_stay_texts(browser: Any, page_path: Path) -> None:
    with open_page(page_path, browser=browser) as page:
        assert page.title() == "Comparison"
        assert page.locator("script").count() == 1 and page.locator("img").count() == 0
        assert EVIL in (page.text_content("main") or "") and EVIL in (page.text_content("pre") or "")
        # Even if something slipped through, the page's policy would refuse to run it.
        assert "sha256-" in page.get_attribute("meta[http-equiv]", "content")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colour_schemes(browser: Any, page_path: Path, scheme: str) -> None:
    def luminance(colour: str) -> float:
        parts = [float(each) / 255 for each in re.findall(r"[\d.]+", colour)[:3]]
        lines = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * lines[0] + 0.7152 * lines[1] + 0.0722 * lines[2]

    def contrast(page: Any, name: str, back: str) -> float:
        script = """name => { const probe = document.createElement('i'); probe.style.color = `var(${name})`;
            document.body.append(probe); const found = getComputedStyle(probe).color; probe.remove(); return found; }"""
        a, b = sorted(luminance(page.evaluate(script, each)) for each in (name, back))
        return (b + 0.05) / (a + 0.05)

    with open_page(page_path, browser=browser, scheme=scheme) as page:
        dark = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.2
        assert dark == (scheme == "dark")
        for name in ("--ink", "--soft", "--accent", "--good", "--bad"):
            assert contrast(page, name, "--card") >= 4.5, name
        for at in range(10):
            assert contrast(page, f"--s{at}", "--card") >= 3, at
        # The button goes round: auto, light, dark.
        for wanted in ("light", "dark", None):
            page.click("#theme")
            assert page.get_attribute("html", "data-theme") == wanted


@pytest.mark.parametrize("width", [390, 768, 1200])
def test_widths(browser: Any, page_path: Path, width: int) -> None:
    with open_page(page_path, browser=browser, width=width) as page:
        assert no_sideways_scroll(page)
        assert (
            page.locator("svg.narrow:visible").count() > 0
            if width == 390
            else page.locator("svg.wide:visible").count() > 0
        )
        if width == 390:  # letters in pictures can be read
            small = page.eval_on_selector_all(
                "article svg.narrow text",
                "all => Math.min(...all.map(e => e.getBoundingClientRect().height).filter(h => h > 0))",
            )
            assert small >= 9


def test_print(browser: Any, page_path: Path) -> None:
    with open_page(page_path, browser=browser, scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator("nav.bar").is_hidden() and page.locator("#board").is_visible()
        data = page.pdf(format="A4", print_background=True)
        assert data.startswith(b"%PDF") and len(data) > 20_000
        # Hardly more pages than the content fills: no page is left half empty. A4 without margins is 794 by 1123.
        page.set_viewport_size({"width": 794, "height": 1123})
        filled = page.evaluate("document.documentElement.scrollHeight") / 1123
        assert len(re.findall(rb"/Type /Page\b", data)) <= 1.2 * filled + 1


def test_keyboard_reaches_everything(browser: Any, page_path: Path) -> None:
    with open_page(page_path, browser=browser) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        assert {"choose-data", "choose-sample", "choose-method", "theme", "BUTTON"} <= seen
        unnamed = page.evaluate(
            "[...document.querySelectorAll('svg[role=img]')].filter(e => !e.getAttribute('aria-label')).length"
        )
        assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(browser: Any, page_path: Path, scheme: str) -> None:
    with open_page(page_path, browser=browser, scheme=scheme, width=1280) as page:
        page.click("#terms summary")
        assert axe_violations(page, colours_only=scheme == "dark") == []


def one_group(place: Path, labels: list[str], monkeypatch: pytest.MonkeyPatch) -> Summary:
    """A comparison of one data set with these classes."""
    from mixwell.compare import grid as grids

    monkeypatch.setattr("test_report_page.LABELS", labels)
    monkeypatch.setattr("test_report_page.ROWS", max(84, 3 * len(labels)))
    make_model(place / "tiny")
    (place / "messages").mkdir()
    for split, count, shift in (("train", 10 * len(labels), 0), ("validation", 42, 3000), ("test", ROWS, 6000)):
        write_data(place / "messages" / f"{split}.csv", count, shift)
    values: dict[str, Any] = {
        "data": str(place / "messages"), "model": str(place / "tiny"), "seeds": SEEDS, "references": False,
        "methods": ["amplify", "amplify:consistent=true"], "settings": {**BASE, **SETTINGS},
    }  # fmt: skip
    found = Records(place / "out")
    found.create()
    execute(plan(grids.make_grid({}, values)), found, FakeEngine(outputs_of), LiveView())
    return read_summary(found)


def test_the_top_of_the_page(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, model, date, a verdict and three numbers are seen at once; numbers and dots are those of the records."""
    summary = one_group(tmp_path, ["billing", "refund", "card", "login", "hours"], monkeypatch)
    (tmp_path / "r.html").write_text(export.export(summary, "html"), encoding="utf-8")
    group = summary.groups[0]
    best, plain = group.row("amplify", "accuracy"), group.row("none", "accuracy")
    assert best is not None and plain is not None and best.difference is not None
    with open_page(tmp_path / "r.html", browser=browser, width=1280, height=900) as page:
        bottoms = page.eval_on_selector_all(
            ".facts, .verdict, .numbers", "all => all.map(e => e.getBoundingClientRect().bottom)"
        )
        assert len(bottoms) == 3 and max(bottoms) < 900
        facts = page.locator(".facts").inner_text()
        assert "messages" in facts and "tiny" in facts and re.search(r"finished\s+\d+ \w+ 20\d\d", facts)
        winner = max(("amplify", "amplify[consistent=true]"), key=lambda name: group.row(name, "accuracy").mean)  # type: ignore[union-attr]
        row = group.row(winner, "accuracy")
        assert row is not None and row.difference is not None
        title = {"amplify": "AMPLIFY"}.get(winner, "AMPLIFY, consistent")
        gain = f"{100 * row.difference.mean:.1f} points"
        assert page.locator(".verdict").inner_text().startswith(f"{title} beats plain training by {gain} of accuracy.")
        shown = page.locator(".numbers b").all_inner_texts()
        calibrated = group.row(winner, "ece_after")
        assert calibrated is not None
        assert shown == [f"{100 * row.mean:.1f} %", f"+{gain}", f"{100 * calibrated.mean:.1f} %"]
        # One dot per seed behind each mean, at the seed's own difference.
        dots = page.locator("article figure:visible svg.wide circle.seed title").all_text_contents()
        before = {(r.spec.label, r.spec.seed): r.result["test"]["before"]["accuracy"] for r in group.records}
        wanted = {f"AMPLIFY, seed {s}: {100 * (before['amplify', s] - before['none', s]):+.3g}" for s in group.seeds}
        assert wanted <= set(dots) and len(dots) == 3 * SEEDS
        # Definitions can be reached by keyboard: a method's name leads to it.
        page.locator("#board a.term", has_text="AMPLIFY, consistent").focus()
        page.keyboard.press("Enter")
        assert page.locator("#terms").get_attribute("open") is not None
        assert page.locator("#about-amplify-consistent-true-").is_visible()
        for name in ("NLL", "ECE", "T", "AURC"):
            assert page.locator("#terms dt", has_text=re.compile(f"^{name}$")).count() == 1
        # The whole leaderboard is seen without scrolling sideways.
        assert page.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.scroll:has(#board)'))")
    with open_page(tmp_path / "r.html", browser=browser, width=390) as page:
        outside = page.eval_on_selector_all(
            "#board td", "all => all.filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert (
            outside == 0
            and page.locator("#board tbody tr").first.evaluate("e => getComputedStyle(e).display") == "block"
        )
        assert axe_violations(page) == []


@pytest.mark.parametrize("count", [20, 77])
def test_all_classes_fit(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    summary = one_group(tmp_path, [f"intent with a name {number}" for number in range(count)], monkeypatch)
    (tmp_path / "r.html").write_text(export.export(summary, "html"), encoding="utf-8")
    with open_page(tmp_path / "r.html", browser=browser, width=1280) as page:
        box = page.locator("section.method:visible [aria-label^='confusion matrix']").first
        assert box.evaluate("e => e.scrollWidth <= e.clientWidth")
        text = box.inner_text() if count == 20 else " ".join(box.locator("text").all_text_contents())
        assert "predicted class" in text and "true class" in text
        names = box.locator("tbody th[scope=row]" if count == 20 else "svg text[text-anchor=end]").all_text_contents()
        assert len(names) == count
        assert axe_violations(page) == []


def test_ticks() -> None:
    from mixwell.report.charts import tick_text, ticks

    for low, high in ((0, 1), (-0.0061, 0.0072), (-11, 6), (0, 1e-4), (3, 3000), (-0.5, 0.5)):
        found = ticks(low, high)
        step = found[1] - found[0]
        texts = [float(tick_text(each, step).replace("\u2212", "-")) for each in found]
        assert texts == pytest.approx(found, abs=step * 1e-6) and all(low <= each <= high for each in found)
        assert 3 <= len(found) <= 8


def test_a_chart_as_a_file_needs_no_page() -> None:
    """Well-formed, one drawing per chart with its own place, and colours instead of the page's variables."""
    from xml.etree import ElementTree

    from mixwell.report import charts

    line = charts.Series("a <b> & c", 1, [(10.0, 1.2, 1.0, 1.4), (20.0, 0.8, 0.7, 0.9)])
    chart = charts.lines([line], label="the loss", x_title="updates", y_title="loss")
    text = charts.as_file([("Training & more", chart), ("Validation", chart)])
    root = ElementTree.fromstring(text)
    drawings = root.findall("{http://www.w3.org/2000/svg}svg")
    assert len(drawings) == 2 and "var(" not in text and "light-dark" not in text
    left, right = (float(drawing.get("x", "nan")) for drawing in drawings)
    assert left + float(drawings[0].get("width", "nan")) < right < float(root.get("width", "nan"))
    titles = [words.text for words in root.findall("{http://www.w3.org/2000/svg}text")]
    assert titles == ["Training & more", "Validation"]


def test_a_class_without_test_rows() -> None:
    from mixwell.report import details

    names = [str(at) for at in range(14)]
    labels = np.arange(40) % 13  # class 13 is predicted, and never true
    logits = np.eye(14)[np.where(np.arange(40) % 3, labels, 13)]
    method = details.describe("m", "single_label", names, [details.SeedOutputs(logits, labels, 1.0)], None, {})
    matrix = details.method_view(method, None, {"m": 1})["classes"]["matrix"]
    row = next(each for each in matrix["rows"] if each["name"] == "13")
    assert len(matrix["rows"]) == 14 and all(cell["text"] == "" for cell in row["cells"])


def test_without_texts_and_after_the_data_changed(records: Records, summary: Summary, tmp_path: Path) -> None:
    page = export.export(summary, "html", texts=False)
    assert "says" not in page and "the page was made without texts" in page
    file = records.path.parent / "data0" / "test.csv"
    kept = file.read_text(encoding="utf-8")
    try:
        file.write_text(kept.replace("row 600", "another row"), encoding="utf-8")
        assert "the data changed since the records were made" in export.export(summary, "html")
        file.unlink()
        assert "No texts here: the data" in export.export(summary, "html")
    finally:
        file.write_text(kept, encoding="utf-8")


def test_a_regression_has_a_page(browser: Any, tmp_path: Path) -> None:
    """No classes, no reliability: the page leaves them out."""
    from mixwell.compare import grid as grids

    make_model(tmp_path / "tiny")
    with open(tmp_path / "stars.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerows([["text", "label"], *([f"film number {at}", 0.5 + at / 7] for at in range(60))])

    def ends(spec: CellSpec) -> Any:
        from mixwell.compare.engines.base import Finished

        draw = np.random.default_rng(spec.seed)
        truth = np.linspace(0, 3, 30)
        guess = (truth + draw.normal(size=30) * (0.3 if spec.method == "amplify" else 1.0)).astype(np.float32)
        made = outputs_like(spec, guess, truth)
        return Finished(spec.key, made)

    values = {
        "data": str(tmp_path / "stars.csv"),
        "model": str(tmp_path / "tiny"),
        "seeds": 3,
        "methods": ["amplify"],
        "task": "regression",
        "references": False,
    }
    found = Records(tmp_path / "out")
    found.create()
    execute(plan(grids.make_grid({}, {**values, "settings": SETTINGS})), found, FakeEngine(ends), LiveView())
    path = tmp_path / "r.html"
    path.write_text(export.export(read_summary(found), "html"))
    with open_page(path, browser=browser) as page:
        heads = page.locator("#board thead button").all_text_contents()
        assert "MSE" in heads and page.locator("table.heat").count() == 0
        assert math.isfinite(float(page.locator("#board tbody td").nth(heads.index("MSE")).get_attribute("data-value")))


def outputs_like(spec: CellSpec, guess: Any, truth: Any) -> CellResult:
    values = measure(guess, truth, "regression")
    result = {
        "task": "regression", "labels": [], "temperature": None, "test": {"rows": 30, "before": values},
        "train_rows": 40, "history": [], "timing": {"seconds": 1.0, "seconds_per_step": None}, "versions": {},
    }  # fmt: skip
    return CellResult(result, {"test_logits": guess, "test_labels": truth})


def test_the_page_of_a_run(browser: Any, tmp_path: Path) -> None:
    import json

    from test_training import rows, write_csv

    make_model(tmp_path / "tiny")
    write_csv(tmp_path / "films.csv", rows(90))
    line = ["train", str(tmp_path / "films.csv"), "--model", str(tmp_path / "tiny"), "--method", "amplify", "--quiet"]
    line += ["--epochs", "2", "--batch-size", "8", "--learning-rate", "3e-3", "--output", str(tmp_path / "run")]
    assert main([*line, "--folds", "0"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    with open_page(tmp_path / "run" / "report.html", browser=browser, width=390) as page:
        assert no_sideways_scroll(page)
        script = "all => all.map(r => [...r.cells].map(c => c.textContent))"
        cells = page.locator("#metrics tbody tr").evaluate_all(script)
        for (name, before, after), key in zip(cells, metrics["test"]["before"], strict=True):
            assert name == METRICS[key].title
            assert before == f"{metrics['test']['before'][key]:.4f}" and after == f"{metrics['test']['after'][key]:.4f}"
        assert page.locator("svg[role=img]:visible").count() >= 4
        assert page.locator(".numbers b").first.inner_text() == f"{100 * metrics['test']['before']['accuracy']:.1f} %"
        assert "tiny" in page.locator(".facts").inner_text() and "AMPLIFY" in page.locator("h1").inner_text()
    for scheme in ("light", "dark"):
        with open_page(tmp_path / "run" / "report.html", browser=browser, scheme=scheme) as page:
            assert axe_violations(page) == []
    # Made again from the folder, it is the same; without the data it does without texts.
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
    (tmp_path / "films.csv").unlink()
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "bare.html")]) == 0
    assert "No texts here" in (tmp_path / "bare.html").read_text()
    assert main(["report", str(tmp_path / "run"), "-f", "csv"]) == 2
