"""Beyond the BERT family: other layouts against explicit loops, causal alignment, other tasks, documented refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import survey
import torch
import torch.nn.functional as F
import transformers as tf

import mixwell
import parts
import zoo
from mixwell.utils.errors import AttachError, BatchError, LossMismatchError, OptionError, UnsupportedModelError

PERM = torch.tensor([2, 0, 1, 4, 5, 3])
LAM = 0.3


def lerp(x, other, lam=LAM):
    return lam * x + (1 - lam) * other


def logits(model, batch, name, **options):
    model.train()
    with mixwell.attach(model, name, **options) as mixer:
        with mixer.pin(lam=LAM, permutation=PERM):
            return model(**batch).logits


def aligned(x, lengths):
    """Each row's partner moved so that last tokens coincide, and where there is a partner token."""
    moved, there = torch.zeros_like(x), torch.zeros(x.shape[:2], dtype=torch.bool)
    for row in range(x.shape[0]):
        other = int(PERM[row])
        for place in range(lengths[row]):
            source = place + lengths[other] - lengths[row]
            if source >= 0:
                moved[row, place] = x[other, source]
                there[row, place] = True
    return moved, there


def mix_aligned(x, lengths):
    moved, there = aligned(x, lengths)
    return torch.where(there.unsqueeze(-1), lerp(x, moved), x)


# --- layouts ---------------------------------------------------------------------------------------------------------


def gpt2_by_hand(model, batch, change):
    """Run GPT-2 block by block; right padding never reaches a causal row's real tokens, so no mask is needed."""
    body, ids = model.transformer, batch["input_ids"]
    x = body.wte(ids) + body.wpe(torch.arange(ids.shape[1]))
    x = change("embeddings", 0, x)
    for index, block in enumerate(body.h):
        stream = change("attention", index, x + block.attn(block.ln_1(x))[0])
        x = change("block", index, stream + block.mlp(block.ln_2(stream)))
    vectors = body.ln_f(x)[torch.arange(len(ids)), batch["attention_mask"].sum(1) - 1]
    return model.score(change("sentence", 0, vectors))


@pytest.mark.parametrize(
    ("name", "options", "where"),
    [
        ("none", {}, ()),
        ("amplify", {}, [("attention", 0), ("attention", 1), ("attention", 2)]),
        ("amplify", {"layers": [1]}, [("attention", 1)]),
        ("amplify", {"padding": "keep"}, [("attention", 0), ("attention", 1), ("attention", 2)]),
        ("embedmix", {}, [("embeddings", 0)]),
        ("tmix", {"layers": [2]}, [("block", 2)]),
        ("input", {"padding": "none"}, [("embeddings", 0)]),
        ("sentencemix", {}, [("sentence", 0)]),
    ],
    ids=str,
)
def test_gpt2_against_explicit_loops(name, options, where):
    """Pre-norm residual stream, partners lined up at the last token, head that scores every token."""
    model, batch = zoo.sharpen(zoo.tiny("gpt2"), 3.0).double(), zoo.batch("gpt2")
    lengths = batch["attention_mask"].sum(1).tolist()

    def change(point, index, x):
        if (point, index) not in where:
            return x
        return mix_aligned(x, lengths) if x.dim() == 3 else lerp(x, x[PERM])

    model.train()
    with mixwell.attach(model, name, **options) as mixer:
        pin = {} if name == "none" else dict(lam=LAM, permutation=PERM)
        with mixer.pin(**pin):
            got = model(**batch).logits
    torch.testing.assert_close(got, gpt2_by_hand(model, batch, change), rtol=0, atol=1e-9)


def test_causal_alignment_reaches_the_pooled_token():
    """Without it the tail of a longer partner would never reach the logits while its label counts."""
    model = zoo.sharpen(zoo.tiny("llama"), 3.0)
    batch = zoo.batch("llama")
    before = logits(model, batch, "embedmix")
    longer = int(PERM[1])  # row 1 is the shortest, its partner is longer
    last = int(batch["attention_mask"][longer].sum()) - 2
    batch["input_ids"][longer, last] = (batch["input_ids"][longer, last] + 1 - 5) % 50 + 5
    assert (logits(model, batch, "embedmix")[1] - before[1]).abs().max() > 1e-5


