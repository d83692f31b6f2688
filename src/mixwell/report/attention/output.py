"""Write attention as a file: a self-contained page, or one picture as SVG or PNG."""

from __future__ import annotations

from pathlib import Path

from mixwell.report.attention.choice import Choice, check_view
from mixwell.report.attention.data import Attention
from mixwell.report.attention.page import page
from mixwell.report.attention.pictures import picture
from mixwell.utils.errors import OptionError
from mixwell.utils.files import write_bytes

KINDS = ("html", "svg", "png")


def kind_of(output: str, view: str = "lines") -> str:
    """The kind of file that a name asks for: `html`, `svg` or `png`.

    Raises:
        OptionError: another ending, or no such view.
    """
    check_view(view)
    kind = Path(output).suffix.lower().lstrip(".")
    kind = "html" if kind == "htm" else kind
    if kind not in KINDS:
        raise OptionError(f"--output {output}: the name must end in {', '.join('.' + name for name in KINDS)}")
    return kind


def write(output: str, kind: str, attention: Attention, choice: Choice) -> int:
    """Write a page or a picture; return its size in bytes.

    Args:
        output: the file.
        kind: of `kind_of`.
        attention: the captures.
        choice: what it shows.
    """
    data = page(attention, choice).encode() if kind == "html" else picture(attention, choice, kind)
    write_bytes(output, data)
    return len(data)
