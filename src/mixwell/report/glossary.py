"""What the words on the pages mean: terms of measurement, and each method in one line with its cost and its use."""

from __future__ import annotations

from dataclasses import dataclass

from mixwell.utils.titles import method_title

# By the word as it stands in a head of a column.
TERMS = {
    "accuracy": "Share of the test rows whose predicted class is right. Higher is better.",
    "AURC": "Area under the risk-coverage curve: the mean share of mistakes when only the surest rows are answered, "
    "averaged over all shares that can be answered. Lower is better, and no temperature can improve it.",
    "excess AURC": "AURC minus that of a perfect order of the same mistakes: how badly confidence ranks them.",
    "error AUROC": "Probability that a right answer has a higher confidence than a wrong one. Higher is better.",
    "NLL": "Negative log-likelihood: the mean of -log of the probability given to the true class. It punishes "
    "confident mistakes. Lower is better.",
    "ECE": "Expected calibration error: the mean gap between confidence and the share that is right, in points. "
    "0 means that 80 % confidence is right 80 % of the time.",
    "T": "Temperature: one number that divides the logits, fitted on validation rows. It changes how confident a model "
    "is, and not what it predicts.",
    "micro-F1": "F1 over all labels of all rows together. Higher is better.",
    "MSE": "Mean squared error. Lower is better.",
    "MAE": "Mean absolute error. Lower is better.",
    "OOD AUROC": "How well confidence tells rows of the data from foreign texts. 0.5 is a coin toss.",
    "OOD accepted": "Share of foreign texts that pass at the confidence which 95 % of the test rows reach.",
    "s/step": "Seconds of one update, as timed during these runs.",
    "difference": "To plain training, over the seeds and test rows that both have, with its interval.",
    "verdict": "Better or worse than plain training, or practically equal to it, adjusted for the number of methods "
    "and for looks at fewer seeds; otherwise no significant difference.",
}


@dataclass(frozen=True)
class MethodNote:
    """A method for people who choose one.

    Attributes:
        blends: what is blended, and where.
        cost: of a training step, against a plain one.
        use: when to choose it.
        ignores_lam: whether the lam that a user pins has no effect on it.
    """

    blends: str
    cost: str
    use: str
    ignores_lam: bool = False