def test_left_padding_needs_no_shift():
    """With left padding last tokens coincide already; both paddings give the same mixed logits (rotary positions)."""
    model = zoo.sharpen(zoo.tiny("llama"), 3.0).double()
    right = zoo.batch("llama")
    left = {"labels": right["labels"]}
    lengths = right["attention_mask"].sum(1)
    for key in ("input_ids", "attention_mask"):
        left[key] = torch.stack([row.roll(len(row) - int(n)) for row, n in zip(right[key], lengths)])
    for name in ("amplify", "embedmix", "sentencemix"):
        torch.testing.assert_close(logits(model, right, name), logits(model, left, name), rtol=0, atol=1e-6)


def test_vit_against_explicit_loops():
    model, batch = zoo.sharpen(zoo.tiny("vit"), 3.0).double(), zoo.batch("vit")
    batch["pixel_values"] = batch["pixel_values"].double()
    got = logits(model, batch, "amplify")
    x = model.vit.embeddings(batch["pixel_values"])
    for layer in model.vit.layers:
        attended = layer.attention(layer.layernorm_before(x))
        stream = x + (attended[0] if isinstance(attended, tuple) else attended)
        stream = lerp(stream, stream[PERM])
        feed = (
            layer.mlp(layer.layernorm_after(stream))
            if hasattr(layer, "mlp")
            else layer.intermediate(layer.layernorm_after(stream))
        )
        x = stream + feed
    want = model.classifier(model.vit.layernorm(x)[:, 0])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


def test_stacks_of_encoder_decoder_models():
    model, batch = zoo.sharpen(zoo.tiny("bart"), 3.0), zoo.batch("bart")
    both, encoder = (logits(model, batch, "amplify", stacks=stacks) for stacks in ("all", "encoder"))
    assert (both - encoder).abs().max() > 1e-5
    with mixwell.attach(model, "amplify", consistent=True) as mixer, mixer.pin(lam=0.7):
        model.train()(**batch)
        # Two mixed blocks in each stack: the compound of each stack is lam.
        own = torch.ones(6)
        for _ in range(2):
            share = mixer.last.point_weights[0]
            own = share * own + (1 - share) * (1 - own)
        torch.testing.assert_close(own[mixer.last.permutation != torch.arange(6)], torch.full((6,), 0.7))


# --- tasks -----------------------------------------------------------------------------------------------------------


def token_model():
    torch.manual_seed(1)
    config = zoo.tiny("bert").config
    return zoo.sharpen(tf.BertForTokenClassification(config))


def token_batch():
    batch = zoo.batch()
    batch["labels"] = torch.where(batch["attention_mask"] == 1, batch["input_ids"] % 3, -100)
    batch["labels"][:, 0] = -100
    return batch


def span_model():
    torch.manual_seed(1)
    config = zoo.tiny("bert").config
    config.num_labels = 2
    return zoo.sharpen(tf.BertForQuestionAnswering(config))


def span_batch():
    batch = zoo.batch()
    del batch["labels"]
    batch["start_positions"] = torch.tensor([1, 2, 0, 3, 1, 99])
    batch["end_positions"] = torch.tensor([3, 3, 0, 5, 2, 99])  # 99: outside, ignored
    return batch


