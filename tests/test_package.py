"""What a user meets first: import and --help at once, no heavy modules, public names."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import mixwell


def best_seconds(command: list[str], tries: int = 5) -> float:
    """The processor time of the best of a few tries: what it takes on an idle machine, also if this one is not."""
    times = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_import_is_quick_and_light():
    bare = best_seconds([sys.executable, "-c", "pass"])
    assert best_seconds([sys.executable, "-c", "import mixwell"]) - bare < 0.2
    check = (
        "import mixwell, sys; print([m for m in ('torch','transformers','numpy','scipy','pandas') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_help_is_quick():
    assert best_seconds([sys.executable, "-m", "mixwell", "--help"]) < 0.5


def test_public_names():
    for name in mixwell.__all__:
        assert getattr(mixwell, name) is not None
    assert set(mixwell.methods()) >= {
        "none", "amplify", "embedmix", "sentencemix", "cls", "tmix", "input", "manifold", "attentionmix",
        "batchmixup", "nonlinear", "ssmix",
    }  # fmt: skip
    assert all(line and "\n" not in line for line in mixwell.methods().values())
    assert mixwell.methods() == mixwell.methods()  # also after the package of that name was imported
    with pytest.raises(AttributeError):
        _ = mixwell.nothing


def test_every_option_has_a_help_text():
    import dataclasses

    from mixwell.methods import load_all

    for method in load_all().values():
        for field in dataclasses.fields(method):
            if field.init:
                assert field.metadata.get("help"), f"{method.name}.{field.name}"
