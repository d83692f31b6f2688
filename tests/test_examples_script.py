"""benchmarks/examples.py: the one line goes where the model is made, and nothing else changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

SCRIPT = """
def main():
    config = AutoConfig.from_pretrained("x")
    model = AutoModelForSequenceClassification.from_pretrained(
        "x",
        config=config,
    )
    model = model.to("cpu")
"""


def test_one_line():
    import examples

    lines = examples.with_one_line(SCRIPT, "tmix").splitlines()
    assert [line for line in lines if "mixer" not in line] == SCRIPT.splitlines()
    assert lines[7] == "    _mixer = __import__('mixwell').attach(model, 'tmix')"
    with pytest.raises(SystemExit, match="no statement"):
        examples.with_one_line("model = 3", "tmix")


def test_rows(tmp_path):
    import examples

    files = examples.write_rows(tmp_path, 8)
    assert all(path.is_file() for path in files.values())
    assert len(files["rows"].read_text().splitlines()) == 9
