"""What methods are called in texts for people: on pages, in tables and in sentences."""

from __future__ import annotations

import re

# Methods whose name is not simply written as it is typed.
TITLES = {
    "none": "plain",
    "none + temperature": "plain + temperature",
    "amplify": "AMPLIFY",
    "attentionmix": "AttentionMix",
    "batchmixup": "BatchMixup",
    "cmixup": "C-Mixup",
    "cls": "CLS MixUp",
    "contrastive": "contrastive probe",
    "eda": "EDA",
    "embedmix": "EmbedMix",
    "input": "Input MixUp",
    "manifold": "Manifold MixUp",
    "mit": "MIT",
    "nfm": "Noisy Feature Mixup",
    "nonlinear": "Nonlinear MixUp",
    "regmixup": "RegMixup",
    "remix": "Remix",
    "sentencemix": "SentenceMix",
    "ssmix": "SSMix",
    "tfidf": "TF-IDF",
    "tmix": "TMix",
}
_LABEL = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)


def method_title(label: str) -> str:
    """The readable name of a method with its options.

    `amplify[consistent=true]` is "AMPLIFY, consistent", `none[label_smoothing=0.1]` is "label smoothing 0.1". A label
    of any other form stays as it is.

    Args:
        label: as in the records: a method's name, with the options that are not its defaults in brackets.
    """
    match = _LABEL.fullmatch(label)
    if match is None:
        return TITLES.get(label, label)
    name, given = match.groups()
    options = [_option(text) for text in re.split(r",(?=\w+=)", given)]
    # Plain training with an option is named by the option.
    return ", ".join(options if name == "none" else [TITLES.get(name, name), *options])


def _option(text: str) -> str:
    """`alpha=0.5` as "alpha 0.5"; a switch by its name alone."""
    name, _, value = text.partition("=")
    words = name.replace("_", " ")
    if value in ("true", "false"):
        return words if value == "true" else f"not {words}"
    value = value[1:-1].replace(",", ", ") if value.startswith("[") and value.endswith("]") else value
    return f"{words} {value}"
