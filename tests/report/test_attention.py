"""Attention under mixing: the captures against a slow computation of our own, the pictures, the command line."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_training import calm, tiny  # noqa: F401

import parts
import zoo
from forked import Command
from mixwell import cli
from mixwell.report.attention import choice, data, pictures
from mixwell.report.attention import page as pages
from mixwell.report.attention.capture import capture
from mixwell.training import models
from mixwell.utils.errors import OptionError, UnsupportedModelError

TEXT = ("the rabbit quickly hopped", "the turtle slowly crawled")
PARTNER = "the animal didn't cross the street because it was too tired"


@pytest.fixture(scope="module")
def minilm() -> models.LoadedModel:
    return models.load("minilm", labels=["0", "1"])


@pytest.fixture(scope="module")
def found(minilm: models.LoadedModel) -> data.Attention:
    return capture(minilm, *TEXT, PARTNER, lam=0.8, lams="1.0,0.6")


def slow_attention(model: Any, batch: dict[str, Any], method: str, lam: float) -> list[torch.Tensor]:
    """BERT's attention weights of row 0, block by block, from its parameters alone: (H, T, T) each."""
    bert, config = model.bert, model.config
    layer, heads = bert.embeddings, config.num_attention_heads
    mask = batch["attention_mask"].bool()
    length = mask.shape[1]
    x = layer.word_embeddings.weight[batch["input_ids"]] + layer.token_type_embeddings.weight[batch["token_type_ids"]]
    x = x + layer.position_embeddings.weight[:length]
    x = F.layer_norm(x, x.shape[-1:], layer.LayerNorm.weight, layer.LayerNorm.bias, config.layer_norm_eps)
    if method == "embedmix":
        x = lam * x + (1 - lam) * x.flip(0)
        mask = mask | mask.flip(0)
    seen = []
    for block in bert.encoder.layer:
        inner, out = block.attention.self, block.attention.output
        result = torch.zeros_like(x)
        size = x.shape[-1] // heads
        rows = []
        for row in range(2):
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                q = x[row] @ inner.query.weight[part].T + inner.query.bias[part]
                k = x[row] @ inner.key.weight[part].T + inner.key.bias[part]
                v = x[row] @ inner.value.weight[part].T + inner.value.bias[part]
                scores = (q @ k.T / math.sqrt(size)).masked_fill(~mask[row], -torch.inf)
                weights = torch.exp(scores - scores.max(1, keepdim=True).values)
                weights = weights / weights.sum(1, keepdim=True)
                result[row, :, part] = weights @ v
                if row == 0:
                    rows.append(weights)
        seen.append(torch.stack(rows))
        x = F.layer_norm(
            result @ out.dense.weight.T + out.dense.bias + x, x.shape[-1:], out.LayerNorm.weight, out.LayerNorm.bias,
            config.layer_norm_eps,
        )  # fmt: skip
        if method == "amplify":
            x = lam * x + (1 - lam) * x.flip(0)
        wide = F.gelu(x @ block.intermediate.dense.weight.T + block.intermediate.dense.bias)
        x = F.layer_norm(
            wide @ block.output.dense.weight.T + block.output.dense.bias + x, x.shape[-1:],
            block.output.LayerNorm.weight, block.output.LayerNorm.bias, config.layer_norm_eps,
        )  # fmt: skip
    return seen


