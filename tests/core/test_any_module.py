"""Any torch module through an example: mixed as written out by hand, untouched in eval mode, clean after detach."""

from __future__ import annotations

import copy
import warnings

import foreign
import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mixwell
import zoo
from mixwell.utils.errors import AttachError, LabelsNotMixedError, OptionError, UnsupportedModelError

LAM, PERM = 0.3, torch.tensor([2, 0, 1, 4, 5, 3])
LABELS = torch.arange(6) % 3
SITE = {"amplify": "attention", "embedmix": "embeddings", "tmix": "block", "sentencemix": "sentence"}


def texts(pad_is_true=False):
    batch = zoo.batch()
    ids, mask = batch["input_ids"][:, :12] % 30, batch["attention_mask"][:, :12]
    return ids, (mask == 0 if pad_is_true else mask)


def pixels():
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mixing(kind, last_block_only=False):
    """A function that mixes at one kind of point, as the methods' formulas say."""
    seen = []

    def mix(point, x):
        seen.append(point)
        on = point == kind and (not last_block_only or seen.count("block") == 3)
        return LAM * x + (1 - LAM) * x[PERM] if on else x

    return mix


def mixed_cross_entropy(logits):
    rows = [F.cross_entropy(logits, labels, reduction="none") for labels in (LABELS, LABELS[PERM])]
    return (LAM * rows[0] + (1 - LAM) * rows[1]).mean()


def tensor(output):
    return output["prediction"] if isinstance(output, dict) else output


def check(module, args, example, name, by_hand, **options):
    """Gradients of a mixed step equal those by hand; eval and everything after detach are what they were."""
    module = zoo.sharpen(module, 3.0).double()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    plain = tensor(module.eval()(*args))
    with mixwell.attach(module, name, example=example, **options) as mixer:
        assert module.state_dict().keys() == before.keys()
        assert torch.equal(tensor(module(*args)), plain)
        module.train()
        with mixer.pin(lam=LAM, permutation=PERM, layer=2 if name == "tmix" else None):
            output = tensor(module(*args))
        loss = mixer.loss(output, LABELS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss.backward()
    found = zoo.gradients(module)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    module.zero_grad()
    wanted = by_hand(mixing(SITE[name], last_block_only=name == "tmix"))
    assert (output - wanted).abs().max() < 1e-6 and (wanted - plain).abs().max() > 1e-3
    mixed_cross_entropy(wanted).backward()
    for key, gradient in zoo.gradients(module).items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-6, atol=1e-9)
    assert torch.equal(tensor(module.eval()(*args)), plain)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", ["amplify", "embedmix", "tmix", "sentencemix"])
def test_transformer_encoder(name, batch_first, norm_first):
    torch.manual_seed(0)
    module = foreign.TextEncoder(batch_first, norm_first)
    ids, padding = texts(pad_is_true=True)
    # embedmix attends where a row or its partner has tokens.
    seen = padding & padding[PERM] if name == "embedmix" else padding
    example = {"tokens": ids, "padding": padding}
    check(module, (ids, padding), example, name, lambda mix: module.by_hand(mix, ids, seen))


@pytest.mark.parametrize("kind", [foreign.TimmViT, foreign.TorchvisionViT])
@pytest.mark.parametrize("name", ["amplify", "embedmix", "tmix", "sentencemix"])
def test_vision_transformers(name, kind):
    torch.manual_seed(0)
    module, x = kind(), pixels()
    check(module, (x,), x, name, lambda mix: module.by_hand(mix, x))


@pytest.mark.parametrize("name", ["amplify", "embedmix", "tmix", "sentencemix"])
def test_automodel_and_pooling(name):
    torch.manual_seed(0)
    module, (ids, real) = foreign.MeanPooled(), texts()
    if name == "embedmix":  # the pooled mean is over the wider mask too, as the module is given it
        wider = real | real[PERM]
        check(module, (ids, real), (ids, real), name, lambda mix: module.by_hand(mix, ids, wider), mask="real")
    else:
        check(module, (ids, real), {"ids": ids, "real": real}, name, lambda mix: module.by_hand(mix, ids, real))


def test_raw_projection_of_multihead_attention():
    module = foreign.TorchvisionViT().train()
    mixer = mixwell.attach(module, "amplify", site="attention_raw", example=pixels().float())
    assert [point.name for point in mixer.sites] == [
        f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(3)
    ]
    mixer.loss(module(pixels().float()), LABELS).backward()


