"""Run all Python of README and docs as it stands there: loops, how-to pages, tutorials."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import parts
import tutorials
from forked import Command, fork_workers

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
TEXT = (ROOT / "docs" / "howto" / "integrations.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
SNIPPETS = {section.splitlines()[0]: code for section in SECTIONS for code in BLOCK.findall(section)}
PRELUDE = """
import torch
import zoo

torch.set_num_threads(1)
rows = zoo.batch(rows=8)
train_dataset = [{key: value[row] for key, value in rows.items()} for row in range(8)]
loader = torch.utils.data.DataLoader(train_dataset, batch_size=4)
model = zoo.tiny("bert", dropout=0.1).eval()
"""
ENCODER = """
import pathlib, sys
sys.path.insert(0, {golden!r})
from datasets import Dataset
from make_model import make_model
folder = str(make_model(pathlib.Path("encoder").absolute()))
words = ["a good film", "a bad plot", "one fine scene", "it was dull"]
"""
# What single snippets take for granted besides; the last line names what they train.
MORE = {
    "sentence-transformers": """
from sentence_transformers import CrossEncoder
cross_encoder = trained = CrossEncoder(folder, num_labels=2, device="cpu")
pairs = Dataset.from_dict({"text": words, "answer": words[::-1], "label": [0, 1, 0, 1]})
""",
    "SetFit": """
from sentence_transformers import SentenceTransformer
from setfit import SetFitHead, SetFitModel
trained = SetFitHead(in_features=16, out_features=2, device="cpu")
setfit_model = SetFitModel(model_body=SentenceTransformer(folder, device="cpu"), model_head=trained)
texts = Dataset.from_dict({"text": words, "label": [0, 1, 0, 1]})
""",
}


def test_every_loop_has_a_snippet():
    wanted = (
        "Plain", "Trainer", "Accelerate", "Lightning", "PEFT", "torch.compile", "bf16", "DDP", "Any torch module",
        "Any loss", *MORE,
    )  # fmt: skip
    for word in wanted:
        assert any(word in title for title in SNIPPETS), word
    assert TEXT.count("```python") == len(SNIPPETS)


@pytest.fixture
def _quiet():
    from accelerate.state import AcceleratorState, GradientState

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("title", [title for title in SNIPPETS if "DDP" not in title])
def test_snippet(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    space: dict = {"__name__": "snippet"}
    exec(PRELUDE, space)
    if title in MORE:
        exec(ENCODER.format(golden=str(HERE / "golden")) + MORE[title], space)
    trained = space.get("trained", space["model"])
    start = {key: value.clone() for key, value in trained.state_dict().items()}
    # Neither a C++ compiler nor a processor that keeps its promises on bf16 is needed here.
    with torch.compiler.set_stance("default", force_backend="eager"), torch.backends.mkldnn.flags(enabled=False):
        exec(compile(SNIPPETS[title], title, "exec"), space)
    assert space["mixer"].last is not None
    if "PEFT" in title:
        assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    else:
        end = trained.state_dict()
        assert any(not torch.equal(start[key], end[key]) for key in start)


@pytest.mark.parametrize("_turn", range(int(os.environ.get("MIXWELL_DDP_RUNS", "1"))))
def test_ddp_snippet(_turn, tmp_path):
    title = next(title for title in SNIPPETS if "DDP" in title)
    check = """
    import os, pathlib
    pathlib.Path("rank" + os.environ["RANK"]).write_text(str(mixer.last.seed))
    """
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + SNIPPETS[title] + textwrap.dedent(check))
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc_per_node", "2", str(script),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"PYTHONFAULTHANDLER": "1", "TORCH_SHOW_CPP_STACKTRACES": "1"}  # a worker that aborts says where
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            errors = running.communicate(timeout=120)[1]
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # the workers too
            raise
    assert running.returncode == 0, errors
    seeds = {(tmp_path / f"rank{rank}").read_text() for rank in range(2)}
    assert len(seeds) == 2


# --- the other pages -------------------------------------------------------------------------------------------------

PAGES = {
    path.relative_to(ROOT).as_posix(): BLOCK.findall(path.read_text(encoding="utf-8"))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    # The others are run by tests of their own.
    if path.parent.name != "tutorials" and path.name not in ("integrations.md", "estimator.md", "export.md")
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a short run in runs/messages, as the how-to pages have it."""
    import mixwell

    folder = tmp_path_factory.mktemp("trained")
    settings = mixwell.TrainSettings(
        data=str(ROOT / "src" / "mixwell" / "data" / "sample" / "train.csv"), output=str(folder / "runs" / "messages"),
        max_train=48, folds=0, validation=0.3, test="none", method="none", start="random", epochs=1,
    )  # fmt: skip
    mixwell.train(settings, quiet=True)
    return folder


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks])
def test_page(page, request, monkeypatch, tmp_path):
    code = "\n".join(PAGES[page])
    monkeypatch.chdir(request.getfixturevalue("trained") if "runs/messages" in code else tmp_path)
    space: dict = {"__name__": "snippet"}
    exec(PRELUDE, space)
    for block in PAGES[page]:
        exec(compile(block, page, "exec"), space)


def test_there_are_pages():
    blocks = {page for page, found in PAGES.items() if found}
    assert {"README.md", "docs/howto/train.md", "docs/start/quickstart.md"} <= blocks


@pytest.mark.parametrize("path", tutorials.pages(), ids=lambda path: path.stem)
def test_tutorial(path, tmp_path, monkeypatch):
    from mixwell.methods import registry

    # A copy of all: what is registered while it stands in would be gone for later tests.
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.load_all()))
    if path.stem == "lora":
        pytest.importorskip("peft")
    shown = path.read_text(encoding="utf-8")
    if not parts.ALL:  # as short as the words allow
        shown = shown.replace("epochs=6,", "epochs=1,").replace("num_train_epochs=5", "num_train_epochs=2")
    copy = tmp_path / path.name
    copy.write_text(shown, encoding="utf-8")

    def command(words, folder, env):
        return Command(words, fork_workers, cwd=folder, env=env).wait()

    assert tutorials.words(tutorials.run(copy, tmp_path, command)) == tutorials.words(shown), (
        f"run `python tools/tutorials.py {path.relative_to(ROOT)}`"
    )
