"""Training on a tiny BERT, and the helpers that other tests of runs share."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixwell.utils.errors import MixwellError, OptionError, RunError

WORDS = ["film", "plot", "actor", "scene", "very", "the", "a", "is", "was", "it", "this", "that", "so", "too"]
GOOD, BAD = ["good", "great", "bright"], ["bad", "awful", "dull"]
SOURCE = Path(__file__).resolve().parents[2] / "src"
BASE: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 3e-3, "warmup": 0.0, "weight_decay": 0.0}


def make_model(folder: Path) -> Path:
    """A random BERT without a head, and a word tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: at for at, token in enumerate([*special, *WORDS, *GOOD, *BAD])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=32,
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **size)).save_pretrained(folder)
    return folder


def rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    made = []
    for at in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(2, 8))] + [draw.choice(BAD if at % 2 else GOOD)]
        draw.shuffle(words)
        made.append((" ".join(words), "neg" if at % 2 else "pos"))
    return made


def write_csv(path: Path, lines: list[tuple[str, str]], header: str = "text,label") -> Path:
    path.write_text("\n".join([header, *(f"{text},{label}" for text, label in lines)]) + "\n", encoding="utf-8")
    return path


def run_command(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command line in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "mixwell", *map(str, words)], capture_output=True, text=True, timeout=300, **options
    )


@pytest.fixture(scope="session", autouse=True)
def calm(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", CI="1",
        MIXWELL_CACHE=str(tmp_path_factory.mktemp("cache")), PYTHONPATH=str(SOURCE), COLUMNS="200",
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "films.csv", rows(120))


def settings(tiny: Path, data_file: Path, output: Path, **changes: Any) -> Any:
    from mixwell.training import TrainSettings

    usual = {"method": "amplify", "folds": None if "validation" in changes else 0, "freeze_words": False}
    places = {"data": str(data_file), "model": str(tiny), "output": str(output)}
    return TrainSettings(**{**BASE, **usual, **places, **changes})


# --- fit -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tokens(tiny: Path, data_file: Path) -> Any:
    """The splits, tokenised."""
    from transformers import AutoTokenizer

    from mixwell import data

    found = data.load(data_file)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    return {name: data.tokenise(table, tokenizer, max_length=32) for name, table in found.splits.items()}


def load(tiny: Path, seed: int = 0) -> Any:
    from mixwell.training import models

    return models.load(str(tiny), labels=["neg", "pos"], seed=seed)


