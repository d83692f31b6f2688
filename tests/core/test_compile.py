"""torch.compile after attach: one graph whatever is drawn, the results of eager mode, clear errors otherwise."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import mixwell
import parts
import zoo
from mixwell.methods import load_all
from mixwell.utils.errors import AttachError, UnsupportedModelError


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def build(kind="bert", *, layers=None):
    model = zoo.sharpen(zoo.tiny(kind)).train()
    if layers is not None:
        model.bert.encoder.layer = model.bert.encoder.layer[:layers]
    return model


class Run:
    """Train a few steps; keep losses, gradients, draws and the number of compiled graphs after each step."""

    def __init__(self, kind, name, options, *, how=None, backend="aot_eager", steps=6, batches=None, prepare=None):
        self.model = build(kind)
        if prepare is not None:
            prepare(self.model)
        self.mixer = mixwell.attach(self.model, name, **{**zoo.strong(name), **options})
        self.counter = CompileCounterWithBackend(backend)
        self.call = self.model
        if how == "wrapper":
            self.call = torch.compile(self.model, backend=self.counter)
        elif how == "method":
            self.model.compile(backend=self.counter)
        self.batches = batches or [zoo.batch(kind)]
        self.losses, self.gradients, self.draws, self.graphs = [], [], [], []
        torch.manual_seed(0)
        self.train(steps)

    def train(self, steps):
        for number in range(steps):
            self.model.zero_grad(set_to_none=True)
            loss = self.call(**self.batches[number % len(self.batches)]).loss
            loss.backward()
            self.losses.append(loss.detach())
            self.gradients.append(zoo.gradients(self.model))
            self.draws.append(self.mixer.last)
            self.graphs.append(self.counter.frame_count)

    def same_as(self, other, **tolerance):
        assert [plan.lam for plan in self.draws] == [plan.lam for plan in other.draws]
        torch.testing.assert_close(self.losses, other.losses, **tolerance)
        torch.testing.assert_close(self.gradients, other.gradients, **tolerance)


EXACT = dict(rtol=0, atol=0)


# One of each kind: several blocks, one drawn block, tokens, attention, a second batch, noise, labels alone.
OF_EACH_KIND = ("amplify", "attentionmix", "batchmixup", "manifold", "nfm", "nonlinear", "remix", "ssmix")


@pytest.mark.parametrize("name", sorted(load_all()) if parts.ALL else OF_EACH_KIND)
def test_one_graph_whatever_is_drawn(name):
    """One graph for all steps, no break in it, eager mode's numbers; extra passes of a method stay eager."""
    options = {"layers": [0, 1, 2]} if name == "tmix" else {}
    # How autograd is traced differs by where tensors come from, not by method; without it a graph takes half the time.
    backend = "aot_eager" if name in ("amplify", "batchmixup", "manifold", "nonlinear") else "eager"
    compiled = Run("bert", name, options, how="wrapper", backend=backend)
    assert compiled.graphs == [1] * 6
    assert not counters["graph_break"]
    compiled.same_as(Run("bert", name, options), **EXACT)
    if load_all()[name].has_layer:
        assert len({plan.layer for plan in compiled.draws}) > 1
    if load_all()[name].has_permutation:
        assert len({tuple(plan.permutation.tolist()) for plan in compiled.draws}) > 1


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        ("llama", "amplify", {}),
        ("llama", "manifold", {"padding": "none"}),
        ("albert", "amplify", {}),
        ("roberta", "manifold", {"padding": "pad"}),
    ],
)
def test_other_layouts(kind, name, options):
    compiled = Run(kind, name, options, how="wrapper", backend="eager")
    assert compiled.graphs == [1] * 6
    compiled.same_as(Run(kind, name, options), **EXACT)


