"""On, off, again, how often: what a user sees and calls around training."""

from __future__ import annotations

import copy
import io
import pydoc
import subprocess
import sys

import pytest
import torch
from torch import nn

import mixwell
import zoo
from mixwell.utils.errors import AttachError, OptionError, UnsupportedModelError


@pytest.fixture
def model():
    return zoo.sharpen(zoo.tiny("bert")).train()


@pytest.fixture
def batch():
    return zoo.batch()


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_detach_without_the_mixer(model, batch):
    mixwell.attach(model, "amplify")
    assert mixwell.mixer_of(model).method.name == "amplify"
    assert mixwell.detach(model) is model
    assert mixwell.mixer_of(model) is None and not hooks(model)
    assert mixwell.detach(model) is model  # nothing to do


def test_the_mixer_of_what_holds_or_wraps_a_model(model):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

    mixer = mixwell.attach(model, "amplify")
    assert mixwell.mixer_of(Holder()) is mixer
    assert mixwell.mixer_of(torch.compile(model)) is mixer
    assert mixwell.mixer_of(zoo.tiny("bert")) is None
    mixwell.detach(Holder())
    assert not mixer.attached


def test_attaching_again_replaces_with_a_note(model, batch):
    """A notebook cell that is run twice."""
    first = mixwell.attach(model, "amplify")
    count = hooks(model)
    with pytest.warns(UserWarning, match="had 'amplify' attached, which 'amplify' replaces"):
        second = mixwell.attach(model, "amplify")
    assert not first.attached and second.attached and hooks(model) == count
    with pytest.warns(UserWarning, match="which 'cls' replaces"):
        mixwell.attach(model, "cls")
    model(**batch).loss.backward()
    with pytest.raises(OptionError):
        mixwell.attach(model, "tmix", layers=[9])
    assert mixwell.mixer_of(model).method.name == "cls"  # the old one stays where the new one does not fit
    model(**batch).loss.backward()


def test_turned_off_it_is_plain_and_takes_no_seed(model, batch):
    want = model(**batch).loss
    mixer = mixwell.attach(model, "cls")
    mixer.enabled = False
    state = torch.get_rng_state()
    out = model(**batch)
    assert torch.equal(out.loss, want) and torch.equal(torch.get_rng_state(), state)
    torch.nn.functional.cross_entropy(out.logits, batch["labels"]).backward()  # any loss is right
    mixer.enabled = True
    model(**batch)
    assert mixer.last.mixed


# --- prob, last, stats ------------------------------


@pytest.mark.parametrize("name", sorted(mixwell.methods()))
def test_prob_leaves_batches_unmixed_and_the_other_draws_alone(model, batch, name):
    draws = {}
    for prob in (1.0, 0.5, 0.0):
        torch.manual_seed(0)
        with mixwell.attach(model, name, prob=prob, **zoo.strong(name)) as mixer:
            draws[prob] = []
            for _ in range(12):
                model(**batch)
                draws[prob].append(mixer.last)
            stats = mixer.stats()
        assert stats["steps"] == 12 and stats["mixed"] == sum(plan.mixed for plan in draws[prob])
    assert not any(plan.mixed for plan in draws[0.0])
    if name == "none":
        return
    some = [plan.mixed for plan in draws[0.5]]
    assert all(plan.mixed for plan in draws[1.0]) and 0 < sum(some) < 12
    for half, whole in zip(draws[0.5], draws[1.0]):
        assert half.seed == whole.seed
        if half.mixed:
            assert half.lam == whole.lam and torch.equal(half.permutation, whole.permutation)


def test_options_that_came_later_do_not_change_old_records(model):
    """Records of comparisons are found by the options of their method."""
    assert not {"prob", "problem"} & mixwell.attach(model, "amplify").to_dict()["options"].keys()
    mixwell.detach(model)
    assert mixwell.attach(model, "amplify", prob=0.5).to_dict()["options"]["prob"] == 0.5


def test_wrong_prob(model):
    with pytest.raises(OptionError, match=r"prob=1\.5 must lie between 0 and 1"):
        mixwell.attach(model, "amplify", prob=1.5)


