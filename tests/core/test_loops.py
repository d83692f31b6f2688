"""Other people's loops around an attached model: a plain loop, Accelerate, Lightning, PEFT, bf16."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import mixwell
import zoo
from mixwell.methods import load_all
from mixwell.utils.errors import AttachError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning
    import peft
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

PERM = torch.tensor([2, 0, 1, 4, 5, 3])
LEARNING_RATE = 0.05


class Rows(torch.utils.data.Dataset):
    """The rows of a batch."""

    def __init__(self, rows=8):
        self.batch = zoo.batch(rows=rows)

    def __len__(self):
        return len(self.batch["labels"])

    def __getitem__(self, index):
        return {key: value[index] for key, value in self.batch.items()}


def loader():
    return DataLoader(Rows(), batch_size=4)


def build(kind="bert", **how):
    return zoo.sharpen(zoo.tiny(kind, **how)).train()


def weights(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def plain_loop(name, *, epochs=2, accumulate=1):
    """A loop of a few lines; the others must train to the same weights."""
    model = build(dropout=0.1)
    mixwell.attach(model, name, **zoo.strong(name))
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(1)
    for _ in range(epochs):
        for number, batch in enumerate(loader()):
            (model(**batch).loss / accumulate).backward()
            if (number + 1) % accumulate == 0:
                optimiser.step()
                optimiser.zero_grad()
    return weights(model)


def test_plain_loop_trains():
    end = plain_loop("amplify")
    start = weights(build(dropout=0.1))
    assert any(not torch.equal(start[key], end[key]) for key in end)
    assert all(bool(value.isfinite().all()) for value in end.values())


@pytest.fixture
def no_onednn():
    """Some virtual machines say that they have AMX and stop at its instructions, which oneDNN's bf16 uses."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


# --- Accelerate -------------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerate_state():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerate_loop(name, **how):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, **how)
    model = build(dropout=0.1)
    mixwell.attach(model, name, **zoo.strong(name))
    model, optimiser, batches = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), loader()
    )
    torch.manual_seed(1)
    losses = []
    for _ in range(2):
        for batch in batches:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimiser.step()
                optimiser.zero_grad()
                losses.append(loss.detach())
    return weights(accelerator.unwrap_model(model)), torch.stack(losses)


@pytest.mark.parametrize("name", ["amplify", "manifold", "ssmix"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.usefixtures("accelerate_state")
def test_accelerate(name, accumulate):
    got, _ = accelerate_loop(name, gradient_accumulation_steps=accumulate)
    want = plain_loop(name, accumulate=accumulate)
    assert all(torch.equal(got[key], want[key]) for key in want)


@pytest.mark.usefixtures("accelerate_state")
def test_accelerate_keeps_the_state_of_a_mixer(tmp_path):
    accelerator = Accelerator(cpu=True)
    model = zoo.tiny("bert")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    mixer = mixwell.attach(model, "nonlinear", label_policy="learned", stop=0.9, total_steps=10)
    model, optimiser = accelerator.prepare(model, optimiser)
    accelerator.register_for_checkpointing(mixer)
    batch = zoo.batch("bert")

    def steps(count):
        for _ in range(count):
            accelerator.backward(model.train()(**batch).loss)
            optimiser.step()
            optimiser.zero_grad()
        return mixer.state_dict()

    before = steps(3)
    accelerator.save_state(str(tmp_path))
    assert int(steps(2)["steps"]) == 5
    accelerator.load_state(str(tmp_path))
    after = mixer.state_dict()
    assert int(after["steps"]) == 3 and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["amplify", "attentionmix"])
@pytest.mark.usefixtures("accelerate_state", "no_onednn")
def test_accelerate_mixed_precision(name):
    _, rough = accelerate_loop(name, mixed_precision="bf16")
    _, exact = accelerate_loop(name)
    torch.testing.assert_close(rough, exact, rtol=3e-2, atol=3e-2)


# --- Lightning --------------------------------------------------------------------------------------------------------


class Module(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


def lightning_loop(name, folder, **how):
    model = build(dropout=0.1)
    mixwell.attach(model, name, **zoo.strong(name))
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **how,
    )  # fmt: skip
    module = Module(model)
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader())
    trainer.save_checkpoint(folder / "last.ckpt")
    return weights(model)


@pytest.mark.parametrize("name", ["amplify", "manifold"])
def test_lightning(name, tmp_path):
    got = lightning_loop(name, tmp_path)
    want = plain_loop(name)
    assert all(torch.equal(got[key], want[key]) for key in want)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert {key.removeprefix("model.") for key in saved} == want.keys()


@pytest.mark.usefixtures("no_onednn")
def test_lightning_mixed_precision(tmp_path):
    got = lightning_loop("amplify", tmp_path, precision="bf16-mixed")
    assert all(bool(value.isfinite().all()) for value in got.values())


# --- PEFT -------------------------------------------------------------------------------------------------------------


def lora(kind, **how):
    """A tiny model with LoRA around all its linear layers and a head that is trained whole."""
    how.setdefault("target_modules", "all-linear")
    config = peft.LoraConfig(task_type=peft.TaskType.SEQ_CLS, r=2, lora_dropout=0.0, init_lora_weights=False, **how)
    base = zoo.tiny(kind)
    torch.manual_seed(4)
    return peft.get_peft_model(base, config).train()


