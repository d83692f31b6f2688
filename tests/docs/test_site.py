"""The documentation site: it builds strictly, all links lead somewhere, and it works in a browser without a network."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browsing import axe_violations, no_sideways_scroll, open_page, start_browser

import build_docs
import parts
import pictures
from mixwell.methods import load_all

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAV = re.findall(r'= "([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))
# Read at import: tests of runs set it for their own processes.
CI = bool(os.environ.get("CI"))


@pytest.fixture(scope="session")
def site():
    if sys.version_info < (3, 11):
        pytest.skip("Zensical needs Python 3.11")
    for name in ("zensical", "mkdocstrings", "latex2mathml"):
        if importlib.util.find_spec(name) is None:
            if CI:
                pytest.fail(f"{name} is not installed; CI needs the extra `docs`", pytrace=False)
            pytest.skip(f"{name} is not installed: the extra `docs` brings it")
    return build_docs.build()


class Page(HTMLParser):
    """The links and anchors of a page, and what it loads by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.paragraphs: list[str] = []
        self._in_paragraph = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "p":
            self._in_paragraph = True
            self.paragraphs.append("")
        for name in ("id", "name"):
            if values.get(name):
                self.anchors.add(values[name])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next") and values.get("href"):
            self.loads.append(values["href"])
        elif tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.loads.append(values["src"])

    def handle_endtag(self, tag):
        if tag == "p":
            self._in_paragraph = False

    def handle_data(self, data):
        if self._in_paragraph:
            self.paragraphs[-1] += data


def built(site: Path) -> dict[Path, Page]:
    """The pages of the site; reports of packs are pages of another kind, with tests of their own."""
    return {path: Page(path) for path in site.rglob("*.html") if path.name not in ("report.html", "404.html")}


# --- sources ---------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_and_there():
    files = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    files = {name for name in files if not name.startswith("results/")}
    assert set(NAV) == files
    assert len(NAV) == len(set(NAV))


def test_pictures_are_what_the_script_draws():
    drawn = pictures.draw_all()
    assert {path.name for path in pictures.FOLDER.iterdir()} == set(drawn), "run `python tools/pictures.py`"
    for name, text in drawn.items():
        assert (pictures.FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: run `python tools/pictures.py`"


def test_every_picture_is_used_in_both_schemes():
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *DOCS.rglob("*.md")))
    for name in pictures.draw_all():
        assert f"pictures/{name}" in text, name