def token_rows(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


@pytest.mark.parametrize("name", ["amplify", "embedmix", "tmix", "sentencemix", "cls", "input", "manifold"])
def test_token_classification(name):
    model, batch = token_model().train(), token_batch()
    plain = model(**batch)
    with mixwell.attach(model, name) as mixer:
        with mixer.pin(lam=1.0, permutation=PERM):
            assert torch.equal(model(**batch).loss, plain.loss)
        with mixer.pin(lam=LAM, permutation=PERM):
            out = model(**batch)
    labels = batch["labels"]
    count = (labels != -100).sum()
    want = (LAM * token_rows(out.logits, labels).sum() + (1 - LAM) * token_rows(out.logits, labels[PERM]).sum()) / count
    torch.testing.assert_close(out.loss, want)
    assert (out.logits - plain.logits).abs().max() > 1e-4
    out.loss.backward()


@pytest.mark.parametrize("name", ["amplify", "embedmix", "tmix", "sentencemix", "attentionmix", "manifold"])
def test_extractive_question_answering(name):
    model, batch = span_model().train(), span_batch()
    plain = model(**batch)
    with mixwell.attach(model, name) as mixer:
        pin = dict(permutation=torch.arange(6)) if name == "attentionmix" else dict(lam=1.0, permutation=PERM)
        with mixer.pin(**pin):
            torch.testing.assert_close(model(**batch).loss, plain.loss)
        pin = dict(permutation=PERM) if name == "attentionmix" else dict(lam=LAM, permutation=PERM)
        with mixer.pin(**pin):
            out = model(**batch)
            weight = mixer.last.label_weight
    want = 0.0
    for scores, places in ((out.start_logits, "start_positions"), (out.end_logits, "end_positions")):
        places = batch[places].clamp(0, scores.shape[1])
        valid = (places < scores.shape[1]).sum()

        def rows(p, scores=scores):
            return F.cross_entropy(scores, p, ignore_index=scores.shape[1], reduction="none")

        want = want + (weight * rows(places) + (1 - weight) * rows(places[PERM])).sum() / valid / 2
    torch.testing.assert_close(out.loss, want)
    out.loss.backward()


@pytest.mark.parametrize("name", ["batchmixup", "nonlinear", "ssmix"])
@pytest.mark.parametrize("make", [token_model, span_model])
def test_methods_that_cannot_serve_a_task_say_so_at_attach_time(name, make):
    with pytest.raises(UnsupportedModelError, match=f"method '{name}' needs one label per row, but Bert"):
        mixwell.attach(make(), name)


# --- documented refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*zoo.DECODERS, *zoo.ENCODER_DECODERS])
def test_what_decoders_need_to_be_told(kind):
    model = zoo.tiny(kind)
    for name in ("input", "manifold"):
        with pytest.raises(OptionError, match="use padding='none'"):
            mixwell.attach(model, name)
    with pytest.raises(OptionError, match="pass special_ids="):
        mixwell.attach(model, "ssmix")


def test_images_have_no_tokens_to_replace():
    with pytest.raises(UnsupportedModelError, match="works on text"):
        mixwell.attach(zoo.tiny("vit"), "ssmix")


def test_dropout_between_attention_and_residual():
    config = zoo.tiny("opt").config
    config.dropout = 0.1
    with pytest.raises(UnsupportedModelError, match="set that dropout to 0"):
        mixwell.attach(tf.OPTForSequenceClassification(config), "amplify")


def test_parallel_blocks():
    config = tf.GPTNeoXConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=40, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_parallel_residual=True,
    )  # fmt: skip
    model = tf.GPTNeoXForSequenceClassification(config)
    with pytest.raises(UnsupportedModelError, match="parallel or sandwich-norm"):
        mixwell.attach(model, "amplify")
    mixwell.attach(model, "tmix").detach()


def test_sandwich_norm():
    """Gemma-2 norms what attention returns before it adds the residual: no stream to mix there."""
    config = tf.Gemma2Config(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        intermediate_size=24, max_position_embeddings=40, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="parallel or sandwich-norm"):
        mixwell.attach(tf.Gemma2ForSequenceClassification(config), "amplify")


def test_a_soft_loss_is_not_mixed_silently():
    model, batch = zoo.tiny("deberta-v2"), zoo.batch("deberta-v2", task="multi_label")
    mixwell.attach(model, "amplify")
    with pytest.raises(LossMismatchError, match="problem_type"):
        model.train()(**batch)


def test_support_table(capsys):
    """Every method on every tested architecture; the docs show the same table."""
    kinds = parts.some(zoo.KINDS, 3)
    lines = survey.support(kinds)
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    cells = [cell.strip() for line in lines[2:] for cell in line.split("|")[2:-1]]
    assert cells.count("no") == 2 * len(set(zoo.IMAGES) & set(kinds))  # ssmix and eda, which change tokens
    page = Path(__file__).parents[2] / "docs" / "reference" / "architectures.md"
    assert set(lines) <= set(page.read_text(encoding="utf-8").splitlines())


def test_survey_of_all_sequence_classifiers(capsys):
    """Each resolves and fires, or raises the documented error; the count is printed, and stands in the docs."""
    known = ("bert", "roberta", "llama", "qwen3", "gpt2", "bart", "modernbert", "deberta-v2", "t5", "mistral")
    kinds = {*known, *parts.some(sorted(survey.NAMES), 4)}
    rows = survey.survey(kinds)
    with capsys.disabled():
        print(f"\nsequence classifiers: {survey.counted(rows)}")
    assert not {kind: row for kind, row in rows.items() if row[0] == "broken"}
    docs = (Path(__file__).parents[2] / "docs" / "reference" / "architectures.md").read_text(encoding="utf-8")
    assert not parts.ALL or survey.counted(rows) in " ".join(docs.split())
    for kind in known:
        assert rows[kind][0] in ("all", "some"), rows[kind]