def test_a_model_that_breaks_its_own_graph():
    """BART draws its layer drop by a branch on a random number; ours must not add recompiles to that."""
    compiled = Run("bart", "embedmix", {}, how="wrapper", backend="eager", steps=4)
    assert compiled.graphs[1:] == [compiled.graphs[1]] * 3
    compiled.same_as(Run("bart", "embedmix", {}, steps=4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"), [("tmix", {}), ("attentionmix", {}), ("ssmix", {}), ("amplify", {"regularise": True})]
)
def test_compiled_in_place(name, options):
    """model.compile(): the passes that a method runs for itself go around the compiler."""
    compiled = Run("bert", name, options, how="method", backend="eager")
    assert compiled.graphs == [1] * 6
    compiled.same_as(Run("bert", name, options), **EXACT)


def test_eval_in_between_and_detach():
    run = Run("bert", "manifold", {}, how="wrapper", steps=2, backend="eager")
    plain = build().eval()
    with torch.no_grad():
        want = plain(**zoo.batch()).logits
        for _ in range(2):
            run.model.eval()
            assert torch.equal(run.call(**zoo.batch()).logits, want)
            graphs = run.counter.frame_count
            run.model.train()
    assert graphs == 2  # one for training, one for evaluation
    run.train(3)
    assert run.counter.frame_count == graphs
    run.mixer.detach()
    plain.train()(**zoo.batch()).loss.backward()
    run.model.zero_grad()
    run.call(**zoo.batch()).loss.backward()
    assert zoo.same(zoo.gradients(run.model), zoo.gradients(plain))


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    parts.some([("bert", "manifold", {"sep_token_id": zoo.SEP}), ("llama", "amplify", {})], 2),
)
def test_batches_of_other_shapes(kind, name, options):
    """A new length and a new number of rows compile once more each, then both are left open."""
    whole = zoo.batch(rows=8)
    shapes = ((8, 13), (8, 11), (6, 12), (7, 10), (5, 9), (4, 13))
    cut = [
        {key: (v[:rows, :length] if v.dim() > 1 else v[:rows]).contiguous() for key, v in whole.items()}
        for rows, length in shapes
    ]
    compiled = Run(kind, name, options, how="wrapper", batches=cut, backend="eager")
    assert compiled.graphs == [1, 2, 3, 3, 3, 3]
    compiled.same_as(Run(kind, name, options, batches=cut), **EXACT)


def test_labels_kept_by_the_loop():
    model = build()
    mixer = mixwell.attach(model, "amplify")
    call = torch.compile(model, backend="eager")
    given = zoo.batch()
    labels = given.pop("labels")
    for _ in range(2):
        mixer.loss(call(**given).logits, labels).backward()


def test_compiled_and_used_before_attach():
    torch._dynamo.config.skip_nnmodule_hook_guards = True  # torch's default, as before the first attach
    model = build()
    call = torch.compile(model, backend="eager")
    given = zoo.batch()
    given.pop("labels")
    call(**given)
    with pytest.raises(AttachError, match=r"attach first, then torch\.compile"):
        mixwell.attach(call, "tmix")
    mixwell.attach(model, "tmix")  # nothing tells that somebody holds a compiled version
    with pytest.raises(UnsupportedModelError, match="compiled before attach"):
        call(**given)


@pytest.mark.parametrize("name", parts.some(["tmix", "amplify"], 2, 1))
def test_checkpointing_in_a_compiled_model(name):
    def prepare(model):
        model.gradient_checkpointing_enable({"use_reentrant": False})

    compiled = Run("bert", name, {}, how="wrapper", steps=3, prepare=prepare)
    assert len(set(compiled.graphs)) == 1
    compiled.same_as(Run("bert", name, {}, steps=3, prepare=prepare), **EXACT)


def test_blocks_compiled_one_by_one():
    """Blocks share their code: a graph made for a block without hooks must not serve one that has some."""
    compiled = Run("bert", "tmix", {}, steps=0)
    for block in compiled.model.bert.encoder.layer:
        block.compile(backend=compiled.counter)
    torch.manual_seed(0)
    compiled.train(6)
    assert len(set(compiled.graphs)) == 1
    compiled.same_as(Run("bert", "tmix", {}), **EXACT)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    results = []
    for how in (False, True):
        model = build(layers=1)
        mixwell.attach(model, "manifold")
        counter = CompileCounterWithBackend("inductor")
        call = torch.compile(model, backend=counter) if how else model
        torch.manual_seed(0)
        for _ in range(6):
            call(**zoo.batch()).loss.backward()
        results.append(zoo.gradients(model))
    assert counter.frame_count == 1
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
