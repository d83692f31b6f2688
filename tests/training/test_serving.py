"""The server of docs/howto/export.md, as it stands there, on the loopback."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from test_training import calm, data_file, rows, run, settings, tiny  # noqa: F401

from mixwell.training.export import export_onnx


def benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "serve.py"
    spec = importlib.util.spec_from_file_location("serve", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_server_answers_clients_at_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    serve = benchmark()
    folder = export_onnx(run, tmp_path / "served" / "model.onnx").file.parent
    about = json.loads((folder / "mixwell.json").read_text())
    (folder / "mixwell.json").write_text(json.dumps({**about, "threshold": 0.5001}))
    texts = [text for text, _ in rows(64, seed=11)]
    wanted = serve.expected(folder, texts)
    with serve.serving(folder) as port:
        done = serve.load_test(port, texts, wanted, clients=8)
        assert done["requests"] == 64 and done["errors"] == []
        assert serve.ask(port, "")[0] == 422
        assert serve.ask(port, 3)[0] == 422
        wrong = serve.load_test(port, texts[:2], ["nothing", "nothing"], clients=2)
    assert len(wrong["errors"]) == 2
