"""A real browser for tests of pages: a page that logs an error or asks the network for anything fails its test."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Read at import: tests of runs set it for their own processes.
_CI = bool(os.environ.get("CI"))

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AXE = Path(__file__).parents[2] / ".node" / "node_modules" / "axe-core" / "axe.min.js"
LOCAL = ("file:", "data:", "blob:", "about:")


def chromium() -> str:
    """The path of the system's Chromium; without one the test is skipped, or fails under CI."""
    missing = "" if (found := shutil.which("chromium")) else "chromium is not installed"
    try:
        import playwright  # noqa: F401
    except ImportError:
        missing = "playwright is not installed"
    if missing and _CI:
        pytest.fail(f"{missing}; CI needs Debian's chromium and the extra `test`", pytrace=False)
    if missing:
        pytest.skip(missing)
    return str(found)


@contextlib.contextmanager
def start_browser() -> Iterator[Any]:
    """Yield a browser, for several `open_page(..., browser=...)`."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_page(
    path: str | os.PathLike[str],
    *,
    width: int = 1200,
    height: int = 900,
    scheme: str = "light",
    strict: bool = True,
    browser: Any = None,
) -> Iterator[Any]:
    """Open a file in Chromium.

    The page has two more attributes: `errors`, what it logged as an error or threw, and `network`, the addresses
    other than local ones that it asked for. Every such request is refused. Leaving the context without an exception
    checks that both are empty.

    Args:
        path: of the HTML file.
        width: of the window, in CSS pixels.
        height: of the window.
        scheme: `light` or `dark`.
        strict: check `errors` and `network` at the end.
        browser: of `start_browser`; without one a browser is started for this page alone.

    Yields:
        Playwright's page, loaded.
    """
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(start_browser()) if browser is None else browser
        context = used.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", offline=True
        )
        stack.callback(context.close)
        page = context.new_page()
        page.set_default_timeout(15_000)
        errors: list[str] = []
        network: list[str] = []
        page.errors, page.network = errors, network
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(LOCAL) else network.append(request.url))
        page.goto(Path(path).resolve().as_uri())
        yield page
        if strict:
            assert errors == [], f"{Path(path).name} logged errors: {errors}"
            assert network == [], f"{Path(path).name} asked the network: {network}"


def axe_violations(page: Any, *, colours_only: bool = False) -> list[str]:
    """What axe-core finds wrong with a page, one line per rule and element.

    `colours_only` asks for contrast alone: all else is the same in another colour scheme. `make browsers` installs
    axe-core with npm. Without it the test is skipped, or fails under CI.
    """
    if not AXE.exists():
        missing = "axe-core is not installed; `make browsers` does that"
        pytest.fail(missing, pytrace=False) if _CI else pytest.skip(missing)
    page.evaluate(AXE.read_text(encoding="utf-8") + ";undefined")
    # Without `preload`, which asks for the style sheets once more: a browser refuses that for files.
    how = {"preload": False} | ({"runOnly": ["color-contrast"]} if colours_only else {})
    results = page.evaluate("async how => (await axe.run(document, how)).violations", how)
    return [
        f"{rule['id']}: {node['html'][:160]} ({node['failureSummary'][:300]})"
        for rule in results
        for node in rule["nodes"]
    ]


def no_sideways_scroll(page: Any) -> bool:
    """Tell whether the page fits the window's width."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