# --- found by review -------------------------------------------------------------------------------------------------


def test_attention_of_t5_is_not_its_position_bias():
    """T5 returns its bias before its weights, both (., H, T, T)."""
    model, batch = zoo.tiny("t5"), zoo.batch("t5")
    bias = model.transformer.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    torch.nn.init.normal_(bias.weight, std=3.0)
    with mixwell.attach(model, "attentionmix") as mixer, mixer.pin(permutation=PERM):
        model.train()(**batch)
        ratio = mixer.last.token_weights
    model.eval().set_attn_implementation("eager")
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        body = model.transformer.encoder(batch["input_ids"], mask.long(), output_attentions=True)
    weights = body.attentions[0].mean(1)
    received = torch.stack([weights[row][mask[row]].mean(0) * mask[row] for row in range(6)])
    both = received + received[PERM]
    torch.testing.assert_close(ratio, torch.where(both > 0, received / both.clamp(min=1e-12), 1.0))
    assert ((ratio >= 0) & (ratio <= 1)).all()


def still(model):
    """Switch dropout off that the configs of zoo do not reach."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def test_token_labels_of_decoders_stay_with_their_tokens():
    config = zoo.tiny("gpt2").config
    torch.manual_seed(1)
    model, batch = zoo.sharpen(still(tf.GPT2ForTokenClassification(config)), 3.0).train(), token_batch()
    body, mask = model.transformer, batch["attention_mask"].bool()
    x = body.wte(batch["input_ids"]) + body.wpe(torch.arange(mask.shape[1]))
    x = torch.where(mask[PERM].unsqueeze(-1), lerp(x, x[PERM]), x)
    want = model.classifier(body(inputs_embeds=x - body.wpe.weight[: x.shape[1]])[0])
    found = logits(model, batch, "embedmix")
    torch.testing.assert_close(found[mask], want[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert multi-label", "bert regression", "llama tokens"])
def test_losses_in_low_precision(kind):
    """Some models compute their loss in float32 from bf16 logits; ours follows, to the bit where nothing is mixed."""
    if kind == "llama tokens":
        torch.manual_seed(1)
        model, batch = tf.LlamaForTokenClassification(zoo.tiny("llama").config), token_batch()
    else:
        task = kind.split()[1].replace("-", "_")
        model = zoo.tiny("bert", num_labels=1 if task == "regression" else 3)
        model.config.problem_type = "regression" if task == "regression" else "multi_label_classification"
        batch = zoo.batch(task=task)
        if task == "regression":
            batch["labels"] = batch["labels"].to(torch.bfloat16)  # transformers itself needs one type there
    model = zoo.sharpen(still(model)).to(torch.bfloat16).train()
    with torch.backends.mkldnn.flags(enabled=False):  # its bf16 code dies on some CPUs, mixwell or not
        plain = model(**batch)
        with mixwell.attach(model, "tmix") as mixer:
            with mixer.pin(lam=1.0, permutation=PERM):
                own = model(**batch)
            with mixer.pin(lam=LAM, permutation=PERM):
                mixed = model(**batch)
                mixed.loss.backward()
    assert own.loss.dtype == plain.loss.dtype and torch.equal(own.loss, plain.loss)
    assert not torch.equal(mixed.logits, plain.logits)


def test_padding_of_a_config_with_parts():
    """Heads pool by the pad id of the text part; the whole may have none."""
    text = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                head_dim=8, intermediate_size=24, max_position_embeddings=40, pad_token_id=0,
                sliding_window=8)  # fmt: skip
    vision = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=16,
                  patch_size=8)  # fmt: skip
    config = tf.Gemma3Config(text_config=text, vision_config=vision, num_labels=3, mm_tokens_per_image=4)
    torch.manual_seed(1)
    model, batch = tf.Gemma3ForSequenceClassification(config).train(), zoo.batch("llama")
    with mixwell.attach(model, "sentencemix") as mixer, mixer.pin(lam=LAM, permutation=PERM):
        found = model(**batch).logits
    hidden = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    last = batch["attention_mask"].sum(1) - 1
    pooled = hidden[torch.arange(6), last]
    torch.testing.assert_close(found, model.score(lerp(pooled, pooled[PERM])))


def test_ssmix_where_texts_end_in_a_word():
    """Without a separator at the end the last word is a word like others: one span is replaced."""
    model = zoo.tiny("llama").train()
    ids = torch.arange(5, 23).view(2, 9)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1])}
    seen = []
    model.model.embed_tokens.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    with mixwell.attach(model, "ssmix", special_ids=[0, 1, 2]) as mixer, mixer.pin(permutation=[1, 0]):
        model(**batch)
        weight = mixer.last.label_weight
    torch.testing.assert_close(weight, torch.full((2,), 8 / 9))
    assert ((seen[-1] != ids).sum(1) == 1).all()


def test_running_statistics_are_left_alone():
    config = tf.MobileViTConfig(
        image_size=32, patch_size=2, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
        num_attention_heads=2, num_labels=3,
    )  # fmt: skip
    model = tf.MobileViTForImageClassification(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mixwell.attach(model, "sentencemix").detach()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tensor_parallel_models_are_refused():
    model = zoo.tiny("llama")
    model._tp_size = 2
    with pytest.raises(AttachError, match="tensor-parallel"):
        mixwell.attach(model, "amplify")


def test_layer_drop_is_refused_in_words():
    config = zoo.tiny("opt").config
    config.layerdrop = 1.0
    with pytest.raises(UnsupportedModelError, match="layer drop"):
        mixwell.attach(tf.OPTForSequenceClassification(config), "amplify")


def test_own_loss_of_tokens_is_scaled_by_its_labels():
    """Trainer's count of labels leaves out -100, and so does ours."""
    model, batch = token_model().train(), token_batch()

    def rows(logits, labels):
        return token_rows(logits, labels).sum(1)

    count = (batch["labels"] != -100).sum()
    with mixwell.attach(model, "none", loss_fn=rows):
        alone = model(**batch).loss
        half = model(**batch, num_items_in_batch=2 * count).loss
    torch.testing.assert_close(half, alone / 2)


