"""The attention page in a real browser: choices change the picture, the weights drawn are the model's, no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import axe_violations, no_sideways_scroll, open_page, start_browser

import parts
from mixwell.report.attention import choice, data, pictures
from mixwell.report.attention.capture import capture
from mixwell.training import models

EVIL = '<script>document.title="broken"</script><img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def found() -> data.Attention:
    loaded = models.load("minilm", labels=["0", "1"])
    return capture(
        loaded, "the rabbit quickly hopped", "the turtle slowly crawled",
        "the animal didn't cross the street because it was too tired", lam=0.8, lams=[1.0, 0.5],
    )  # fmt: skip


@pytest.fixture(scope="module")
def file(found: data.Attention, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("attention") / "attention.html"
    pictures.write(str(target), "html", found, choice.choose(found, head=2, word="rabbit"))
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as started:
        yield started


def show(page: Any, view: str) -> None:
    page.locator(f"input[name=view][value={view}]").check(force=True)


def matrix(page: Any, method: str, rows: int, columns: int) -> np.ndarray:
    """The weights of the lines as drawn."""
    drawn = page.eval_on_selector_all(
        f'[data-method="{method}"] .lines line',
        "all => all.map(l => [+l.parentNode.dataset.from, +l.dataset.key, +l.dataset.weight])",
    )
    values = np.full((rows, columns), np.nan)
    for i, j, weight in drawn:
        values[int(i), int(j)] = weight
    return values


def test_lines_are_the_models_weights(file: Path, found: data.Attention, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        assert page.locator(".panel h3").first.inner_text() == "plain"
        pictures = set()
        for block, head, lam in ((3, 2, "0.8"), (0, 2, "0.8"), (5, 11, "0.8"), (5, 11, "0.5"), (5, 11, "1")):
            page.select_option("#block", str(block))
            page.select_option("#head", str(head))
            page.select_option("#lam", lam)
            for method in found.methods:
                wanted = found.view(method, float(lam)).weights[block][head]
                drawn = matrix(page, method, *wanted.shape)
                assert np.abs(drawn - wanted).max() < 1e-6
                share = found.view(method, float(lam))
                moved = data.distance(share, found.plain)[block][head]
                if method != "none":
                    printed = page.locator(f'[data-method="{method}"] .moved').inner_text()
                    assert f"{100 * moved:.1f} %" in printed
            pictures.add(page.locator("#panels").inner_html())
            assert page.locator("#headline").inner_text() == f"Block {block}, head {head}, lam {lam}"
        assert len(pictures) == 5
        # Width and darkness follow the weight, on one scale for all methods.
        page.select_option("#lam", "0.8")
        looks = page.eval_on_selector_all(
            "#panels .lines line", "all => all.map(l => [+l.dataset.weight, +getComputedStyle(l).strokeOpacity])"
        )
        most = max(weight for weight, _ in looks)
        assert all(abs(opacity - weight / most) < 2e-3 for weight, opacity in looks)


def test_methods_and_difference(file: Path, found: data.Attention, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        assert page.locator("#panels .panel").count() == 3
        page.uncheck('input[name=method][value="none"]')
        page.uncheck('input[name=method][value="embedmix"]')
        assert page.locator("#panels .panel").count() == 1
        page.check("#difference")
        wanted = data.difference(found.view("amplify", 0.8).weights[3][2], found.plain.weights[3][2])
        assert np.abs(matrix(page, "amplify", *wanted.shape) - wanted).max() < 1e-6
        assert page.locator("#legend").is_visible()
        assert page.locator(".line.less").count() > 0
        page.uncheck('input[name=method][value="amplify"]')
        assert "Choose at least one method" in page.locator("#panels").inner_text()


def test_one_word_by_mouse_and_keyboard(file: Path, found: data.Attention, browser: Any) -> None:
    def bars(page: Any, method: str) -> list[float]:
        return page.eval_on_selector_all(f'[data-method="{method}"] .bars', "all => all.map(b => +b.dataset.weight)")

    with open_page(file, browser=browser) as page:
        show(page, "word")
        for method in found.methods:
            wanted = found.view(method, 0.8).weights[3][2]
            assert np.abs(np.array(bars(page, method)) - wanted[2]).max() < 1e-6
        row = data.difference(wanted, found.plain.weights[3][2])[2]  # of embedmix, the last one
        assert f"{50 * np.abs(row).sum():.1f} % of this word" in page.locator('[data-method="embedmix"]').inner_text()
        page.click('[data-method="amplify"] .token[data-word="7"]')
        wanted = found.view("amplify", 0.8).weights[3][2]
        assert np.abs(np.array(bars(page, "amplify")) - wanted[7]).max() < 1e-6
        assert page.input_value("#word") == "7"
        page.focus('[data-method="amplify"] .token[tabindex="0"]')
        page.keyboard.press("ArrowDown")
        assert np.abs(np.array(bars(page, "amplify")) - wanted[8]).max() < 1e-6
        assert page.evaluate("document.activeElement.dataset.word") == "8"  # the focus moves along
        page.select_option("#word", "0")
        assert np.abs(np.array(bars(page, "amplify")) - wanted[0]).max() < 1e-6


def test_hovering_a_word_isolates_its_lines(file: Path, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        page.hover('[data-method="none"] .token[data-word="4"]')
        assert page.locator('[data-method="amplify"] .lines > g.faint').count() == 10
        page.hover("h1")
        assert page.locator(".lines > g.faint").count() == 0


def test_neurons_add_up(file: Path, found: data.Attention, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        show(page, "neurons")
        for method in found.methods:
            view = found.view(method, 0.8)
            assert view.queries and view.keys and view.scale
            scores = view.keys[3][2] @ view.queries[3][2][2] * view.scale[3]
            rows = page.eval_on_selector_all(
                f'[data-method="{method}"] .row', "all => all.map(r => [+r.dataset.score, +r.dataset.weight])"
            )
            assert np.abs(np.array([score for score, _ in rows]) - scores).max() < 2e-3
            assert np.abs(np.array([weight for _, weight in rows]) - view.weights[3][2][2]).max() < 1e-6
            size = view.queries[3].shape[-1]
            assert page.locator(f'[data-method="{method}"] [data-neuron]').count() == size * (1 + 2 * len(scores))
        page.click('[data-method="none"] .row[data-key="5"]')
        assert page.input_value("#key") == "5"
        page.click("#pair summary")
        assert page.locator("#pair tbody tr").count() == size + 3


def test_graph_threshold(file: Path, found: data.Attention, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        show(page, "graph")
        for threshold in (0.1, 0.3):
            page.locator("#threshold").fill(str(threshold))
            for method in found.methods:
                weights = found.view(method, 0.8).weights[3][2].copy()
                weights[np.arange(11), np.arange(11)] = 0
                drawn = page.eval_on_selector_all(
                    f'[data-method="{method}"] path.edge', "all => all.map(e => +e.dataset.weight)"
                )
                wanted = weights[weights >= threshold]
                assert len(drawn) == wanted.size
                assert np.allclose(sorted(drawn), sorted(wanted), atol=1e-6)
        page.uncheck("#special")
        assert page.locator('[data-method="none"] .token').count() == 8


def test_map_of_heads_chooses(file: Path, found: data.Attention, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        shares = page.eval_on_selector_all(".map button", "all => all.map(b => +b.dataset.share)")
        wanted = [np.array(data.distance(found.view(name, 0.8), found.plain)) for name in ("amplify", "embedmix")]
        assert np.abs(np.array(shares).reshape(2, 6, 12) - np.stack(wanted)).max() < 1e-4
        page.click('.map button[data-block="1"][data-head="7"] >> nth=0')
        assert page.locator("#headline").inner_text().startswith("Block 1, head 7,")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.locator("#headline").inner_text().startswith("Block 2, head 8,")
        assert (page.input_value("#block"), page.input_value("#head")) == ("2", "8")


def test_the_address_keeps_the_choice(file: Path, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        show(page, "graph")
        page.select_option("#block", "1")
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        assert page.locator("#headline").inner_text().startswith("Block 1, head 2,")
        assert page.locator("path.edge").count() > 0
        page.goto("about:blank")
        page.goto(address.split("#")[0] + "#view=nonsense&block=99&head=-1&lam=7&word=x")
        assert page.locator("#headline").inner_text() == "Block 3, head 2, lam 0.8"


def test_tables_hold_the_weights(file: Path, found: data.Attention, browser: Any) -> None:
    with open_page(file, browser=browser) as page:
        page.click('[data-method="amplify"] summary')
        cells = page.eval_on_selector_all('[data-method="amplify"] td', "all => all.map(c => +c.textContent)")
        wanted = found.view("amplify", 0.8).weights[3][2]
        assert np.abs(np.array(cells).reshape(wanted.shape) - wanted).max() < 6e-5
        page.select_option("#head", "3")  # stays open
        assert page.locator('[data-method="amplify"] table').is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_and_names(file: Path, browser: Any, scheme: str) -> None:
    with open_page(file, browser=browser, width=390, height=844, scheme=scheme) as page:
        for view in choice.VIEWS:
            show(page, view)
            assert no_sideways_scroll(page), view
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light dark"
        for control in page.locator("select, input, button, [role=button]").all():
            name = control.evaluate(
                "e => e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.[0]?.textContent || ''"
            )
            assert name.strip()
        page.emulate_media(media="print")
        assert not page.locator(".bar").is_visible()
        assert page.locator("#panels svg").first.is_visible()


def test_texts_stay_texts(found: data.Attention, tmp_path: Path, browser: Any) -> None:
    loaded = models.load("minilm", labels=["0", "1"])
    evil = capture(loaded, EVIL, None, f"</script>{EVIL} & <!--", lams=[])
    target = tmp_path / "evil.html"
    pictures.write(str(target), "html", evil, choice.choose(evil, view="word"))
    with open_page(target, browser=browser) as page:
        assert "broken" not in page.title() or "<script>" in page.title()
        assert EVIL in page.locator("h1").inner_text()
        assert page.locator("img").count() == 0
        for view in choice.VIEWS:
            show(page, view)
        assert page.locator("script").count() == 2  # the data and the page's own


def test_other_methods_and_models_without_neurons(tmp_path: Path, browser: Any) -> None:
    from test_training import make_model
    from transformers import AutoTokenizer

    import zoo

    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path / "model"))
    loaded = models.LoadedModel("tiny", "tiny", zoo.tiny("mpnet"), tokenizer, 1, 40)
    methods = "amplify,tmix,ssmix,attentionmix,cls"  # without plain
    made = capture(loaded, "the film was great", None, "a dull plot", methods=methods, lams=[])
    target = tmp_path / "tiny.html"
    pictures.write(str(target), "html", made, choice.choose(made))
    with open_page(target, browser=browser) as page:
        assert page.locator("#panels .panel").count() == 5
        assert page.locator("input[name=view][value=neurons]").count() == 0
        assert "nothing is mixed before this attention" in page.locator('[data-method="cls"]').inner_text()
        page.check("#difference")
        show(page, "graph")
        data = json.loads(page.locator("#data").text_content())
        assert data["methods"] == methods.split(",")


def test_plain_alone_needs_no_partner(tmp_path: Path, browser: Any) -> None:
    loaded = models.load("minilm", labels=["0", "1"])
    made = capture(loaded, "a fresh view", methods="none")
    assert made.notes == []
    target = tmp_path / "plain.html"
    pictures.write(str(target), "html", made, choice.choose(made))
    with open_page(target, browser=browser) as page:
        assert page.locator("#panels .panel").count() == 1
        assert page.locator("#lam, #maps, #difference").count() == 0
        for view in choice.VIEWS:
            show(page, view)


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> tuple[data.Attention, Path]:
    """Methods that draw a layer, and one that ignores lam."""
    loaded = models.load("minilm", labels=["0", "1"])
    made = capture(
        loaded,
        "the rabbit hopped",
        None,
        "a turtle crawled home",
        methods="none,attentionmix,tmix,manifold",
        lams=[1.0],
    )
    target = tmp_path_factory.mktemp("layers") / "attention.html"
    pictures.write(str(target), "html", made, choice.choose(made, block=5, head=2))
    return made, target


def test_layers_and_lam(layered: tuple[data.Attention, Path], browser: Any) -> None:
    made, target = layered
    assert made.layers_of("tmix") == [3, 4, 5] and len(made.layers_of("manifold")) == 4 and not made.layers_of("none")
    with open_page(target, browser=browser) as page:
        # Who meets whom comes before the pictures, with a line on each method.
        assert page.locator("h2").first.inner_text() == "Who meets whom"
        assert page.locator(".blends dt").all_inner_texts() == ["plain", "AttentionMix", "TMix", "Manifold MixUp"]
        for layer in made.layers_of("manifold"):
            page.select_option("select[data-layer=manifold]", str(layer))
            wanted = made.layers.get(("manifold", 0.8, layer), made.view("manifold", 0.8)).weights[5][2]
            assert np.abs(matrix(page, "manifold", *wanted.shape) - wanted).max() < 1e-6
        # lam changes nothing about AttentionMix: it says so, and alone it leaves nothing to choose.
        page.select_option("#lam", "1")
        assert "ignores lam" in page.locator('[data-method="attentionmix"]').inner_text()
        assert "lam 1 is plain" not in page.locator('[data-method="attentionmix"]').inner_text()
        for name in ("tmix", "manifold"):
            page.uncheck(f'input[name=method][value="{name}"]')
        assert page.locator("#lam").is_disabled() and page.locator("#headline").inner_text() == "Block 5, head 2"


def test_no_empty_panel(layered: tuple[data.Attention, Path], browser: Any) -> None:
    with open_page(layered[1], browser=browser) as page:
        page.select_option("#block", "0")  # TMix mixes far above it
        page.check("#difference")
        assert "No difference to plain" in page.locator('#panels [data-method="tmix"]').inner_text()
        for view in ("lines", "word", "neurons", "graph"):
            show(page, view)
            for block in ("0", "5"):
                page.select_option("#block", block)
                texts = page.locator("#panels .panel").all_inner_texts()
                pictures_in = page.locator("#panels .panel > svg").count() + page.locator("#panels .nothing").count()
                assert len(texts) == pictures_in > 0


@pytest.mark.parametrize(
    ("scheme", "width"), parts.some([("light", 390), ("light", 1280), ("dark", 390), ("dark", 1280)], 3)
)
def test_everybody_can_use_it(file: Path, browser: Any, scheme: str, width: int) -> None:
    with open_page(file, browser=browser, scheme=scheme, width=width) as page:
        for view in ("lines", "neurons") if width == 1280 else ("word", "graph"):
            show(page, view)
            assert axe_violations(page, colours_only=scheme == "dark") == []