@pytest.mark.parametrize("kind", [foreign.TimmViT, foreign.TorchvisionViT])
def test_dropout_after_attention_is_no_obstacle_where_it_is_a_module(kind):
    """The stream is what dropout gives plus the block's input: lam = 1 is plain training to the bit."""
    x, seen = pixels().float(), []
    for name in ("none", "amplify"):
        torch.manual_seed(0)
        module = kind(dropout=0.5).train()
        mixer = mixwell.attach(module, name, example=x)
        torch.manual_seed(1)
        with mixer.pin(**({} if name == "none" else {"lam": 1.0})):
            mixer.loss(module(x), LABELS).backward()
        seen.append(zoo.gradients(module))
    assert zoo.same(*seen)
    assert all(point.how == "residual" and "attn" not in point.name for point in mixer.sites)


@pytest.mark.parametrize("arguments", ["tensor", "tuple", "names"])
def test_examples_and_calls_need_not_look_the_same(arguments):
    ids, padding = texts(pad_is_true=True)
    examples = {"tensor": ids, "tuple": (ids, padding), "names": {"tokens": ids, "padding": padding}}
    module = foreign.TextEncoder().train()
    mixer = mixwell.attach(module, "amplify", example=examples[arguments])
    with mixer.pin(lam=LAM, permutation=PERM):
        outputs = [module(ids, padding), module(tokens=ids, padding=padding), module(ids, padding=padding)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def test_batch_axis_of_the_input():
    """(T, B, d) in, as nn.TransformerEncoder has it by default."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, 0.0), 2)
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.encoder(x).mean(0))

    x = torch.randn(9, 6, 16)
    module = Late().train()
    mixer = mixwell.attach(module, "amplify", example=x)
    with mixer.pin(lam=LAM, permutation=PERM):
        out = module(x)
    assert len(mixer.last.permutation) == 6
    mixer.loss(out, LABELS).backward()
    mixer.detach()
    bare = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, 0.0), 2)
    with pytest.raises(UnsupportedModelError, match="pass batch_dim=1"):
        mixwell.attach(bare, "amplify", example=x)
    mixwell.attach(bare, "amplify", example=x, batch_dim=1)
    bare.train()(x)
    assert len(mixwell.mixer_of(bare).last.permutation) == 6


def test_blocks_of_a_sequential_model():
    class Tokens(nn.Module):
        def forward(self, x):
            return x.mean(1)

    model = nn.Sequential(
        nn.Linear(8, 16), foreign.TimmBlock(), foreign.TimmBlock(), Tokens(), nn.Linear(16, 3)
    ).train()
    x = torch.randn(6, 5, 8)
    mixer = mixwell.attach(model, "amplify", example=x)
    assert [point.name.split(".")[0] for point in mixer.sites] == ["1", "2"]
    mixer.loss(model(x), LABELS).backward()


class Odd(nn.Module):
    """Blocks and attention that nothing tells by their names or places."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after, self.mixer = nn.LayerNorm(16), nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x):
            x = x + self.mixer(self.before(x).mean(1, keepdim=True))
            return x + self.after(x)

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = Odd.Layer(), Odd.Layer(), nn.Linear(16, 3)

    def forward(self, x):
        return F.log_softmax(self.head(self.second(self.first(x)).mean(1)), -1)


def test_what_is_not_found_can_be_named():
    x, module = torch.randn(6, 5, 16), Odd().train()
    with pytest.raises(UnsupportedModelError, match=r"class name ends in 'Attention'.*where=\{'block'"):
        mixwell.attach(module, "amplify", example=x)
    with pytest.raises(OptionError, match=r"names no module.*did you mean 'second'"):
        mixwell.attach(module, "tmix", example=x, where={"block": "secnd"})
    with pytest.raises(OptionError, match="did you mean 'block'"):
        mixwell.attach(module, "tmix", example=x, where={"blocks": "first"})
    mixer = mixwell.attach(module, "tmix", example=x, where={"block": "*s*", "embeddings": "first"}, layers=[0])
    assert mixer.sites[0].name == "first"
    mixer.loss(module(x), LABELS).backward()
    with pytest.warns(UserWarning, match="replaces"):
        mixer = mixwell.attach(module, "amplify", example=x, where={"block": "*s*", "attention": "*.mixer"},
                               site="attention_raw")  # fmt: skip
    assert [point.name for point in mixer.sites] == ["first.mixer", "second.mixer"]
    with pytest.warns(UserWarning, match="replaces"):
        mixer = mixwell.attach(module, "sentencemix", example=x)  # the last linear layer of the output's size
    assert mixer.sites[0].name == "head"
    mixer.loss(module(x), LABELS).backward()


def test_examples_that_cannot_be_used():
    module, (ids, padding) = foreign.TextEncoder(), texts(pad_is_true=True)
    for example, words in (
        ("words", "example=str must be what the model is called with"),
        ({"tokens": 3}, "holds no tensor"),
    ):
        with pytest.raises(OptionError, match=words):
            mixwell.attach(module, "amplify", example=example)
    with pytest.raises(UnsupportedModelError, match="at least two rows"):
        mixwell.attach(module, "amplify", example=ids[:1])
    with pytest.raises(
        UnsupportedModelError, match="the probe of TextEncoder failed.*must be what the model is called"
    ):
        mixwell.attach(module, "amplify", example=(ids, padding, ids))
    with pytest.raises(OptionError, match="mask='mask' is none of the arguments.*tokens"):
        mixwell.attach(module, "amplify", example=(ids, padding), mask="mask")
    with pytest.raises(OptionError, match="go with example="):
        mixwell.attach(zoo.tiny("bert"), "amplify", mask="attention_mask")
    with pytest.raises(UnsupportedModelError, match="ssmix.*no argument labels="):
        mixwell.attach(module, "ssmix", example=ids)
    with pytest.raises(UnsupportedModelError, match=r"no transformers config.*example=batch"):
        mixwell.attach(module, "amplify")
    assert "amplify        fits" in str(mixwell.inspect(module, example=ids))


def test_a_mask_of_either_sense():
    """Where the name does not tell, `~` does."""

    class Named(foreign.TextEncoder):
        def forward(self, tokens, gaps):
            return super().forward(tokens, gaps)

    ids, padding = texts(pad_is_true=True)
    module = Named().train()
    wanted = module.by_hand(mixing("embeddings"), ids, padding & padding[PERM])
    for other, mask in ((module, "~gaps"), (foreign.TextEncoder().train(), "padding")):
        other.load_state_dict(module.state_dict())
        with mixwell.attach(other, "embedmix", example=(ids, padding), mask=mask) as mixer:
            with mixer.pin(lam=LAM, permutation=PERM):
                torch.testing.assert_close(other(ids, padding), wanted, rtol=1e-4, atol=1e-5)


def test_causal_modules_line_up_the_last_tokens():
    """A decoder of one's own: the partner's last token lands on the row's last token."""

    class Causal(foreign.TextEncoder):
        def forward(self, tokens, attention_mask):
            x = self.words(tokens) + self.places[: tokens.shape[1]]
            future = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            x = self.encoder(x, mask=future, is_causal=True)
            return self.head(x[torch.arange(len(x)), attention_mask.sum(1) - 1])

    ids, mask = texts()
    module = Causal().train()
    with mixwell.attach(module, "amplify", example=(ids, mask)) as mixer:
        assert all(point.causal for point in mixer.sites)
        with mixer.pin(lam=LAM, permutation=PERM):
            module(ids, mask)
        last = mask.sum(1) - 1
        assert torch.equal(mixer.last.shift[torch.arange(6), last], last[PERM])


def test_modules_with_labels_of_their_own_are_checked_as_transformers_are():
    class Own(foreign.MeanPooled):
        def forward(self, ids, real, labels=None):
            logits = super().forward(ids, real)["prediction"]
            return logits if labels is None else (F.cross_entropy(logits, labels), logits)

    ids, real = texts()
    module = Own().train()
    with mixwell.attach(module, "cls", example={"ids": ids, "real": real, "labels": LABELS}) as mixer:
        with mixer.pin(lam=LAM, permutation=PERM):
            for loss, logits in (module(ids, real, LABELS), module(ids=ids, real=real, labels=LABELS)):
                torch.testing.assert_close(loss, mixed_cross_entropy(logits))


@pytest.mark.parametrize("name", ["amplify", "tmix", "sentencemix"])
def test_multiple_choice(name):
    """Choices of a row are mixed with the same choices of its partner."""
    import transformers as tf

    config = zoo.tiny("bert").config
    model = zoo.sharpen(tf.BertForMultipleChoice(config)).train()
    batch = zoo.batch()
    ids = torch.stack([batch["input_ids"], batch["input_ids"].flip(0)], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        plain = model.eval()(**inputs).logits
    labels = torch.arange(6) % 2
    model.train()
    with mixwell.attach(model, name, example=inputs) as mixer:
        with mixer.pin(lam=0.0, permutation=PERM, layer=2 if name == "tmix" else None):
            out = model(**inputs, labels=labels)
        out.loss.backward()
    if name != "amplify":  # lam = 0 late in the model exchanges the rows
        torch.testing.assert_close(out.logits, plain[PERM], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, labels[PERM]))


# --- Lightning ------------------------------


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = foreign.TextEncoder()
        self.mixer = None

    def forward(self, tokens, padding=None):
        return self.inner(tokens, padding)

    def training_step(self, batch, _):
        ids, padding, labels = batch
        logits = self(ids, padding)
        return F.cross_entropy(logits, labels) if self.mixer is None else self.mixer.loss(logits, labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def fit(module):
    data = torch.utils.data.TensorDataset(*texts(pad_is_true=True), LABELS)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=6))