def test_last_says_whether_anything_was_mixed(model, batch):
    mixer = mixwell.attach(model, "amplify")
    for lam, mixed in ((0.5, True), (1.0, False), (1 - 1e-12, False)):
        with mixer.pin(lam=lam):
            model(**batch)
        assert mixer.last.mixed is mixed
    model(**{key: value[:1] for key, value in batch.items()})
    assert not mixer.last.mixed
    assert mixer.stats() == {"steps": 4, "mixed": 1, "noticeable": 1, "mean_lam": pytest.approx((0.5 + 1 + 1) / 3)}


def test_amplify_is_noticeable_in_15_percent_of_steps(model, batch):
    """What docs, help and docstrings say."""
    from mixwell.core.draw import draw_max_of, generator

    rng = generator(0)
    share = sum(draw_max_of(0.1, 5, rng) < 0.99 for _ in range(4000)) / 4000
    assert 0.12 < share < 0.17
    for text in (mixwell.attach.__doc__, mixwell.Mixer.stats.__doc__, mixwell.methods()["amplify"]):
        assert "15 %" in text


# --- discoverable ------------------------------


def test_names_and_help(model):
    assert {"attach", "detach", "mixer_of", "inspect", "methods"} <= set(dir(mixwell))
    text = pydoc.render_doc(mixwell.attach)
    for name in mixwell.methods():
        assert f"- `{name}`: " in text, name
    classes = [name for name in dir(mixwell.methods) if name[0].isupper()]
    assert {"Amplify", "TMix", "ManifoldMixup", "SSMix"} <= set(classes)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mixwell.methods.Nothing
    made = mixwell.attach(model, mixwell.methods.Amplify(alpha=0.3))
    assert made.to_dict()["options"]["alpha"] == 0.3
    with pytest.raises(OptionError, match="a method object has its own"):
        mixwell.attach(model, mixwell.methods.Amplify(), alpha=0.3)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("minilm", r"'minilm' is a name.*AutoModelForSequenceClassification.*mixwell\.train"),
        (None, "NoneType is no torch module"),
        ([], "list is no torch module"),
    ],
)
def test_what_is_no_model(what, words):
    with pytest.raises(AttachError, match=words):
        mixwell.attach(what, "amplify")


def test_models_without_a_head():
    import transformers as tf

    with pytest.raises(UnsupportedModelError, match=r"BertModel has no head.*example=batch"):
        mixwell.attach(tf.BertModel(zoo.tiny("bert").config), "amplify")


# --- saved while attached ------------------------------


def test_saved_models_load_without_mixwell(model, batch, tmp_path):
    mixwell.attach(model, "amplify")
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    torch.save(twin, tmp_path / "twin.pt")
    torch.save(batch, tmp_path / "batch.pt")
    with torch.no_grad():
        torch.save(model.eval()(**batch).logits, tmp_path / "logits.pt")
    script = f"""
import sys
class Nothing:
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "mixwell":
            raise ImportError("mixwell is not installed")
sys.meta_path.insert(0, Nothing())
import torch
torch.set_num_threads(1)
load = lambda name: torch.load({str(tmp_path)!r} + "/" + name, weights_only=False)
batch, logits = load("batch.pt"), load("logits.pt")
for name in ("model.pt", "twin.pt"):
    model = load(name).eval()
    seen = []
    model.register_forward_pre_hook(lambda module, args: seen.append(1))  # no flag of ours reaches another hook
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, logits)
    model.train()(**batch).loss.backward()
    assert len(seen) == 2
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)


def test_numbers_of_other_hooks_are_left_alone(model):
    """Ours are of another range: in a saved copy nobody else's hook can get one of them, and with it its flags."""
    mixwell.attach(model, "amplify")
    ours = [number for m in model.modules() for number in (*m._forward_hooks, *m._forward_pre_hooks)]
    assert ours and min(ours) > 1 << 60 and len(set(ours)) == len(ours)
    assert torch.utils.hooks.RemovableHandle.next_id < 1 << 60


def test_loaded_copies_are_clean_when_attached(model, batch):
    mixwell.attach(model, "amplify")
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert mixwell.mixer_of(loaded) is None
    with mixwell.attach(loaded, "amplify"):
        loaded.train()(**batch).loss.backward()
    assert not hooks(loaded)
    assert not any(m._forward_hooks_with_kwargs or m._forward_hooks_always_called for m in loaded.modules())