_FREE = "about that of a plain step"
METHODS = {
    "none": MethodNote("Nothing is blended: ordinary fine-tuning.", _FREE, "the baseline; try it first", True),
    "amplify": MethodNote(
        "After attention, in every block, a text keeps lam of itself and takes the rest from its partner; the shares "
        "compound from block to block.", _FREE, "a mild regulariser for small data; consistent=True mixes more"),
    "attentionmix": MethodNote(
        "Embeddings are blended token by token: the more attention a token gets in an early block, the more of it "
        "stays. The shares come from attention, so lam plays no part.",
        "a plain step and the beginning of another forward", "as EmbedMix, with more weight on words that matter",
        True),
    "batchmixup": MethodNote(
        "New sentence vectors are woven from all rows of the batch, with weights of their own for every feature.",
        _FREE, "experiments: the new points lie close to the mean of the batch", True),
    "cls": MethodNote(
        "Sentence vectors are blended once, right before the last linear layer; lam may be anything from 0 to 1.",
        _FREE, "strong mixing for every task, pairs included"),
    "embedmix": MethodNote(
        "The embeddings of two texts are blended once, below the first block.", _FREE,
        "topics and intents; not where word order decides"),
    "input": MethodNote(
        "Embeddings are blended below the first block; the shorter text is filled up with separators first.",
        _FREE, "topics and intents with few rows; texts of different length"),
    "manifold": MethodNote(
        "One place is drawn at each step (embeddings, the output of a block, or the sentence vector) and blended "
        "there only.", _FREE, "few rows and content-based tasks"),
    "cmixup": MethodNote(
        "Sentence vectors are blended with those of texts whose label is near.", _FREE,
        "scores and ratings: a label halfway between two far ones means little"),
    "eda": MethodNote(
        "Nothing is blended: some words of every text are deleted, swapped or replaced, and its label stays.", _FREE,
        "asking whether mixing beats plain text augmentation", ignores_lam=True),
    "mit": MethodNote(
        "Word vectors are blended as in Input MixUp; the outputs are taken apart again and compared with a text's own "
        "label.", _FREE, "probabilities that a temperature is fitted to afterwards"),
    "nfm": MethodNote(
        "As Manifold MixUp, with noise on what is blended.", _FREE, "robustness to small changes of the text"),
    "regmixup": MethodNote(
        "Every batch is seen twice: as it is, and with its word vectors blended about half and half.",
        "about twice a plain step", "plain accuracy with less confidence far from the data"),
    "remix": MethodNote(
        "As Input MixUp, but the label goes to the much rarer class of the two.", _FREE,
        "classes of very different sizes"),
    "nonlinear": MethodNote(
        "Sentence vectors are blended with a random weight of its own for every feature.", _FREE,
        "experiments: half of each label goes to the partner"),
    "sentencemix": MethodNote(
        "Sentence vectors are blended once, right before the last linear layer; a text keeps the larger share.",
        _FREE, "every task, pairs included: the text was read before it is mixed"),
    "ssmix": MethodNote(
        "Nothing inside is blended: the least important span of a text is replaced by its partner's most important "
        "span.", "about 1.5 times a plain step", "mixed inputs that stay texts; needs labels before the forward"),
    "tmix": MethodNote(
        "The output of one block in the upper half, drawn at each step, is blended; later blocks see only the blend.",
        _FREE, "mixing after syntax was read, in the upper blocks"),
    "none + temperature": MethodNote(
        "Plain training whose confidence is corrected by one number afterwards; the same decisions.", _FREE,
        "when only the probabilities are off", True),
    "probe": MethodNote(
        "Logistic regression on the frozen features of the model; nothing is fine-tuned.", "seconds in all",
        "very few rows, or no time", True),
    "auto": MethodNote(
        "Tries plain training, label smoothing and two ways to mix on folds of the training rows, and trains by the "
        "one that is better beyond chance, else plainly.", "up to 9 times that of plain training",
        "which one?, without looking at test rows", True),
    "contrastive": MethodNote(
        "Logistic regression on features that were tuned by pairs of texts.", "by the number of pairs",
        "a handful of rows per class", True),
    "tfidf": MethodNote(
        "Logistic regression on TF-IDF words and word pairs; no Transformer at all.", "seconds in all",
        "to see what words alone can do", True),
    "guessing": MethodNote("Always the most frequent class.", "nothing", "the floor that anything must beat", True),
}  # fmt: skip


def method_note(label: str) -> MethodNote | None:
    """What is known of a method by its label, options included; None for methods of other packages."""
    name = label.split("[")[0]
    if name == "none" and label.startswith("none[label_smoothing="):
        words = "Plain training in which every label gives away a little to all other classes; nothing is blended."
        return MethodNote(words, _FREE, "the cheapest cure for over-confidence", True)
    return METHODS.get(name)


def term(head: str) -> str:
    """The definition of a head of a column, such as `NLL after T` or `ECE %`; empty without one."""
    words = head.removesuffix(" %").strip()
    base = words.removesuffix(" after T").strip()
    meaning = TERMS.get(base, "")
    return f"{meaning} After the temperature T was applied." if meaning and base != words else meaning


def terms_for(heads: list[str]) -> list[tuple[str, str]]:
    """The definitions that some heads of columns need, each once."""
    words = dict.fromkeys(head.removesuffix(" %").removesuffix(" after T").strip() for head in heads)
    names = [*words, *(["T"] if any("after T" in head for head in heads) else [])]
    return [(name, TERMS[name]) for name in names if name in TERMS]


def methods_for(labels: list[str]) -> list[dict[str, str]]:
    """The methods of a page with what they blend; those that nothing is known of are left out."""
    notes = [(label, method_note(label)) for label in labels]
    return [{"name": method_title(label), "words": note.blends, "id": anchor(label)} for label, note in notes if note]


def anchor(label: str) -> str:
    """The id of a method's definition in a page; empty without one."""
    return "about-" + "".join(sign if sign.isalnum() else "-" for sign in label) if method_note(label) else ""