@pytest.mark.parametrize("kind", ["bert", "roberta", "llama"])
@pytest.mark.parametrize("name", ["amplify", "sentencemix", "manifold"])
def test_lora_trains_saves_and_reloads(kind, name, tmp_path):
    model = lora(kind)
    frozen = {key: value.clone() for key, value in model.state_dict().items() if "base_layer" in key}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
    before = weights(model)
    mixwell.attach(model, name, **zoo.options(kind, name), **zoo.strong(name))
    for _ in range(2):
        model(**zoo.batch(kind)).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in frozen.items())
    assert any(not torch.equal(before[key], after[key]) for key in after)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(zoo.tiny(kind), tmp_path)
    model.eval()
    again.eval()
    with torch.no_grad():
        assert torch.equal(model(**zoo.batch(kind)).logits, again(**zoo.batch(kind)).logits)


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize(
    ("name", "options"), [*((n, {}) for n in sorted(load_all())), ("amplify", {"site": "attention_raw"})]
)
def test_lora_mixes_what_the_merged_model_mixes(kind, name, options):
    """The points lie around adapters, not inside them: merged into the weights they give the same loss."""
    options = {**zoo.options(kind, name), **zoo.strong(name), **options}
    wrapped = lora(kind)
    merged = copy.deepcopy(wrapped).merge_and_unload().train()
    losses = []
    for model in (wrapped, merged):
        with mixwell.attach(model, name, **options) as mixer:
            perm = torch.tensor([2, 4, 0, 5, 1, 3]) if name == "mit" else PERM  # mutual partners
            pin = dict(permutation=perm) if load_all()[name].has_permutation else {}
            torch.manual_seed(2)
            with mixer.pin(**pin):
                losses.append(model(**zoo.batch(kind)).loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)
    losses[0].backward()


@pytest.mark.parametrize("name", ["none", "amplify", "sentencemix", "ssmix"])
def test_attach_before_wrapping_is_refused(name):
    model = zoo.tiny("bert").train()
    mixer = mixwell.attach(model, name, **zoo.strong(name))
    config = peft.LoraConfig(task_type=peft.TaskType.SEQ_CLS, r=2)
    wrapped = peft.get_peft_model(model, config)
    with pytest.raises(AttachError, match=r"mixer\.detach\(\), then get_peft_model, then attach"):
        wrapped(**zoo.batch())
    with pytest.raises(AttachError, match="attach after get_peft_model"):
        mixwell.attach(wrapped, name)
    mixer.detach()
    mixwell.attach(wrapped, name)
    wrapped(**zoo.batch()).loss.backward()


def test_adapters_added_in_place():
    """transformers' own model.add_adapter, before and after attach; a second adapter of a wrapped model."""
    model = zoo.tiny("bert").train()
    mixer = mixwell.attach(model, "amplify")
    model.add_adapter(peft.LoraConfig(r=2))
    model.train()
    with pytest.raises(AttachError, match="adapters were added or removed"):
        model(**zoo.batch())
    mixer.detach()
    mixwell.attach(model, "amplify", site="attention_raw")
    model(**zoo.batch()).loss.backward()
    wrapped = lora("bert")
    mixwell.attach(wrapped, "amplify")
    wrapped(**zoo.batch()).loss.backward()
    wrapped.add_adapter("second", peft.LoraConfig(task_type=peft.TaskType.SEQ_CLS, r=2, target_modules=["query"]))
    with pytest.raises(AttachError, match="adapters were added or removed"):
        wrapped(**zoo.batch())


def test_positional_arguments_of_a_wrapped_model():
    """PEFT's forward orders its arguments in its own way."""
    model, batch = lora("bert"), zoo.batch()
    with mixwell.attach(model, "none"):
        named = model(**batch).loss
        assert torch.equal(model(batch["input_ids"], batch["attention_mask"], None, batch["labels"]).loss, named)


# --- bf16 -------------------------------------------------------------------------------------------------------------


def precision(how, kind):
    model = build(kind)
    if how == "weights":
        return model.to(torch.bfloat16), torch.autocast("cpu", enabled=False)
    return model, torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("name", sorted(load_all()))
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("how", ["autocast", "weights"])
@pytest.mark.usefixtures("no_onednn")
def test_bf16_is_finite_and_lam_one_is_plain(how, kind, name):
    method = load_all()[name]
    model, context = precision(how, kind)
    batch = zoo.batch(kind)
    with context:
        want = model(**batch).loss
    want.backward()
    plain = zoo.gradients(model)
    mixer = mixwell.attach(model, name, **zoo.options(kind, name), **zoo.strong(name))
    for _ in range(3):
        model.zero_grad()
        with context:
            loss = model(**batch).loss
        loss.backward()
        assert bool(loss.isfinite())
        assert all(bool(value.isfinite().all()) for value in zoo.gradients(model).values())
    pin = {}
    if method.has_lam:
        pin["lam"] = 1.0
    elif method.has_permutation:
        pin["permutation"] = torch.arange(6)
    if name in ("batchmixup", "eda"):  # no draw of them is plain, but one row is
        return
    model.zero_grad()
    with mixer.pin(**pin), context:
        loss = model(**batch).loss
    loss.backward()
    if name == "regmixup":  # the plain loss twice
        assert torch.equal(loss, 2 * want)
        return
    assert torch.equal(loss, want)
    assert zoo.same(zoo.gradients(model), plain)