def test_batchmixup_by_dots_reaches_every_weight():
    model = zoo.tiny("bert").train()
    with mixwell.attach(model, "batchmixup", loss_form="dot"):
        model(**zoo.batch()).loss.backward()
    assert model.classifier.bias.grad is not None


def test_gate_at_the_embeddings():
    with pytest.raises(OptionError, match="reads texts"):
        mixwell.attach(zoo.tiny("vit"), "nonlinear", point="embeddings")
    model, batch = zoo.tiny("llama").train(), zoo.batch("llama")
    with mixwell.attach(model, "nonlinear", point="embeddings") as mixer, mixer.pin(permutation=PERM):
        model(**batch)
        plan = mixer.last
    mask, gate = batch["attention_mask"].bool(), plan.extra["gate"]
    assert (gate[~plan.shift_mask] == 1).all() and not plan.shift_mask[mask].all()
    want = torch.stack([gate[row][mask[row]].mean() for row in range(6)])
    torch.testing.assert_close(plan.label_weight, want)


def labels_for(rows=6):
    return torch.arange(rows) % 3


def test_embeddings_of_a_model_without_blocks():
    """FNet has no attention: the embedding output is its embeddings' module, not the whole body."""
    config = tf.FNetConfig(
        vocab_size=zoo.VOCABULARY, hidden_size=16, num_hidden_layers=2, intermediate_size=24, num_labels=3,
        max_position_embeddings=40, hidden_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = zoo.sharpen(tf.FNetForSequenceClassification(config)).train()
    batch = {key: value for key, value in zoo.batch("bert").items() if key != "attention_mask"}
    want = []
    handle = model.fnet.embeddings.register_forward_hook(lambda module, args, out: lerp(out, out[PERM]))
    want = model(**batch).logits
    handle.remove()
    for named in (True, False):
        with mixwell.attach(model, "embedmix") as mixer, mixer.pin(lam=LAM, permutation=PERM):
            out = model(**batch, return_dict=named)
        torch.testing.assert_close(out[1], want)


def test_what_lies_loose_or_is_no_block_is_refused():
    config = tf.XLMConfig(vocab_size=60, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=40, num_labels=3)
    with pytest.raises(UnsupportedModelError, match="nothing around the word embedding"):
        mixwell.attach(tf.XLMForSequenceClassification(config), "embedmix")
    hybrid = survey.build("qwen3_next")
    for name in ("tmix", "amplify", "embedmix"):
        with pytest.raises(UnsupportedModelError, match="has no attention \\(a hybrid|no block is known"):
            mixwell.attach(hybrid, name)


def test_images_that_cannot_be_probed_or_added():
    swin = tf.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2)
    with pytest.raises(UnsupportedModelError):
        mixwell.attach(tf.SwinForImageClassification(swin), "amplify")
    resnet = tf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
    with pytest.raises(UnsupportedModelError, match="how large its images are"):
        mixwell.attach(tf.ResNetForImageClassification(resnet), "cls")


