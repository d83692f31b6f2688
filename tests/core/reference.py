"""A slow, plain reference for every method, written from the specification alone (never from ``mixwell``).

It covers ``BertForSequenceClassification`` without dropout. Every sum is written out over the model's own
parameters, row by row where that is plainer; no module of the model is ever *called*, so hooks that a mixer
has put on the model do not fire here. Everything is differentiable with respect to the model's parameters.

Words used throughout: ``perm[i]`` is the partner of row i, ``lam`` the weight of a row's own part, ``real``
the attention mask of the batch as booleans, L the number of blocks, B rows, T positions, d features. A row is
*active* when its partner is another row and its weight is not 1 everywhere; union masks and fills touch only
active rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = Mapping[str, Tensor]
Change = Callable[[str, int, Tensor], Tensor]  # (point, block, value) -> value that replaces it
Span = tuple[int, int, int]  # first position in the row, first position in its partner, length


@dataclass
class Result:
    """What one forward gives; ``mask`` is the attention mask that was really used, after union or fill."""

    hidden_states: list[Tensor]  # embeddings and each block's output, after mixing: L + 1 tensors (B, T, d)
    sentence: Tensor  # input of the final Linear, after mixing: (B, d), or (n, d) for batchmixup
    logits: Tensor
    loss: Tensor  # one value
    label_weight: Tensor  # one value, (B,), or (n, B) for batchmixup
    mask: Tensor  # (B, T) booleans


# --- the model, by hand -----------------------------------------------------------------------------------


def _linear(module: nn.Module, x: Tensor) -> Tensor:
    """Compute x W^T + b."""
    return x @ module.weight.T + module.bias


def _layer_norm(module: nn.Module, x: Tensor) -> Tensor:
    """Compute (x - mean) / sqrt(variance + eps) * gain + bias over the features, with the biased variance."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + module.eps) * module.weight + module.bias


def _activation(model: nn.Module, x: Tensor) -> Tensor:
    """Compute the exact GELU, x * Phi(x)."""
    if model.config.hidden_act != "gelu":
        raise NotImplementedError(f"only gelu, not {model.config.hidden_act}")
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _lookup(module: nn.Embedding, ids: Tensor) -> Tensor:
    """Look rows up; as in nn.Embedding the row ``padding_idx`` gets no gradient (padding may be mixed in)."""
    return F.embedding(ids, module.weight, padding_idx=module.padding_idx)


def _embed(model: nn.Module, ids: Tensor, types: Tensor) -> Tensor:
    """Compute LayerNorm(word + segment + position)."""
    parts = model.bert.embeddings
    positions = torch.arange(ids.shape[1])
    total = _lookup(parts.word_embeddings, ids) + _lookup(parts.token_type_embeddings, types)
    return _layer_norm(parts.LayerNorm, total + _lookup(parts.position_embeddings, positions))