def weights(model: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_head_comes_from_the_seed(tiny: Path) -> None:
    import torch

    first = weights(load(tiny).model)
    torch.rand(7)
    assert equal(first, weights(load(tiny).model))
    assert not equal(first, weights(load(tiny, seed=1).model))


def test_fit_repeats_itself_and_keeps_the_best_epoch(tiny: Path, tokens: Any, tmp_path: Path) -> None:
    from mixwell.metrics.measure import measure
    from mixwell.training import fit
    from mixwell.training.predict import logits

    wanted = settings(tiny, tmp_path, tmp_path, best_metric="accuracy", learning_rate=0.01, epochs=5, patience=2)
    ends, results = [], []
    for checkpoints in (None, None, tmp_path / "checkpoints"):
        loaded = load(tiny)
        result = fit(
            loaded.model, loaded.tokenizer, tokens["train"], tokens["validation"], wanted, checkpoints=checkpoints
        )
        results.append(result)
        ends.append(weights(loaded.model))
    assert equal(ends[0], ends[1])
    assert equal(ends[0], ends[2])
    assert results[0].history == results[1].history
    scores = [row["validation"]["accuracy"] for row in results[0].history]
    assert results[0].best_epoch == 1 + scores.index(max(scores))
    found = logits(loaded.model, loaded.tokenizer, tokens["validation"])
    assert measure(found, tokens["validation"]["labels"])["accuracy"] == max(scores)
    assert results[0].seconds_per_step
    assert [row["epoch"] for row in results[0].history] == list(range(1, results[0].epochs + 1))
    assert all(row["train_loss"] > 0 for row in results[0].history)


def test_methods_share_head_order_and_dropout(tiny: Path, tokens: Any, tmp_path: Path) -> None:
    from mixwell.training import fit

    seen: dict[str, list[Any]] = {}
    ends = {}
    for name, options in (("none", {}), ("embedmix", {})):
        loaded = load(tiny)
        seen[name] = []
        loaded.model.register_forward_pre_hook(
            lambda module, args, kwargs, name=name: seen[name].append(
                (kwargs["input_ids"].numpy().copy(), torch_state()) if module.training else None
            ),
            with_kwargs=True,
        )
        wanted = settings(tiny, tmp_path, tmp_path, method=name, method_options=options, epochs=2)
        fit(loaded.model, loaded.tokenizer, tokens["train"], tokens["validation"], wanted)
        ends[name] = weights(loaded.model)
    plain, mixed = ([step for step in seen[name] if step is not None] for name in ("none", "embedmix"))
    assert len(plain) == len(mixed) > 10
    for (ids, state), (other_ids, other_state) in zip(plain, mixed):
        assert np.array_equal(ids, other_ids)
        assert state == other_state
    assert not equal(ends["none"], ends["embedmix"])


def torch_state() -> bytes:
    import torch

    return bytes(torch.get_rng_state().numpy())


def test_a_method_that_never_mixes_is_plain_training(tiny: Path, tokens: Any, tmp_path: Path) -> None:
    from mixwell.training import fit

    ends = []
    for name, options in (("none", {}), ("amplify", {"start": 0.999})):
        loaded = load(tiny)
        wanted = settings(tiny, tmp_path, tmp_path, method=name, method_options=options, epochs=2)
        fit(loaded.model, loaded.tokenizer, tokens["train"], tokens["validation"], wanted)
        ends.append(weights(loaded.model))
    assert equal(*ends)


def test_plain_training_is_a_plain_trainer(tiny: Path, tokens: Any, tmp_path: Path) -> None:
    """Given our random numbers, a script of nothing but Trainer ends with the same weights."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    from mixwell.core.draw import take_seed
    from mixwell.training import fit
    from mixwell.training.callbacks import epoch_seeds

    wanted = settings(tiny, tmp_path, tmp_path, method="none", epochs=3, seed=5)
    ours = load(tiny, seed=5)
    result = fit(ours.model, ours.tokenizer, tokens["train"], tokens["validation"], wanted)
    theirs = load(tiny, seed=5)

    # Every method, plain training too, takes one seed a step from the stream that dropout draws from.
    def take(module: Any, args: Any) -> None:
        if module.training:
            take_seed()

    theirs.model.register_forward_pre_hook(take)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "script"), num_train_epochs=3, per_device_train_batch_size=wanted.batch_size,
        learning_rate=wanted.learning_rate, warmup_steps=wanted.warmup, weight_decay=wanted.weight_decay,
        lr_scheduler_type="cosine", seed=5, eval_strategy="epoch", save_strategy="epoch", report_to="none",
        load_best_model_at_end=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(
        model=theirs.model, args=arguments, train_dataset=tokens["train"], eval_dataset=tokens["validation"],
        data_collator=DataCollatorWithPadding(theirs.tokenizer), callbacks=[epoch_seeds(5)],
    ).train()  # fmt: skip
    assert equal(weights(ours.model), weights(theirs.model))
    assert result.steps > 20
    assert not equal(weights(ours.model), weights(load(tiny, seed=5).model))


def test_no_number_is_an_error(tiny: Path, tokens: Any, tmp_path: Path) -> None:
    import torch

    from mixwell.training import fit

    loaded = load(tiny)
    with torch.no_grad():
        loaded.model.classifier.bias.fill_(float("inf"))
    wanted = settings(tiny, tmp_path, tmp_path, method="none")
    with pytest.raises(MixwellError, match=r"loss|diverged"):
        fit(loaded.model, loaded.tokenizer, tokens["train"], tokens["validation"], wanted)


def test_class_weights_and_smoothing_reach_the_loss(tiny: Path, tokens: Any, tmp_path: Path) -> None:
    from mixwell.training.fitting import fit, method_options

    wanted = settings(tiny, tmp_path, tmp_path, class_weights="balanced", label_smoothing=0.1, epochs=1)
    few = tokens["train"].select([at for at, label in enumerate(tokens["train"]["labels"]) if label or at % 4 == 0])
    options = method_options(wanted, few, "single_label", 2)
    assert options["label_smoothing"] == 0.1
    counts = np.bincount(few["labels"])
    assert np.allclose(options["class_weights"], len(few) / 2 / counts)
    loaded = load(tiny)
    result = fit(loaded.model, loaded.tokenizer, few, tokens["validation"], wanted)
    assert result.mixer["options"]["class_weights"] == options["class_weights"]
    with pytest.raises(OptionError, match="balanced"):
        method_options(wanted, few, "multi_label", 2)
    # A small sample may lack the last classes.
    assert method_options(wanted, few, "single_label", 4)["class_weights"][2:] == [0.0, 0.0]


def test_learning_rate_by_size() -> None:
    from mixwell.training.recipe import learning_rate

    assert [learning_rate(n) for n in (22_700_000, 66_000_000, 110_000_000, 335_000_000)] == [
        1e-4, 5e-5, 2e-5, 1e-5,
    ]  # fmt: skip


# --- train -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def run(tiny: Path, data_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    from mixwell.api import train

    output = tmp_path_factory.mktemp("finished") / "run"
    result = train(settings(tiny, data_file, output, epochs=10, learning_rate=0.01), quiet=True)
    assert result.folder == output
    return output


def test_run_folder(run: Path, tiny: Path, data_file: Path) -> None:
    import pyarrow.parquet as pq
    from transformers import pipeline

    from mixwell.metrics.measure import measure
    from mixwell.metrics.scores import softmax
    from mixwell.metrics.temperature import fit_temperature

    assert sorted(path.name for path in run.iterdir()) == [
        "loss.svg", "metrics.json", "model", "predictions.parquet", "reliability.svg", "report.html", "run.json",
        "splits.json",
    ]  # fmt: skip
    names = {path.name for path in (run / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "mixwell.json", "README.md"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pth", ".pkl")) for name in names)
    record = json.loads((run / "run.json").read_text())
    assert record["settings"]["data"] == str(data_file.resolve())
    assert record["settings"]["batch_size"] == 8
    assert set(record["versions"]) >= {"mixwell", "torch", "transformers"}
    assert record["timing"]["seconds_per_step"] > 0
    metrics = json.loads((run / "metrics.json").read_text())
    table = pq.read_table(run / "predictions.parquet").filter
    import pyarrow.compute as pc

    for split in ("validation", "test"):
        part = table(pc.field("split") == split)
        classes = record["data"]["labels"]
        truth = np.array([classes.index(name) for name in part["label"].to_pylist()])
        found = np.array(part["logits"].to_pylist())
        assert measure(found, truth) == pytest.approx(metrics[split]["before"])
        assert measure(found, truth, temperature=metrics["temperature"]) == pytest.approx(metrics[split]["after"])
        assert np.allclose(part["calibrated"].to_pylist(), softmax(found / metrics["temperature"]))
        if split == "validation" and metrics["temperature_note"] is None:
            assert metrics["temperature"] == fit_temperature(found, truth)
    about = json.loads((run / "model" / "mixwell.json").read_text())
    assert about["temperature"] == metrics["temperature"]
    assert about["temperature_in_weights"]
    assert metrics["test"]["before"]["accuracy"] > 0.8
    assert metrics["test"]["per_class"]["pos"]["rows"] > 0
    scored = pipeline("text-classification", model=str(run / "model"))(["good film", "awful film"])
    assert [one["label"] for one in scored] == ["pos", "neg"]
    assert "limits" in (run / "model" / "README.md").read_text()
    assert "<svg" in (run / "reliability.svg").read_text()


def test_logs_of_trackers_outlive_the_checkpoints(tmp_path: Path) -> None:
    from mixwell.training.run_folder import RunFolder

    folder = RunFolder(tmp_path / "run")
    for name in ("checkpoint-5", "runs"):
        (folder.checkpoints / name).mkdir(parents=True)
    (folder.checkpoints / "runs" / "events").write_text("")
    folder.finish({}, keep_checkpoints=False)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["runs"]


def test_rows_are_counted_for_the_user(
    tiny: Path, data_file: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    from mixwell.api import train

    monkeypatch.setattr("mixwell.utils.console.ROWS_A_LINE", 25)
    train(settings(tiny, data_file, tmp_path / "run", epochs=1, cache_dir=str(tmp_path / "cache")))
    said = capsys.readouterr().err
    assert "reading: 1" in said and "tokenising train: " in said


def test_out_of_memory_is_one_line(tiny: Path, data_file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import torch

    from mixwell import training

    def full(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 20 GiB")

    monkeypatch.setattr("mixwell.training.finetune.fit", full)
    with pytest.raises(RunError, match="--batch-size"):
        training.train(settings(tiny, data_file, tmp_path / "run"), quiet=True)


def test_existing_folder_is_left_alone(run: Path, tiny: Path, data_file: Path, tmp_path: Path) -> None:
    from mixwell.api import resume, train

    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="finished run"):
        train(settings(tiny, data_file, run), quiet=True)
    again = resume(run, quiet=True)
    assert again.was_finished
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        train(settings(tiny, data_file, tmp_path), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_other_tasks(tiny: Path, tmp_path: Path, task: str) -> None:
    from mixwell.api import train
    from mixwell.training.predict import Classifier

    lines = []
    for at, (text, label) in enumerate(rows(90)):
        value: Any = [label, "long"] if at % 3 == 0 else [label]
        lines.append(json.dumps({"text": text, "label": value if task == "multi_label" else 0.1 * (at % 7)}))
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(lines) + "\n")
    result = train(settings(tiny, source, tmp_path / "run", task=task, epochs=2), quiet=True)
    before = result.metrics["test"]["before"]
    assert ("mse" in before) == (task == "regression")
    assert ("after" in result.metrics["test"]) == (task == "multi_label")
    found = Classifier.load(tmp_path / "run").predict(["good film"])
    assert isinstance(found.labels[0], float if task == "regression" else list)


def test_sampling_and_settings_round_trip(tiny: Path, data_file: Path, tmp_path: Path) -> None:
    from mixwell.api import train
    from mixwell.training import TrainSettings

    wanted = settings(
        tiny, data_file, tmp_path / "run", per_class=10, epochs=1, batch_size=4, group_by_length=True,
        method="sentencemix", method_options={"alpha": 0.5}, arguments={"max_grad_norm": 0.5}, keep_checkpoints=True,
    )  # fmt: skip
    train(wanted, quiet=True)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["data"]["rows"]["train"] == 20
    assert record["mixer"]["options"]["alpha"] == 0.5
    again = TrainSettings.from_dict(record["settings"])
    assert again.method_options == wanted.method_options
    assert again.arguments == wanted.arguments
    assert list((tmp_path / "run" / "checkpoints").glob("checkpoint-5/mixwell-manifest.json"))
    with pytest.raises(RunError, match="does not know"):
        TrainSettings.from_dict({**record["settings"], "strange": 1})


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--nproc_per_node", "2", "--standalone"],
    # Without a GPU too: its --cpu starts one process only, or needs MPI.
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "no",
                   "--num_machines", "1", "--dynamo_backend", "no", "--main_process_port", "0"],
}  # fmt: skip


def test_two_processes(tiny: Path, data_file: Path, tmp_path: Path) -> None:
    """Each process trains on half of the rows, and only the first writes; a resumed run repeats."""
    output = tmp_path / "run"

    def start(launcher: str, *words: Any) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", *LAUNCHERS[launcher], "-m", "mixwell", "train", *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done

    words = [data_file, "--model", tiny, "--epochs", 2, "--batch-size", 8, "--keep-checkpoints", "--folds", 0]
    done = start("accelerate", *words, "--output", output)
    again = tmp_path / "again"
    shutil.copytree(output, again)
    (again / "metrics.json").unlink()
    shutil.rmtree(again / "model")
    shutil.rmtree(again / "checkpoints" / "checkpoint-12")
    start("torchrun", "--resume", again)
    for name in ("model/model.safetensors", "predictions.parquet", "metrics.json"):
        assert (again / name).read_bytes() == (output / name).read_bytes(), name
    assert done.stdout.count("run folder") == 1
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["steps"] == 2 * -(-84 // 16)  # 84 training rows, 16 a step
    row = metrics["history"][-1]["validation"]
    assert row["loss"] == pytest.approx(row["nll"])
    assert 0.3 < row["loss"] < 1.0