@pytest.mark.parametrize("auto", [False, True])
def test_lightning_module(auto):
    """With mixer.loss in the training step, or with the step as it was."""
    module, twin = Lit().double(), copy.deepcopy(Lit().double().inner)
    mixer = mixwell.attach(module, "amplify", example=texts(pad_is_true=True), auto_loss=auto)
    module.mixer = None if auto else mixer
    with mixer.pin(lam=LAM, permutation=PERM):
        fit(module)
    mixed_cross_entropy(twin.by_hand(mixing("attention"), *texts(pad_is_true=True))).backward()
    for (name, found), wanted in zip(module.inner.named_parameters(), twin.parameters()):
        torch.testing.assert_close(found.detach(), wanted.detach() - wanted.grad, rtol=1e-6, atol=1e-9, msg=name)
    mixer.detach()
    assert module.state_dict().keys() == Lit().state_dict().keys()


def test_lightning_without_the_mixers_loss_is_an_error():
    module = Lit()
    mixwell.attach(module, "amplify", example=texts(pad_is_true=True))
    with pytest.raises(LabelsNotMixedError, match=r"mixer\.loss"):
        fit(module)


def test_lightning_in_eval_mode_is_an_error():
    """Lightning leaves a module in the mode it finds: nothing would be mixed, and nobody would know."""
    module = Lit()
    mixwell.attach(module.inner, "amplify", example=texts(pad_is_true=True))
    module.inner.eval()
    with pytest.raises(AttachError, match=r"eval mode in a training_step.*model\.train\(\)"):
        fit(module)