def _self_attention(block: nn.Module, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute softmax(q k^T / sqrt(d_head)) v per row and head: (B, T, d), and the softmax (B, H, T, T)."""
    part = block.attention.self
    size, heads = part.attention_head_size, part.num_attention_heads
    q, k, v = _linear(part.query, x), _linear(part.key, x), _linear(part.value, x)
    contexts, probabilities = [], []
    for row in range(x.shape[0]):
        context, probability = [], []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            scores = q[row, :, own] @ k[row, :, own].T / math.sqrt(size)
            scores = scores.masked_fill(~mask[row], -math.inf)  # a masked key is seen by no query
            exps = torch.exp(scores - scores.detach().max(dim=-1, keepdim=True).values)
            probability.append(exps / exps.sum(dim=-1, keepdim=True))
            context.append(probability[-1] @ v[row, :, own])
        contexts.append(torch.cat(context, dim=-1))
        probabilities.append(torch.stack(probability))
    return torch.stack(contexts), torch.stack(probabilities)


def _block(model: nn.Module, index: int, x: Tensor, mask: Tensor, change: Change) -> Tensor:
    """Run one post-norm block: attention, projection, add & norm, feed-forward, add & norm."""
    block = model.bert.encoder.layer[index]
    context, _ = _self_attention(block, x, mask)
    raw = change("attention_raw", index, _linear(block.attention.output.dense, context))
    stream = change("attention", index, _layer_norm(block.attention.output.LayerNorm, raw + x))
    inner = _activation(model, _linear(block.intermediate.dense, stream))
    output = _layer_norm(block.output.LayerNorm, _linear(block.output.dense, inner) + stream)
    return change("block", index, output)


def _unchanged(point: str, index: int, x: Tensor) -> Tensor:
    """Mix nowhere."""
    return x


def _forward(
    model: nn.Module, ids: Tensor, types: Tensor, mask: Tensor, change: Change = _unchanged
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Run embeddings, blocks, tanh pooler of token 0, classifier: hidden states, sentence, logits."""
    hidden = [change("embeddings", 0, _embed(model, ids, types))]
    for index in range(len(model.bert.encoder.layer)):
        hidden.append(_block(model, index, hidden[-1], mask, change))
    sentence = change("sentence", 0, torch.tanh(_linear(model.bert.pooler.dense, hidden[-1][:, 0])))
    return hidden, sentence, _linear(model.classifier, sentence)


# --- the loss ---------------------------------------------------------------------------------------------


def _problem_type(model: nn.Module, labels: Tensor) -> str:
    """Infer the problem type as BertForSequenceClassification does, leaving the configuration alone."""
    if model.config.problem_type is not None:
        return model.config.problem_type
    if model.config.num_labels == 1:
        return "regression"
    integers = labels.dtype in (torch.long, torch.int)
    return "single_label_classification" if integers else "multi_label_classification"


def row_losses(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute l(logits, y) of each row: cross entropy, mean BCE over labels, or mean squared error."""
    kind = _problem_type(model, labels)
    if kind == "single_label_classification":
        chosen = labels.reshape(-1)
        return torch.stack([torch.logsumexp(z, dim=0) - z[int(y)] for z, y in zip(logits, chosen)])
    targets = labels.reshape(logits.shape).to(logits.dtype)
    if kind == "multi_label_classification":
        return (F.softplus(logits) - targets * logits).mean(dim=1)  # -y log s(z) - (1 - y) log(1 - s(z))
    return ((logits - targets) ** 2).mean(dim=1)


def mixed_loss(model: nn.Module, logits: Tensor, labels: Tensor, perm: Iterable[int], weight: Tensor) -> Tensor:
    """Compute mean over rows of w l(logits, y) + (1 - w) l(logits, y[perm]) (AMPLIFY eq. 8)."""
    own = row_losses(model, logits, labels)
    partner = row_losses(model, logits, labels[torch.tensor(_partners(perm))])
    return (weight * own + (1 - weight) * partner).mean()


# --- mixing -----------------------------------------------------------------------------------------------


def _partners(perm: Iterable[int]) -> list[int]:
    """Return the permutation as a list of integers."""
    partners = [int(p) for p in perm]
    if sorted(partners) != list(range(len(partners))):
        raise ValueError(f"not a permutation: {partners}")
    return partners


def _inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and the attention mask as booleans."""
    ids = batch["input_ids"]
    types, mask = batch.get("token_type_ids"), batch.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
    return ids, torch.zeros_like(ids) if types is None else types, real


def _weight(model: nn.Module, lam: float | Tensor) -> Tensor:
    """Return lam as a tensor of one value or of B values, in the model's precision."""
    weight = torch.as_tensor(lam, dtype=model.classifier.weight.dtype).detach()
    return weight.reshape(()) if weight.numel() == 1 else weight


def _active(weights: Tensor, perm: Sequence[int]) -> list[bool]:
    """Tell for each row whether another row is mixed into it at all."""
    return [partner != row and not bool((weights[row] == 1).all()) for row, partner in enumerate(perm)]


def _mix(x: Tensor, weights: Tensor, perm: Sequence[int], where: Tensor | None = None) -> Tensor:
    """Compute w x + (1 - w) x[perm] per row, at positions ``where`` only; weights[i] spreads over row i."""
    rows = []
    for row, (partner, active) in enumerate(zip(perm, _active(weights, perm))):
        mixed = weights[row] * x[row] + (1 - weights[row]) * x[partner] if active else x[row]
        rows.append(mixed if where is None else torch.where(where[row][:, None], mixed, x[row]))
    return torch.stack(rows)


def _union(real: Tensor, weights: Tensor, perm: Sequence[int]) -> Tensor:
    """Return the mask own-or-partner's for active rows, the own mask for the others."""
    active = _active(weights, perm)
    return torch.stack([real[i] | real[p] if active[i] else real[i] for i, p in enumerate(perm)])


def _at(point: str, blocks: Iterable[int], mix: Callable[[Tensor], Tensor]) -> Change:
    """Return the change that applies ``mix`` at one kind of point in the given blocks."""
    chosen = set(blocks)
    return lambda name, index, x: mix(x) if name == point and index in chosen else x


def _finish(
    model: nn.Module,
    batch: Batch,
    inputs: tuple[Tensor, Tensor, Tensor],
    change: Change,
    perm: Sequence[int],
    weight: Tensor,
) -> Result:
    """Run the changed forward on (ids, segments, mask) and take the two-term loss with ``weight``."""
    ids, types, mask = inputs
    hidden, sentence, logits = _forward(model, ids, types, mask, change)
    loss = mixed_loss(model, logits, batch["labels"], perm, weight)
    return Result(hidden, sentence, logits, loss, weight, mask)


# --- the methods ------------------------------------------------------------------------------------------


def plain(model: nn.Module, batch: Batch) -> Result:
    """Compute the untouched model: mean over rows of l(logits, y)."""
    ids, types, real = _inputs(batch)
    hidden, sentence, logits = _forward(model, ids, types, real)
    loss = row_losses(model, logits, batch["labels"]).mean()
    return Result(hidden, sentence, logits, loss, _weight(model, 1.0), real)


def amplify(
    model: nn.Module,
    batch: Batch,
    *,
    lam: float | Tensor,
    perm: Iterable[int],
    layers: Sequence[int] | None = None,
    site: str = "attention",
    padding: str = "mix",
    consistent: bool = False,
) -> Result:
    """Mix the attention stream of every chosen block; consistent: (1 + (2 lam - 1)^(1/K)) / 2 per block."""
    if site not in ("attention", "attention_raw") or padding not in ("mix", "keep"):
        raise ValueError(f"site {site!r}, padding {padding!r}")
    if consistent and site != "attention":
        raise ValueError("consistent=True needs site='attention': the residual is not mixed otherwise")
    ids, types, real = _inputs(batch)
    partners, weight = _partners(perm), _weight(model, lam)
    depth = len(model.bert.encoder.layer)
    blocks = range(depth) if layers is None else [range(depth)[index] for index in layers]
    per_block = weight
    if consistent:
        weight = torch.maximum(weight, 1 - weight)
        per_block = (1 + (2 * weight - 1) ** (1 / len(set(blocks)))) / 2
    per_block = per_block.expand(len(ids))
    where = real[partners] if padding == "keep" else None  # keep: own value where the partner is padding
    change = _at(site, blocks, lambda x: _mix(x, per_block, partners, where))
    return _finish(model, batch, (ids, types, real), change, partners, weight)


def embedmix(model: nn.Module, batch: Batch, *, lam: float | Tensor, perm: Iterable[int]) -> Result:
    """Mix the embedding output (after its LayerNorm); mask = own or partner's."""
    ids, types, real = _inputs(batch)
    partners, weight = _partners(perm), _weight(model, lam)
    rows = weight.expand(len(ids))
    change = _at("embeddings", [0], lambda x: _mix(x, rows, partners))
    return _finish(model, batch, (ids, types, _union(real, rows, partners)), change, partners, weight)


def sentencemix(model: nn.Module, batch: Batch, *, lam: float | Tensor, perm: Iterable[int]) -> Result:
    """Mix the sentence vector, the input of the classifier; also the method ``cls``."""
    partners, weight = _partners(perm), _weight(model, lam)
    rows = weight.expand(len(partners))
    change = _at("sentence", [0], lambda x: _mix(x, rows, partners))
    return _finish(model, batch, _inputs(batch), change, partners, weight)


def tmix(model: nn.Module, batch: Batch, *, lam: float | Tensor, perm: Iterable[int], layer: int) -> Result:
    """Mix the output of block ``layer`` (counted from 0); own mask before and after."""
    partners, weight = _partners(perm), _weight(model, lam)
    rows = weight.expand(len(partners))
    change = _at("block", [range(len(model.bert.encoder.layer))[layer]], lambda x: _mix(x, rows, partners))
    return _finish(model, batch, _inputs(batch), change, partners, weight)


def _filled(
    inputs: tuple[Tensor, Tensor, Tensor],
    rows: Tensor,
    perm: Sequence[int],
    extent: str,
    fill_id: int | None,
    partner_fill: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fill padding with the fill token (NLU paper 3.5.2, App. B): ids, segments and the attended mask.

    Row i attends up to max(length i, length perm[i]) ("pair") or everything ("max"). Unless perm is its own
    inverse a row takes part in two pairs, its own (i, perm[i]) and one as the partner of another row, and
    these may reach differently far. ``partner_fill="pair"``: the row is embedded with the fill as far as
    either of its pairs reaches, so whatever is mixed into an attended position is a real or a fill token, as
    in the paper's equation for one pair. ``"row"``: it is filled only as far as its own pair reaches and
    another row takes whatever it has there, beyond that the plain padding. Attended is, in both, only the
    row's own pair.
    """
    ids, types, mask = (part.clone() for part in inputs)
    lengths = [int(row.sum()) for row in mask]
    if any(not bool(row[:length].all()) for row, length in zip(mask, lengths)):
        raise ValueError("the fill needs padding on the right")
    active = _active(rows, perm)
    attended = list(lengths)
    for row, partner in enumerate(perm):
        if active[row]:
            attended[row] = ids.shape[1] if extent == "max" else max(lengths[row], lengths[partner])
    embedded = list(attended)
    for row, partner in enumerate(perm):
        if active[row] and partner_fill == "pair":
            embedded[partner] = max(embedded[partner], attended[row])
    for row, length in enumerate(lengths):
        last = length - 1
        ids[row, length : embedded[row]] = ids[row, last] if fill_id is None else fill_id
        types[row, length : embedded[row]] = types[row, last].clone()
        mask[row, : attended[row]] = True
    return ids, types, mask


def _filled_mix(
    model: nn.Module,
    batch: Batch,
    lam: float | Tensor,
    perm: Iterable[int],
    padding: str,
    extent: str,
    fill_id: int | None,
    partner_fill: str,
    place: tuple[str, int],
) -> Result:
    """Mix at one place, the sequences filled from the start; with "none" only where both rows are real."""
    if padding not in ("sep", "unused", "pad", "none") or extent not in ("pair", "max"):
        raise ValueError(f"padding {padding!r}, extent {extent!r}")
    if partner_fill not in ("pair", "row"):
        raise ValueError(f"partner_fill {partner_fill!r}")
    if fill_id is None and padding in ("unused", "pad"):
        raise ValueError(f"padding={padding!r} needs fill_id; only 'sep' can take the row's last real token")
    partners, weight = _partners(perm), _weight(model, lam)
    inputs = _inputs(batch)
    rows = weight.expand(len(partners))
    where = None
    if padding == "none":
        where = inputs[2] & inputs[2][partners]
    else:
        inputs = _filled(inputs, rows, partners, extent, fill_id, partner_fill)
    change = _at(place[0], [place[1]], lambda x: _mix(x, rows, partners, where))
    return _finish(model, batch, inputs, change, partners, weight)


def input_mixup(
    model: nn.Module,
    batch: Batch,
    *,
    lam: float | Tensor,
    perm: Iterable[int],
    padding: str = "sep",
    extent: str = "pair",
    fill_id: int | None = None,
    partner_fill: str = "pair",
) -> Result:
    """Mix the embedding output of filled sequences (NLU paper eq. 4); mask = own or partner's."""
    place = ("embeddings", 0)
    return _filled_mix(model, batch, lam, perm, padding, extent, fill_id, partner_fill, place)


def manifold(
    model: nn.Module,
    batch: Batch,
    *,
    lam: float | Tensor,
    perm: Iterable[int],
    point: int,
    padding: str = "sep",
    extent: str = "pair",
    fill_id: int | None = None,
    partner_fill: str | None = None,
) -> Result:
    """Mix at point 0 (as input_mixup), 1..L (after that many blocks, filled throughout), L + 1 (sentence).

    ``partner_fill`` (see _filled) is by default "pair" at point 0, where it is the paper's equation, and
    "row" at the points 1..L: each row i, filled to max(length i, length perm[i]), runs as its own sequence,
    and position t takes whatever the partner's row has there.
    """
    depth = len(model.bert.encoder.layer)
    if point not in range(depth + 2):
        raise ValueError(f"point {point} is not in 0..{depth + 1}")
    if point == depth + 1:
        return sentencemix(model, batch, lam=lam, perm=perm)
    place = ("embeddings", 0) if point == 0 else ("block", point - 1)
    rule = partner_fill or ("pair" if point == 0 else "row")
    return _filled_mix(model, batch, lam, perm, padding, extent, fill_id, rule, place)


def relevance(model: nn.Module, batch: Batch, *, block: int = 0, head: int | None = None) -> Tensor:
    """Compute r[j] = mean over real queries i of a[h, i, j], of one head or the mean of all, 0 on padding."""
    ids, types, real = _inputs(batch)
    with torch.no_grad():
        hidden, _, _ = _forward(model, ids, types, real)
        _, attention = _self_attention(model.bert.encoder.layer[block], hidden[block], real)
    rows = []
    for row in range(len(ids)):
        one = attention[row].mean(dim=0) if head is None else attention[row, head]
        rows.append(torch.where(real[row], one[real[row]].mean(dim=0), 0.0))
    return torch.stack(rows)


def attentionmix(
    model: nn.Module,
    batch: Batch,
    *,
    perm: Iterable[int],
    block: int = 0,
    head: int | None = None,
    after: int | None = None,
) -> Result:
    """Mix embeddings or a block by r / (r + r[perm]), 1 where both are 0; w = mean over positions real in either."""
    ids, types, real = _inputs(batch)
    partners = _partners(perm)
    score = relevance(model, batch, block=block, head=head)
    ratio, weight = torch.ones_like(score), score.new_ones(len(ids))
    for row, partner in enumerate(partners):
        if partner == row:
            continue  # plain: ratio and label weight 1
        total = score[row] + score[partner]
        ratio[row] = torch.where(total > 0, score[row] / torch.where(total > 0, total, 1.0), 1.0)
        weight[row] = ratio[row][real[row] | real[partner]].mean()
    tokens = ratio[:, :, None]
    place = ("embeddings", 0) if after is None else ("block", after)
    change = _at(place[0], [place[1]], lambda x: _mix(x, tokens, partners))
    return _finish(model, batch, (ids, types, _union(real, tokens, partners)), change, partners, weight)


def batchmixup(
    model: nn.Module,
    batch: Batch,
    *,
    policy: Tensor,
    weights: str = "element",
    loss: str = "cross_entropy",
    temperature: float = 1.0,
) -> Result:
    """Compute x_i = sum_j softmax_j(M[i] / temperature) X_j (BatchMixup eq. 3, 4); one row trains plain."""
    if weights not in ("element", "sample") or loss not in ("cross_entropy", "dot"):
        raise ValueError(f"weights {weights!r}, loss {loss!r}")
    ids, types, real = _inputs(batch)
    labels, rows = batch["labels"], len(ids)
    if rows == 1:
        return plain(model, batch)
    hidden, original, _ = _forward(model, ids, types, real)
    draws = policy if weights == "element" else policy[:, :, None]  # (n, B, d) or (n, B, 1)
    exps = torch.exp(draws.to(original.dtype) / temperature)
    share = exps / exps.sum(dim=1, keepdim=True)
    label_weight = share.mean(dim=2)  # (n, B)
    points = range(len(policy))
    sentence = torch.stack([sum(share[i, j] * original[j] for j in range(rows)) for i in points])
    logits = _linear(model.classifier, sentence)
    terms = []
    for i in points:
        if loss == "dot":  # -x_i . y_i with y_i mixed from the head's rows (eq. 4)
            if _problem_type(model, labels) != "single_label_classification":
                raise ValueError("the dot loss needs one class a row")
            label = sum(share[i, j] * model.classifier.weight[int(labels[j])] for j in range(rows))
            terms.append(-(sentence[i] * label).sum())
        else:
            losses = torch.cat([row_losses(model, logits[i : i + 1], labels[j : j + 1]) for j in range(rows)])
            terms.append((label_weight[i] * losses).sum())
    return Result(hidden, sentence, logits, torch.stack(terms).mean(), label_weight, real)


def nonlinear(model: nn.Module, batch: Batch, *, gate: Tensor, perm: Iterable[int], point: str = "sentence") -> Result:
    """Compute G x + (1 - G) x[perm]; w = mean of G over features (and positions real in either row)."""
    if point not in ("sentence", "embeddings"):
        raise ValueError(f"point {point!r}")
    ids, types, real = _inputs(batch)
    partners, gate = _partners(perm), gate.to(model.classifier.weight.dtype)
    weight = gate.new_ones(len(ids))
    for row, partner in enumerate(partners):
        if partner == row:
            continue  # plain: label weight 1
        weight[row] = (gate[row] if point == "sentence" else gate[row][real[row] | real[partner]]).mean()
    mask = real if point == "sentence" else _union(real, gate, partners)
    change = _at(point, [0], lambda x: _mix(x, gate, partners))
    return _finish(model, batch, (ids, types, mask), change, partners, weight)


def saliency(model: nn.Module, batch: Batch) -> Tensor:
    """Compute the RMS over features of d loss / d (embedding output), divided by the row's largest."""
    ids, types, real = _inputs(batch)
    with torch.enable_grad():
        leaf = _embed(model, ids, types).detach().requires_grad_(True)
        _, _, logits = _forward(model, ids, types, real, _at("embeddings", [0], lambda _: leaf))
        loss = row_losses(model, logits, batch["labels"]).mean()
        (gradient,) = torch.autograd.grad(loss, leaf)
    size = (gradient**2).mean(dim=2).sqrt()
    largest = size.max(dim=1, keepdim=True).values
    return size / torch.where(largest > 0, largest, 1.0)


def _content(ids: Tensor, types: Tensor, real: Tensor, segment: int, special: set[int]) -> list[int]:
    """Return the positions of a row's content tokens: real, in the segment, not special."""
    return [t for t in range(len(ids)) if real[t] and int(types[t]) == segment and int(ids[t]) not in special]


def _starts(content: list[int], length: int) -> list[int]:
    """Return where a span of neighbouring content tokens can start, lowest first."""
    inside = set(content)
    return [t for t in content if all(t + k in inside for k in range(length))]


def ssmix(
    model: nn.Module, batch: Batch, *, perm: Iterable[int], special_ids: Iterable[int], fraction: float = 0.1
) -> tuple[Tensor, Tensor, list[list[Span | None]]]:
    """Replace the least salient span of A by B's most salient: ids, w = 1 - span / len A, spans[row][k].

    Segment k by segment k, w averaged by their lengths in A. A span is None where a segment is untouched: no
    content in A's or B's, its own partner, or no run of neighbouring content tokens is long enough.
    The first of equally salient spans wins.
    """
    ids, types, real = _inputs(batch)
    special, scores = set(special_ids), saliency(model, batch).tolist()
    mixed, spans, weights = ids.clone(), [], []
    for row, partner in enumerate(_partners(perm)):
        row_spans: list[Span | None] = []
        total = 0
        for segment in range(int(types.max()) + 1):
            a = _content(ids[row], types[row], real[row], segment, special)
            b = _content(ids[partner], types[partner], real[partner], segment, special)
            total += len(a)
            length = max(min(int(fraction * len(a)), len(b)), 1)
            starts_a, starts_b = _starts(a, length), _starts(b, length)
            if partner == row or not starts_a or not starts_b:
                row_spans.append(None)
                continue
            sums_a = [sum(scores[row][t : t + length]) for t in starts_a]
            sums_b = [sum(scores[partner][t : t + length]) for t in starts_b]
            start_a, start_b = starts_a[sums_a.index(min(sums_a))], starts_b[sums_b.index(max(sums_b))]
            mixed[row, start_a : start_a + length] = ids[partner, start_b : start_b + length]
            row_spans.append((start_a, start_b, length))
        replaced = sum(span[2] for span in row_spans if span is not None)
        weights.append(1 - replaced / total if total else 1.0)
        spans.append(row_spans)
    return mixed, _weight(model, torch.tensor(weights, dtype=torch.float64)).reshape(-1), spans


def ssmix_result(
    model: nn.Module, batch: Batch, *, perm: Iterable[int], special_ids: Iterable[int], fraction: float = 0.1
) -> Result:
    """Run the plain forward on the ids of ssmix with its two-term loss."""
    partners = _partners(perm)
    ids, weight, _ = ssmix(model, batch, perm=partners, special_ids=special_ids, fraction=fraction)
    _, types, real = _inputs(batch)
    return _finish(model, batch, (ids, types, real), _unchanged, partners, weight)