def test_every_method_has_a_page_and_a_place():
    for name, method in load_all().items():
        assert f"methods/{name}.md" in NAV, f"docs/methods/{name}.md is missing"
        assert f"]({name}.md)" in (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
        page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
        for part in ("options", "cost", "result"):
            assert f'--8<-- "{part}-{name}.md"' in page
        if method.mixes:
            assert any(name in names for names in pictures.PLACES.values()), f"{name}: add it to PLACES of pictures.py"
            assert "```math" in page


def test_shares_of_lam():
    """The picture's probabilities against draws by the methods' own rule."""
    import numpy as np
    import torch

    from mixwell.core.draw import draw_lam

    for rule in pictures.lam_rules():
        rng = torch.Generator().manual_seed(1)
        drawn = np.array([draw_lam(rule[0], rule[1], rule[2], rng) for _ in range(4000)])
        for edge in (0.2, 0.6, 0.9, 0.99):
            assert abs((drawn <= edge).mean() - float(pictures.lam_below(rule, np.array(edge)))) < 0.03, (rule, edge)


def test_links_of_files_outside_the_site():
    """README, CONTRIBUTING and the changelog are read in the repository."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)|(?:src|srcset)=\"([^\"]+)\"", text):
            path = next(filter(None, target))
            assert path.startswith("https://") or (ROOT / path).exists(), f"{name}: {path}"


def test_flow_charts_are_read():
    fences = pytest.importorskip("docs_fences")
    boxes, edges = fences.parse('flowchart TD\n A{"one?"} -->|yes| B["two<br/>lines"]\n A -.-> C["no"]')
    assert boxes["A"].question and boxes["B"].lines == ["two", "lines"]
    assert [(edge.start, edge.end, edge.label, edge.dotted) for edge in edges] == [
        ("A", "B", "yes", False), ("A", "C", "", True),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no text for D"):
        fences.parse('A["x"] --> D')
    with pytest.raises(ValueError, match="cannot read"):
        fences.parse('A["x"] ==> B["y"]')


# --- the built site --------------------------------------------------------------------------------------------------


def test_all_links_lead_somewhere(site):
    pages = built(site)
    assert len(pages) >= len(NAV)
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("https", "mailto"), f"{path.relative_to(site)}: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.relative_to(site)}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.relative_to(site)}: {link}"


def test_pages_load_local_files_only(site):
    for path, page in built(site).items():
        for load in page.loads:
            parts = urlsplit(load)
            assert parts.scheme == "data" or not (parts.scheme or parts.netloc), f"{path.relative_to(site)}: {load}"
            assert (path.parent / unquote(parts.path)).exists(), f"{path.relative_to(site)}: {load}"


def test_lists_and_tables_are_lists_and_tables(site):
    """Right below a paragraph, without an empty line, they would be words of it."""
    for path, page in built(site).items():
        for text in page.paragraphs:
            assert not re.search(r"(?:^\| |\n(?:[-*|] |\d+\. ))", text), f"{path.relative_to(site)}: {text[:80]}"


def test_generated_parts_are_on_their_pages(site):
    from mixwell.cli import commands

    for name, method in load_all().items():
        text = (site / "methods" / f"{name}.html").read_text(encoding="utf-8")
        shared = (site / "methods" / "index.html").read_text(encoding="utf-8")
        for field in dataclasses.fields(method):
            if field.init:
                assert f"<code>{field.name}</code>" in text + shared, f"{name}.{field.name}"
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for name in commands():
        assert f'id="mixwell-{name}"' in text
    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for name in ("attach", "inspect", "train", "resume", "Mixer", "Classifier", "Method"):
        assert re.search(rf'id="mixwell\.[\w.]*{name}"', text), name
    assert "<math " in (site / "methods" / "amplify.html").read_text(encoding="utf-8")
    assert 'class="flowchart"' in (site / "start" / "which-method.html").read_text(encoding="utf-8")
    for path in site.rglob("*.html"):
        assert "--8&lt;--" not in path.read_text(encoding="utf-8"), path


PAGES = (
    "index", "start/which-method", "tutorials/trainer", "howto/train", "methods/index", "methods/amplify",
    "explanation/calibration", "explanation/architecture", "results", "benchmarks", "reference/api", "reference/cli",
    "more/glossary", "explanation/recipe", "results/protocol",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with start_browser() as started:
        yield started


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_in_a_browser(site, browser, scheme):
    for name in parts.some(PAGES, 2, ("light", "dark").index(scheme)):
        with open_page(site / f"{name}.html", width=1280, scheme=scheme, browser=browser) as page:
            assert page.locator("article h1").count() == 1
            assert no_sideways_scroll(page), name
            assert axe_violations(page, colours_only=scheme == "dark") == [], name
            page.set_viewport_size({"width": 390, "height": 900})
            assert no_sideways_scroll(page), name
            shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
            dark = sum(map(int, re.findall(r"\d+", shown)[:3])) < 300
            assert dark == (scheme == "dark"), f"{name}: {shown}"
            for image in page.locator("article img").all():
                address = image.get_attribute("src") or ""
                hidden = f"gh-{'dark' if scheme == 'light' else 'light'}-mode-only"
                assert image.is_visible() == (not address.endswith(hidden)), f"{name}: {address}"
                assert image.evaluate("image => image.complete && image.naturalWidth > 0") or not image.is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_search_finds_a_method(site, browser, width):
    with open_page(site / "index.html", width=width, browser=browser) as page:
        page.keyboard.press("Control+k")
        page.keyboard.type("amplify", delay=20)
        hit = page.locator("a[href*='methods/amplify.html']").filter(has_text="Mix the stream after attention")
        hit.first.click()
        page.wait_for_url("**/methods/amplify.html*")
        assert page.locator("article h1").inner_text().startswith("amplify")
