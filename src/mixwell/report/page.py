"""The frame of all pages: one file with its style and script inside, no network, one style.

Everything that comes from a user is escaped by the template engine; values for scripts go through `as_json`. The
page's own script is the only one a browser may run: the policy names its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from markupsafe import Markup

from mixwell._version import __version__


def render(template: str, *, scripts: tuple[str, ...] = (), styles: tuple[str, ...] = (), **values: Any) -> str:
    """Fill in a template of this folder that extends `page.html.j2`.

    Args:
        template: its file name.
        scripts: files of this folder that come after `page.js`.
        styles: files of this folder that come after `page.css`.
        **values: for the template.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mixwell", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    script = "\n".join(package_text(name) for name in ("page.js", *scripts))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {
        "version": __version__,
        "style": Markup("\n".join(package_text(name) for name in ("page.css", *styles))),
        "script": Markup(script),
        "script_hash": f"'sha256-{digest}'",
    }
    return environment.get_template(template).render(**values).rstrip() + "\n"


def as_json(value: Any) -> Markup:
    """A value as JSON for a script element: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def package_text(name: str) -> str:
    """A style or script of this folder."""
    return resources.files("mixwell.report").joinpath(name).read_text(encoding="utf-8").strip()
