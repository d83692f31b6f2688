"""Every sequence classifier that transformers can build from a tiny config: does it resolve, and does it fire?

Run by tests/core/test_architectures.py; `python tests/core/survey.py` prints the table of
docs/reference/architectures.md.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable

import torch
import transformers as tf
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as NAMES

import mixwell
import zoo
from mixwell.core.probe import probe_inputs
from mixwell.utils.errors import MixwellError

# One method for each kind of point.
FIRED = ("embedmix", "amplify", "tmix", "sentencemix")
# Sizes by the names configs use; anything a config does not have is left alone.
SIZES = {
    "vocab_size": 60, "hidden_size": 16, "d_model": 16, "dim": 16, "n_embd": 16, "emb_dim": 16, "embed_dim": 16,
    "n_embed": 16, "word_embed_proj_dim": 16, "embedding_size": 16, "pooler_hidden_size": 16, "hidden_dim": 24,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 2, "n_head": 2, "n_heads": 2, "num_heads": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_key_value_heads": 2, "num_kv_heads": 2,
    "intermediate_size": 24, "ffn_dim": 24, "d_ff": 24, "d_inner": 24, "n_inner": 24, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "ffn_hidden_size": 24, "d_kv": 8, "d_head": 8, "head_dim": 8, "max_position_embeddings": 64,
    "n_positions": 64, "n_ctx": 64, "max_seq_len": 64, "num_labels": 3, "attention_window": 4, "block_size": 2,
    "num_random_blocks": 1,
    "num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2, "moe_intermediate_size": 16,
    "num_experts_per_tok": 1,
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "sliding_window": 8,
    "shared_expert_intermediate_size": 16, "num_buckets": 4, "axial_pos_shape": [8, 8],
    "axial_pos_embds_dim": [8, 8], "num_hidden_groups": 1, "attn_layers": ["local", "lsh"], "lsh_attn_chunk_length": 4,
    "local_attn_chunk_length": 4,
    "conv_kernel_size": 3, "state_size": 4, "expand": 2, "dropout": 0.0, "resid_pdrop": 0.0,
    "hidden_dropout": 0.0, "num_hash_functions": 2, "num_hash_buckets": 50, "num_global_layers": 1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "is_decoder": False,
}  # fmt: skip


# What single model types need besides.
MORE = {
    "gptj": {"rotary_dim": 4},
    "deepseek_v3": {"head_dim": 4, "first_k_dense_replace": 2},
    "axk1": {"head_dim": 4, "first_k_dense_replace": 2},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "roc_bert": {"pronunciation_vocab_size": 60, "shape_vocab_size": 60, "pronunciation_embed_dim": 8,
                 "shape_embed_dim": 8},
    "markuplm": {"max_xpath_tag_unit_embeddings": 20, "max_xpath_subs_unit_embeddings": 20, "max_depth": 4,
                 "xpath_unit_hidden_size": 4, "tag_pad_id": 5, "subs_pad_id": 5},
    "lilt": {"hidden_size": 24, "channel_shrink_ratio": 2},
    "layoutlmv3": {"coordinate_size": 2, "shape_size": 4, "input_size": 32, "patch_size": 16, "visual_embed": False},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"axial_pos_shape": [4, 2]},
}  # fmt: skip


def build(kind: str) -> torch.nn.Module:
    """Build a tiny random classifier of a model type."""
    config_class = tf.models.auto.configuration_auto.CONFIG_MAPPING[kind]
    default = config_class()
    fixed = {name for name in SIZES if getattr(getattr(config_class, name, None), "fset", True) is None}  # properties
    known = {name: value for name, value in SIZES.items() if name not in fixed and hasattr(default, name)}
    known |= MORE.get(kind, {})
    try:
        config = config_class(**known)
    except Exception:  # some check sizes against each other as they are set: then all at once, unchecked
        config = default
        for name, value in known.items():
            setattr(config, name, value)
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    with torch.device("meta"):  # what is not tiny after all must not be allocated
        size = sum(p.numel() for p in tf.AutoModelForSequenceClassification.from_config(config).parameters())
    if size > 2_000_000:
        raise ValueError(f"{size} parameters: this config has sizes of other names")
    torch.manual_seed(0)
    return tf.AutoModelForSequenceClassification.from_config(config)


def survey(kinds: Iterable[str] = NAMES) -> dict[str, tuple[str, str]]:
    """Return model type -> (verdict, detail) of some sequence classifiers.

    Verdicts: `all` every method fits with its defaults; `some` some do, the detail says which not; `error` a documented
    error at attach; `broken` something else; `unbuilt` transformers could not build or run the tiny model, or it was
    too large. What fits was tried: one method for each kind of point makes a step, and changes the logits.
    """
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    result = {}
    for kind in sorted(kinds):
        try:
            model = build(kind)
            batch = {**probe_inputs(model, rows=4), "labels": torch.tensor([0, 1, 2, 1])}
            model.train()(**batch).loss.backward()
        except MixwellError as error:
            result[kind] = ("error", str(error))
            continue
        except Exception as error:  # of any kind: transformers' own
            result[kind] = ("unbuilt", words(error))
            continue
        try:
            found = mixwell.inspect(model)
            for name in FIRED:
                if found.fits(name) != "no":
                    fire(model, batch, name, found.options.get(name, {}))
        except MixwellError as error:
            result[kind] = ("error", str(error))
            continue
        except Exception as error:  # what no user should see
            result[kind] = ("broken", words(error))
            continue
        if all(found.fits(name) == "no" for name in FIRED):
            result[kind] = ("error", "; ".join(dict.fromkeys(found.points.missing.values())))
            continue
        refused = sorted(name for name, why in found.methods.items() if why)
        result[kind] = ("all", found.points.layout) if not refused else ("some", "not " + ", ".join(refused))
    logging.disable(logging.NOTSET)
    return result


def words(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def fire(model: torch.nn.Module, batch: dict, name: str, options: dict) -> None:
    """Make a step, and see that mixing changes the logits."""
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with mixwell.attach(model, name, **options) as mixer, mixer.pin(lam=0.3, permutation=[1, 0, 3, 2]):
        loss = model.train()(**batch).loss
        loss.backward()
        assert bool(loss.isfinite()), f"{name}: the loss is {loss}"
        with torch.no_grad():
            plain = model.eval()(**inputs).logits
            with mixer.pin(in_eval=True):
                assert not torch.equal(model(**inputs).logits, plain), f"{name} changes nothing"


def counted(rows: dict[str, tuple[str, str]]) -> str:
    """The sentence that stands in docs/reference/architectures.md."""
    count = {
        verdict: sum(row[0] == verdict for row in rows.values())
        for verdict in ("all", "some", "error", "broken", "unbuilt")
    }
    broken = f", {count['broken']} fail" if count["broken"] else ""
    return (
        f"of {len(rows)}, {count['all'] + count['some']} resolve and fire, {count['error']} raise the documented "
        f"error{broken}, {count['unbuilt']} cannot be built or run this way"
    )


def support(kinds: Iterable[str] = zoo.KINDS) -> list[str]:
    """Return the table of methods and some of the tested architectures, as lines of Markdown.

    `yes`: with its defaults; `opt`: with the options of `zoo.options`; `no`: attach says why not. Each entry was tried:
    attached, and one mixed step made.
    """
    logging.disable(logging.CRITICAL)
    names = list(mixwell.methods())
    lines = [f"| architecture | {' | '.join(f'`{name}`' for name in names)} |", "|---|" + ":---:|" * len(names)]
    for kind in kinds:
        entries = []
        for name in names:
            model, options = zoo.tiny(kind), zoo.options(kind, name)
            try:
                with mixwell.attach(model, name, **options):
                    model.train()(**zoo.batch(kind)).loss.backward()
                entries.append("opt" if options else "yes")
            except MixwellError:
                entries.append("no")
        lines.append(f"| {kind} | {' | '.join(entries)} |")
    logging.disable(logging.NOTSET)
    return lines


if __name__ == "__main__":
    print("\n".join(support()), end="\n\n")
    rows = survey()
    for kind, (verdict, detail) in rows.items():
        print(f"{kind:<28} {verdict:<8} {detail[:150]}")
    print(counted(rows))
