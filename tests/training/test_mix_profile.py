"""Options that are found on the training rows: probes on mixed features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_heads import pooled_folder
from test_training import rows, write_csv

import mixwell
import zoo
from mixwell.compare.records import Records
from mixwell.data import load, tokenise
from mixwell.training import TrainSettings, mix_profile, models
from mixwell.training.folds import fold_of_rows
from mixwell.utils.errors import OptionError


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pooled_folder(tmp_path_factory.mktemp("pooled") / "encoder", pooling_mode_mean_tokens=True)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("films") / "films.csv", rows(60))


@pytest.fixture(scope="module")
def ready(encoder: Path, films: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    data = load(str(films), hold_out_from=1000)
    loaded = models.load(str(encoder), task=data.task, labels=data.labels, seed=0, pooling="auto")
    loaded.model.eval()
    table = tokenise(data.train, loaded.tokenizer, max_length=32, cache_dir=str(tmp_path_factory.mktemp("cache")))
    y = np.asarray(table.with_format("numpy")["labels"])
    folds = fold_of_rows(y, data.row_keys("train").folded, data.task, 0, 3)
    return {"model": loaded.model, "tokenizer": loaded.tokenizer, "rows": table, "y": y, "folds": folds}


def test_the_regression_is_at_its_optimum() -> None:
    """Its gradient, written out for soft labels, vanishes; penalty and shares as scikit-learn counts them."""
    rng = np.random.default_rng(0)
    x, own, other = rng.normal(size=(80, 4)), rng.integers(0, 3, 80), rng.integers(0, 3, 80)
    weight = rng.uniform(0, 1, 80)
    layer, bias = mix_profile.fit_mixed(x, own, other, weight, 3, strength=0.5)
    soft = weight[:, None] * np.eye(3)[own] + (1 - weight)[:, None] * np.eye(3)[other]
    z = x @ layer.T + bias
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    slope = layer + 0.5 * (p - soft).T @ (x - x.mean(0))
    assert np.abs(slope).max() < 2e-3
    assert np.abs((p - soft).sum(0)).max() < 2e-2


def test_what_is_read_is_what_the_head_gets(ready: dict[str, Any]) -> None:
    """At the sentence vector a mixed feature is lam of its own and the rest of its partner's, of the same fold."""
    model = ready["model"]
    reader = mix_profile.MixedFeatures(model, ready["tokenizer"], ready["rows"], ready["folds"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with mixwell.attach(model, "none") as mixer:
        plain, alone, whole = reader.read(mixer, 0)
    assert (alone == np.arange(len(plain))).all() and (whole == 1).all()
    with mixwell.attach(model, "cls") as mixer:
        mixed, partner, weight = reader.read(mixer, 0)
        again = reader.read(mixer, 0)
        other = reader.read(mixer, 1)
    assert (ready["folds"][partner] == ready["folds"]).all()
    assert (partner[partner] == np.arange(len(partner))).all()
    assert (partner != np.arange(len(partner))).mean() > 0.9
    met = partner != np.arange(len(partner))
    assert weight[met] == pytest.approx(mix_profile.LAM)
    expected = mix_profile.LAM * plain + (1 - mix_profile.LAM) * plain[partner]
    np.testing.assert_allclose(mixed, expected, atol=1e-5)
    assert (again[0] == mixed).all() and (again[1] == partner).all() and (other[1] != partner).any()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_all_heads_are_tried(ready: dict[str, Any]) -> None:
    config = ready["model"].encoder.config
    heads, blocks = config.num_attention_heads, config.num_hidden_layers
    said: list[str] = []
    options = {"block": "auto", "head": "auto", "pairing": "pairs"}
    chosen, found = mix_profile.find_options(
        **ready, method="attentionmix", options=options, task="single_label", say=said.append
    )
    assert found is not None and len(found.places) == len(said) - 1 == blocks * (heads + 1)
    assert {place.options["head"] for place in found.places} == {None, *range(heads)}
    best = min(found.places, key=lambda place: place.loss)
    assert chosen == {**options, **best.options} and found.chosen == best.options
    assert all(place.loss == pytest.approx(found.plain + place.difference) for place in found.places)
    assert "attentionmix: auto takes block=" in found.sentence()
    mixwell.attach(ready["model"], "attentionmix", **chosen).detach()


def test_blocks_are_tried_alone_and_together(ready: dict[str, Any]) -> None:
    blocks = ready["model"].encoder.config.num_hidden_layers
    chosen, found = mix_profile.find_options(
        **ready, method="amplify", options={"layers": "auto", "alpha": 1.0}, task="single_label"
    )
    assert found is not None
    tried = [place.options["layers"] for place in found.places]
    assert tried[:blocks] == [[block] for block in range(blocks)] and tried[-1] == list(range(blocks))
    assert [len(layers) for layers in tried[blocks:]] == list(range(2, blocks + 1))
    assert chosen["alpha"] == 1.0 and chosen["layers"] in tried


def test_labels_that_disagree_with_features_cost(ready: dict[str, Any]) -> None:
    """A place whose label weights are turned round has a higher loss: the profile sees what it is for."""
    y = ready["y"]
    rng = np.random.default_rng(1)
    x = np.eye(2)[y] * 2 + rng.normal(size=(len(y), 2))
    other = rng.permutation(len(y))
    mixed = 0.75 * x + 0.25 * x[other]
    right, wrong = (
        mix_profile.fit_mixed(mixed, y, y[other], np.full(len(y), weight), 2, 10.0) for weight in (0.75, 0.25)
    )

    def loss(layer: Any, bias: Any) -> float:
        z = x @ layer.T + bias
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]))

    assert loss(*right) < loss(*wrong)