@pytest.mark.parametrize(("first", "second"), [(TEXT, (PARTNER,)), ((PARTNER,), TEXT[:1])])
def test_captures_equal_a_slow_computation(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    loaded = models.load("minilm", labels=["0", "1"])
    loaded.model.double()
    text_b = first[1] if len(first) > 1 else None
    found = capture(loaded, first[0], text_b, second[0], lam=0.8, lams=[0.6])
    tokenizer = loaded.tokenizer
    rows = [tokenizer(*first), tokenizer(*second)]
    batch = tokenizer.pad(rows, return_tensors="pt")
    own, longest = len(rows[0]["input_ids"]), batch["input_ids"].shape[1]
    with torch.no_grad():
        for (method, lam), view in found.views.items():
            keys = longest if method == "embedmix" else own
            expected = slow_attention(loaded.model, batch, method, 1.0 if lam is None else lam)
            assert [block.shape for block in view.weights] == [(12, own, keys)] * 6
            for block, wanted in zip(view.weights, expected):
                assert np.abs(block - wanted[:, :own, :keys].numpy()).max() < 1e-6


def test_weights_are_what_the_model_returns(minilm: models.LoadedModel, found: data.Attention) -> None:
    from mixwell.core.passes import eager_attention

    # The same padded batch: another shape rounds differently in float32, by up to 2e-6.
    tokenizer = minilm.tokenizer
    batch = tokenizer.pad([tokenizer(*TEXT), tokenizer(PARTNER)], return_tensors="pt")
    with torch.no_grad(), eager_attention(minilm.model.eval()):
        returned = minilm.model(**batch, output_attentions=True).attentions
    for block, own in zip(returned, found.plain.weights):
        assert np.array_equal(block[0, :, :11, :11].numpy(), own)


def softmax_error(view: data.AttentionView) -> float:
    """The largest difference of softmax(q . k * scale), in float64, to the weights."""
    assert view.queries and view.keys and view.scale
    worst = 0.0
    for weights, q, k, scale in zip(view.weights, view.queries, view.keys, view.scale):
        assert scale == pytest.approx(1 / math.sqrt(q.shape[-1]))
        scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * scale
        exponent = np.exp(scores - scores.max(-1, keepdims=True))
        worst = max(worst, float(np.abs(exponent / exponent.sum(-1, keepdims=True) - weights).max()))
        assert np.abs(weights.sum(-1) - 1).max() < 1e-6
    return worst


def test_queries_and_keys_explain_the_weights(found: data.Attention) -> None:
    assert found.neurons
    # The model's float32 scores carry rounding of their own; a model in float64 has none to speak of.
    assert max(softmax_error(view) for view in found.views.values()) < 3e-6
    exact = models.load("minilm", labels=["0", "1"])
    exact.model.double()
    again = capture(exact, *TEXT, PARTNER, lam=0.8, lams=[])
    assert max(softmax_error(view) for view in again.views.values()) < 1e-6


def test_what_methods_leave_alone(found: data.Attention) -> None:
    plain = found.plain
    for method in ("amplify", "embedmix"):
        for own, base in zip(found.view(method, 1.0).weights, plain.weights):
            assert np.array_equal(own, base)  # lam 1 is plain to the bit
    # AMPLIFY mixes after attention: block 0 has seen nothing of it yet.
    assert np.array_equal(found.view("amplify", 0.6).weights[0], plain.weights[0])
    near, far = (np.array(data.distance(found.view("amplify", lam), plain)) for lam in (0.8, 0.6))
    assert near.shape == (6, 12)
    assert near[0].max() == 0
    assert 0 < near[1:].mean() < far[1:].mean() < 1
    assert found.view("none", 0.6) is found.view("none", 0.8)


def test_distance_is_half_the_sum_of_differences(found: data.Attention) -> None:
    view = found.view("embedmix", 0.8)
    total = 0.0
    own, plain = view.weights[2][5], found.plain.weights[2][5]
    for i in range(own.shape[0]):
        for j in range(own.shape[1]):
            total += abs(float(own[i, j]) - (float(plain[i, j]) if j < plain.shape[1] else 0.0)) / 2
    assert data.distance(view, found.plain)[2][5] == pytest.approx(total / own.shape[0], abs=1e-6)


def test_padding_and_partners(minilm: models.LoadedModel, found: data.Attention) -> None:
    assert found.tokens[:3] == ("[CLS]", "the", "rabbit")
    assert len(found.tokens) == 11
    assert len(found.partner_tokens) == 15
    assert found.partner_positions == tuple(range(15))
    assert len(found.view("amplify", 0.8).tokens) == 11
    assert len(found.view("embedmix", 0.8).tokens) == 15  # attends to the longer partner's tokens too
    assert found.special == tuple(token in ("[CLS]", "[SEP]") for token in found.tokens)
    short = capture(minilm, PARTNER, None, "a bird", lams=[])
    assert short.partner_positions[:5] == (0, 1, 2, 3, None)
    assert len(short.view("embedmix", 0.8).tokens) == 15


def test_nothing_is_left_behind(minilm: models.LoadedModel) -> None:
    model = minilm.model.train()
    before = model.config._attn_implementation_internal
    state = torch.get_rng_state()
    hooks = [(dict(module._forward_hooks), dict(module._forward_pre_hooks)) for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    first = capture(minilm, TEXT[0], lams=[])
    second = capture(minilm, TEXT[0], lams=[])
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.config._attn_implementation_internal == before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert hooks == [(dict(module._forward_hooks), dict(module._forward_pre_hooks)) for module in model.modules()]
    for key, view in first.views.items():
        assert all(np.array_equal(a, b) for a, b in zip(view.weights, second.views[key].weights))
    assert any("no --partner was given" in note for note in first.notes)


@pytest.mark.parametrize("kind", parts.some([kind for kind in zoo.KINDS if kind not in zoo.IMAGES], 3))
def test_architectures(kind: str, tiny: Path) -> None:
    from transformers import AutoTokenizer

    loaded = models.LoadedModel("tiny", "tiny", zoo.tiny(kind), AutoTokenizer.from_pretrained(tiny), 1, 40)
    found = capture(loaded, "the film was great", None, "it is a very dull plot so bad", lams=[0.5])
    assert found.neurons == (kind not in ("deberta-v2", "mpnet", "t5"))
    assert any("no view of neurons" in note for note in found.notes) != found.neurons
    assert len(found.heads) == (2 if kind in zoo.ENCODER_DECODERS else 3)
    for view in found.views.values():
        for block in view.weights:
            assert np.abs(block.sum(-1) - 1).max() < 1e-6
            if kind in zoo.DECODERS:
                assert np.abs(np.triu(block, 1)).max() == 0
    assert found.partner_positions[0] == (4 if kind in zoo.DECODERS else 0)  # decoders line up at the last token
    for name in parts.some(("lines", "word", "graph"), 3, zoo.KINDS.index(kind) % 3):
        assert pictures.picture(found, choice.choose(found, view=name), "svg").startswith(b"<?xml")
    if not found.neurons:
        with pytest.raises(UnsupportedModelError, match="--view neurons"):
            choice.choose(found, view="neurons")
    assert "attention" in pages.page(found, choice.choose(found))


def test_every_method_can_be_drawn(tiny: Path) -> None:
    import mixwell

    loaded = models.load(str(tiny), labels=["0", "1"])
    names = list(mixwell.methods())
    found = capture(loaded, "the film was good", None, "it is a very dull plot", methods=names, lams=[])
    assert {name for name, _ in found.views} == set(names)
    # What is mixed after the last block leaves attention alone; spliced tokens are shown as they were read.
    for name in ("cls", "sentencemix", "batchmixup", "nonlinear"):
        assert np.max(data.distance(found.view(name, 0.8), found.plain)) == 0
    assert found.view("ssmix", 0.8).tokens != found.plain.tokens
    assert found.view("tmix", 0.8).layer is not None
    assert "ssmix" in pages.page(found, choice.choose(found))


def test_images_and_models_without_weights_are_refused(tiny: Path) -> None:
    from transformers import AutoTokenizer, FNetConfig, FNetForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    with pytest.raises(UnsupportedModelError, match="reads images"):
        capture(models.LoadedModel("vit", "vit", zoo.tiny("vit"), tokenizer, 1, 40), "the film")
    config = FNetConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, intermediate_size=24)
    fnet = models.LoadedModel("fnet", "fnet", FNetForSequenceClassification(config), tokenizer, 1, 40)
    with pytest.raises(UnsupportedModelError, match="FNet.* no attention weights for each head"):
        capture(fnet, "the film", methods="none")


# --- choices and pictures --------------------------------------------------------------------------------------------


def test_choices(found: data.Attention) -> None:
    chosen = choice.choose(found)
    assert (chosen.view, chosen.block, chosen.lam) == ("lines", 3, 0.8)
    moved = [np.array(data.distance(found.view(name, 0.8), found.plain))[3] for name in found.methods]
    assert chosen.head == int(np.argmax(sum(moved)))
    assert found.tokens[chosen.word] in ("quickly", "crawled")
    assert choice.choose(found, word="RABBIT").word == 2
    assert choice.choose(found, word="7").word == 7
    for wrong, message in (
        ({"view": "linse"}, "--view 'linse' is unknown .did you mean 'lines'"),
        ({"block": 6}, "--block 6: minilm has blocks 0 to 5"),
        ({"head": 12}, "--head 12: block 3 of minilm has heads 0 to 11"),
        ({"head": -1}, "--head -1"),
        ({"word": "rabit"}, "--word 'rabit' is no token of the text .did you mean 'rabbit'"),
    ):
        with pytest.raises(OptionError, match=message):
            choice.choose(found, **wrong)  # type: ignore[arg-type]


def test_lams_and_methods() -> None:
    assert choice.parse_lams(0.8, "1.0,0.9, 0.80,,0.5") == (1.0, 0.9, 0.8, 0.5)
    assert choice.parse_lams(0.3, []) == (0.3,)
    assert choice.parse_methods(" none,amplify,none,") == ("none", "amplify")
    for call, message in (
        (lambda: choice.parse_lams(1.2, ""), "--lam 1.2: lam .* between 0 and 1"),
        (lambda: choice.parse_lams(float("nan"), ""), "--lam nan"),
        (lambda: choice.parse_lams(0.5, "0.5,-1"), "--lams -1: "),
        (lambda: choice.parse_lams(0.5, "half"), "--lams: 'half' is not a number"),
        (lambda: choice.parse_methods("none,amplifi"), "--methods: method 'amplifi' is unknown .did you mean"),
        (lambda: choice.parse_methods(" , "), "--methods names no method"),
    ):
        with pytest.raises(OptionError, match=message):
            call()


@pytest.mark.parametrize("view", parts.some(choice.VIEWS, 2))
def test_pictures(found: data.Attention, view: str) -> None:
    chosen = choice.choose(found, view=view, word="rabbit")
    svg = pictures.picture(found, chosen, "svg")
    assert svg == pictures.picture(found, chosen, "svg")  # byte for byte
    assert svg.startswith(b"<?xml")
    assert b"<script" not in svg
    png = pictures.picture(found, chosen, "png")
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000


def test_texts_of_any_kind_can_be_drawn(minilm: models.LoadedModel) -> None:
    odd = "$x^2$ costs $5 <script>alert(1)</script> \u4f60\u597d \u0645\u0631\u062d\u0628\u0627 \U0001f600 & \\frac"
    found = capture(minilm, odd, None, "a", lams=[])
    for view in choice.VIEWS:
        assert pictures.picture(found, choice.choose(found, view=view), "svg")
    page = pages.page(found, choice.choose(found))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_page_is_small(minilm: models.LoadedModel) -> None:
    """Twenty tokens, three methods, five lams: below 5 MB."""
    found = capture(minilm, " ".join(["word"] * 18), None, " ".join(["other"] * 18))
    assert (len(found.tokens), len(found.lams)) == (20, 5)
    page = pages.page(found, choice.choose(found))
    # The command at its foot runs the model's own code only where the reader did.
    assert "--trust-remote-code" not in page
    assert "--trust-remote-code" in pages.page(replace(found, trusted=True), choice.choose(found))
    size = len(page.encode())
    assert 1_000_000 < size < 5_000_000


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_writes_pages_and_pictures(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["attention", str(tiny), "the film was great", "--lams", "0.5"]
    assert cli.main([*words, "--output", str(tmp_path / "new" / "a.html")]) == 0
    printed = capsys.readouterr().err
    assert "note: no --partner was given: the text is mixed with" in printed
    assert re.search(r"attention in .*a\.html \(0\.\d MB\)", printed)
    assert "<!doctype html>" in (tmp_path / "new" / "a.html").read_text(encoding="utf-8")
    more = ["the plot was dull", "--partner", "a bad actor", "--partner-b", "so so"]
    for view in choice.VIEWS:
        for kind in ("svg", "png"):
            target = tmp_path / f"{view}.{kind}"
            chosen = ["-o", str(target), "--view", view, "--block", "1", "--head", "0", "--word", "film"]
            assert cli.main([*words, *more, *chosen]) == 0
            assert target.stat().st_size > 5_000
    assert "note" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["the film", "--methods", "none,amplfy"], "--methods: method 'amplfy' is unknown (did you mean 'amplify'?)"),
        (["the film", "--lam", "1.5"], "--lam 1.5: lam is the share"),
        (["the film", "--lams", "0.5,2"], "--lams 2: lam is the share"),
        (["the film", "--lam", "much"], "--lam"),
        (["  "], "TEXT is empty"),
        (["the film", ""], "TEXT_B is empty"),
        (["the film", "--partner", ""], "--partner is empty"),
        (["the film", "--partner-b", "a plot"], "--partner-b is given without --partner"),
        (["the film", "-o", "a.pdf"], "--output a.pdf: the name must end in .html, .svg, .png"),
        (["the film", "--view", "heads"], "--view 'heads' is unknown"),
        (["the film", "--block", "2"], "--block 2: "),
        (["the film", "--head", "2"], "--head 2: "),
        (["the film", "--word", "plot"], "--word 'plot' is no token of the text"),
        (["film " * 40], "TEXT has 42 tokens; pictures of attention can be read up to 32"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    words: list[str], message: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["attention", str(tiny), *words]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir())


def test_a_method_that_does_not_fit_is_named(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import transformers as tf
    from transformers import AutoTokenizer

    model = zoo.tiny("gpt2")
    assert isinstance(model, tf.GPT2ForSequenceClassification)
    model.save_pretrained(tmp_path / "gpt2")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path / "gpt2")
    words = ["attention", str(tmp_path / "gpt2"), "the film", "--methods", "none,ssmix", "-o", str(tmp_path / "a.html")]
    assert cli.main(words) == 2
    assert "--methods ssmix: " in capsys.readouterr().err


def test_the_command_in_a_process_of_its_own(tiny: Path, tmp_path: Path) -> None:
    done = Command(["attention", tiny, "the film was great"], cwd=tmp_path).wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert (tmp_path / "attention.html").is_file()
    done = Command(["attention", tiny, "the film", "--methods", "unknown"], cwd=tmp_path).wait()
    assert done.returncode == 2
    assert done.stderr.startswith("mixwell: --methods: ")