# --- the machinery around it ------------------------------


def test_compiled_modules_do_not_recompile():
    from torch._dynamo.testing import CompileCounterWithBackend

    ids, padding = texts(pad_is_true=True)
    graphs, seen = [], []
    for compiled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = foreign.TextEncoder(batch_first=False).train()
        mixer = mixwell.attach(module, "tmix", example=(ids, padding), draw="beta", alpha=1.0)
        counter = CompileCounterWithBackend("aot_eager")
        call = torch.compile(module, backend=counter) if compiled else module
        torch.manual_seed(1)
        for _ in range(5):
            mixer.loss(call(ids, padding), LABELS).backward()
            graphs.append(counter.frame_count)
        seen.append(zoo.gradients(module))
        mixer.detach()
    torch._dynamo.reset()
    assert graphs[-1] == graphs[-4] > 0
    for key in seen[0]:
        torch.testing.assert_close(seen[0][key], seen[1][key])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(foreign.TimmViT):
        def forward(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(self.norm(x)[:, 0])

    seen = []
    for kind in (foreign.TimmViT, Checkpointed):
        torch.manual_seed(0)
        module = kind().double().train()
        mixer = mixwell.attach(module, "amplify", example=pixels())
        with mixer.pin(lam=LAM, permutation=PERM):
            out = module(pixels())
        mixer.loss(out, LABELS).backward()
        seen.append(zoo.gradients(module))
    for key in seen[0]:
        torch.testing.assert_close(seen[0][key], seen[1][key])