def test_train_takes_what_was_found(encoder: Path, films: Path, tmp_path: Path) -> None:
    settings = TrainSettings(
        str(films), output=str(tmp_path / "run"), model=str(encoder), method="attentionmix", folds=2, epochs=1,
        method_options={"head": "auto"}, max_length=32, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    done = mixwell.train(settings.data, **{k: v for k, v in settings.to_dict().items() if k != "data"}, quiet=True)
    record = json.loads((done.folder / "run.json").read_text(encoding="utf-8"))
    head = record["settings"]["method_options"]["head"]
    assert head is None or isinstance(head, int)
    assert done.metrics["method"]["options"].get("head") == head
    assert any("auto takes head=" in note for note in record["notes"])


def test_a_comparison_takes_what_was_found(encoder: Path, films: Path, tmp_path: Path) -> None:
    done = mixwell.compare(
        str(films), methods=["amplify:layers=auto"], seeds=2, model=str(encoder), output=str(tmp_path / "out"),
        validation=0.2, test=0.2, epochs=1, workers=0, max_length=32,
    )  # fmt: skip
    records = Records(tmp_path / "out")
    found = [records.read(key) for key in records.names()]
    own = [one for one in found if one.spec.label == "amplify[layers=auto]"]
    assert len(own) == 2
    assert all(isinstance(one.result["mixer"]["options"]["layers"], list) for one in own)
    assert done.folder.is_dir()


def test_when_and_whom_to_mix_is_for_training(ready: dict[str, Any]) -> None:
    """Options such as `prob` change no place; without that most batches would not be mixed here."""
    options = {"block": 0, "head": "auto", "prob": 0.5, "schedule": "late", "pairing": "label"}
    chosen, found = mix_profile.find_options(**ready, method="attentionmix", options=options, task="single_label")
    plainly, other = mix_profile.find_options(
        **ready, method="attentionmix", options={"block": 0, "head": "auto"}, task="single_label"
    )
    assert found is not None and other is not None
    assert [place.loss for place in found.places] == [place.loss for place in other.places]
    assert len({place.loss for place in found.places}) > 1
    assert chosen == {**options, "head": plainly["head"]}


def test_a_decoder(ready: dict[str, Any]) -> None:
    """Its head scores every token; the features are those of the last real one."""
    model = zoo.tiny("gpt2", num_labels=2).eval()
    model.config.pad_token_id = ready["tokenizer"].pad_token_id
    rows = ready["rows"].remove_columns([name for name in ready["rows"].column_names if name == "token_type_ids"])
    rows = rows.map(lambda row: {"input_ids": [id % model.config.vocab_size for id in row["input_ids"]]})
    reader = mix_profile.MixedFeatures(model, ready["tokenizer"], rows, ready["folds"])
    with mixwell.attach(model, "none") as mixer:
        x, _, _ = reader.read(mixer, 0)
    head = reader.head.weight.detach().double().numpy()
    alone = torch.tensor([rows[0]["input_ids"]])
    with torch.no_grad():
        expected = model(input_ids=alone, attention_mask=torch.ones_like(alone)).logits[0]
    np.testing.assert_allclose(head @ x[0], expected.double().numpy(), atol=1e-4)
    chosen, _ = mix_profile.find_options(
        **{**ready, "model": model, "rows": rows}, method="amplify", options={"layers": "auto"}, task="single_label"
    )
    assert isinstance(chosen["layers"], list)


def test_rows_of_a_class_alone_decide_nothing(ready: dict[str, Any]) -> None:
    y = ready["y"].copy()
    assert y.max() == 1
    folds = ready["folds"].copy()
    y[folds == 0] = np.where(y[folds == 0] == 1, 1, 0)
    lonely = int(np.flatnonzero(folds == 0)[0])
    kept = np.delete(np.arange(len(y)), lonely)
    alone = mix_profile._Search(
        ready["model"], ready["tokenizer"], ready["rows"], y, folds, "amplify", {"layers": [0]}, lambda text: None
    )
    assert alone.known.all() and len(alone.plain) == len(y)
    ready["model"].config.num_labels, before = 3, ready["model"].config.num_labels
    try:
        y[lonely] = 2
        search = mix_profile._Search(
            ready["model"], ready["tokenizer"], ready["rows"], y, folds, "amplify", {"layers": [0]}, lambda text: None
        )
        assert search.known.sum() == len(kept) and not search.known[lonely]
        assert len(search.plain) == len(kept)
    finally:
        ready["model"].config.num_labels = before


def test_a_comparison_refuses_before_training(encoder: Path, tmp_path: Path) -> None:
    source = tmp_path / "values.csv"
    source.write_text("text,label\n" + "\n".join(f"good film {at},{at / 7:.3f}" for at in range(40)), encoding="utf-8")
    with pytest.raises(OptionError, match="layers=auto needs data with one class per row, and the task is regression"):
        mixwell.compare(
            str(source), methods=["amplify:layers=auto"], seeds=1, model=str(encoder), task="regression",
            output=str(tmp_path / "out"), workers=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ready: mixwell.attach(ready["model"], "attentionmix", head="auto"), "is found on training rows"),
        (lambda ready: mixwell.attach(ready["model"], "attentionmix", after="auto"), "after"),
        (
            lambda ready: mix_profile.find_options(
                **ready, method="amplify", options={"layers": "auto"}, task="multi_label"
            ),
            "method amplify: layers=auto needs data with one class per row, and the task is multi_label",
        ),
        (
            lambda ready: mix_profile.find_options(
                **ready, method="amplify", options={"layers": "auto", "site": "nowhere"}, task="single_label"
            ),
            "site",
        ),
    ],
)  # fmt: skip
def test_bad_input(ready: dict[str, Any], call: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        call(ready)