def test_layer_scale_is_seen_at_its_first_value():
    config = tf.Dinov2Config(
        image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_labels=3
    )
    with pytest.raises(UnsupportedModelError, match="LayerScale"):
        mixwell.attach(tf.Dinov2ForImageClassification(config), "amplify")


def test_a_decoder_that_reads_the_labels_is_refused():
    config = zoo.tiny("bart").config
    model = tf.BartForConditionalGeneration(config).train()
    ids = zoo.batch("bart")["input_ids"]
    with mixwell.attach(model, "none"), pytest.raises(UnsupportedModelError, match="depend on the labels"):
        model(input_ids=ids, labels=ids.roll(1, 0))


@pytest.mark.parametrize("name", ["embedmix", "attentionmix", "input"])
def test_deberta_meets_nobody_but_its_partner(name):
    """Its embeddings read the mask, which mixing widens: partners are mutual, so that no third row comes in."""
    model, batch = zoo.tiny("deberta-v2").train(), zoo.batch("deberta-v2")
    with mixwell.attach(model, name) as mixer:
        model(**batch)
        plan = mixer.last
        assert torch.equal(plan.permutation[plan.permutation], torch.arange(6))
        with pytest.raises(BatchError, match="needs mutual partners.*its own inverse"), mixer.pin(permutation=PERM):
            model(**batch)
    with pytest.raises(OptionError, match="mutual"):
        mixwell.attach(model, name, pairing="label")


@pytest.mark.parametrize("kind", zoo.ENCODER_DECODERS)
def test_input_mixes_both_stacks(kind):
    model, batch = zoo.sharpen(zoo.tiny(kind)).train(), zoo.batch(kind)
    with mixwell.attach(model, "input", padding="none") as mixer:
        assert {point.stack for point in mixer.sites} == {"encoder", "decoder"}
    found = {}
    for stacks in ("all", "encoder"):
        with mixwell.attach(model, "input", padding="none", stacks=stacks) as mixer:
            with mixer.pin(lam=LAM, permutation=PERM):
                found[stacks] = model(**batch).logits
    assert not torch.equal(found["all"], found["encoder"])
    for stacks in found:  # S = {0} is `input`
        with mixwell.attach(model, "manifold", layers=[0], padding="none", stacks=stacks) as mixer:
            assert mixer.layers == [0]
            with mixer.pin(lam=LAM, permutation=PERM):
                assert torch.equal(model(**batch).logits, found[stacks])


@pytest.mark.parametrize("stacks", ["all", "encoder"])
def test_manifold_numbers_what_it_draws_from(stacks):
    model, batch = zoo.sharpen(zoo.tiny("bart")).train(), zoo.batch("bart")
    with mixwell.attach(model, "manifold", padding="none", stacks=stacks) as mixer:
        last = mixer.layers[-1]
        assert mixer.layers == list(range(last + 1)) and last == {"all": 2, "encoder": 1}[stacks] * 2 + 1
        with mixer.pin(lam=LAM, permutation=PERM, layer=last):
            wanted = model(**batch).logits
    with mixwell.attach(model, "manifold", padding="none", stacks=stacks, layers=[last]) as mixer:
        with mixer.pin(lam=LAM, permutation=PERM, layer=last):
            assert torch.equal(model(**batch).logits, wanted)
        assert mixer.last.layer == last
    with mixwell.attach(model, "cls") as mixer, mixer.pin(lam=LAM, permutation=PERM):
        assert torch.equal(model(**batch).logits, wanted)


def test_spans_without_names():
    torch.manual_seed(0)
    model = zoo.sharpen(tf.BertForQuestionAnswering(zoo.tiny("bert", num_labels=2).config)).train()
    batch = {key: value for key, value in zoo.batch("bert").items() if key != "labels"}
    batch |= {"start_positions": labels_for(), "end_positions": labels_for() + 1}
    with mixwell.attach(model, "amplify") as mixer, mixer.pin(lam=LAM, permutation=PERM):
        named, bare = model(**batch), model(**batch, return_dict=False)
    assert torch.equal(named.loss, bare[0]) and torch.equal(named.start_logits, bare[1])
    model.config.return_dict = False
    with mixwell.attach(model, "amplify") as mixer:
        assert mixer.points.task == "span"
