"""BatchMixup's Figure 1: two Gaussian classes in the plane, five rows each, and a small network.

The hidden vectors of the ten rows are what BatchMixup mixes, as it does with the sentence vectors of a Transformer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

SHOWN = 3  # draws in the picture: the first ones
GRID = 45
CLOUD = 50  # points of each class in the picture


def compute(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Train both networks on every draw; returns accuracies, and regions for the first draws."""
    import torch

    means, spread = np.array(parameters["means"]), float(parameters["spread"])
    reach = float(np.abs(means).max() + 3 * spread)
    ticks = np.linspace(-reach, reach, GRID)
    plane = torch.tensor(np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2), dtype=torch.float32)
    accuracy: dict[str, list[float]] = {row["label"]: [] for row in parameters["rows"]}
    shown: list[dict[str, Any]] = []
    first = int(parameters["first_draw"])
    for draw in range(first, first + parameters["draws"]):
        rng = np.random.default_rng(draw)
        points = means[:, None] + spread * rng.normal(size=(len(means), parameters["points_per_class"], 2))
        shots = parameters["shots"]
        rows = torch.tensor(points[:, :shots].reshape(-1, 2), dtype=torch.float32)
        rest = torch.tensor(points[:, shots:].reshape(-1, 2), dtype=torch.float32)
        labels = torch.arange(len(means)).repeat_interleave(shots)
        classes = torch.arange(len(means)).repeat_interleave(points.shape[1] - shots)
        entry: dict[str, Any] = {"draw": draw, "regions": {}, "accuracy": {}}
        for row in parameters["rows"]:
            network = train(rows, labels, row, parameters, seed=draw)
            with torch.no_grad():
                right = float((network(rest).argmax(1) == classes).float().mean())
                region = network(plane).softmax(1)[:, 1]
            accuracy[row["label"]].append(round(right, 6))
            entry["accuracy"][row["label"]] = round(right, 6)
            entry["regions"][row["label"]] = [round(float(value), 4) for value in region]
        if draw < first + SHOWN:
            few = [
                point
                for kind in range(len(means))
                for point in torch.nonzero(classes == kind).flatten()[:CLOUD].tolist()
            ]
            entry |= {"rows": np.round(rows.numpy().astype(float), 3).tolist(), "labels": labels.tolist()}
            entry |= {"points": np.round(rest[few].numpy().astype(float), 3).tolist(), "classes": classes[few].tolist()}
            shown.append(entry)
    half = float(np.linalg.norm(means[0] - means[1])) / 2 / spread
    best = 0.5 * (1 + math.erf(half / math.sqrt(2)))
    return {"accuracy": accuracy, "best_possible": best, "grid": np.round(ticks, 4).tolist(), "shown": shown}


def train(rows: Any, labels: Any, row: Mapping[str, Any], parameters: Mapping[str, Any], seed: int) -> Any:
    """Train a network with one hidden layer on all rows at once, with BatchMixup on the hidden vectors or without.

    Args:
        rows: (B, 2).
        labels: (B,).
        row: of the protocol: `method`, and `weights`, `loss_form` and `points` as of the method batchmixup.
        parameters: of the figure.
        seed: of the network and of the mixing.
    """
    import torch
    import torch.nn.functional as F

    from mixwell.core.blend import compose
    from mixwell.core.draw import generator, sample_beta

    width = parameters["hidden"]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU())
        head = torch.nn.Linear(width, len(parameters["means"]))
    network = torch.nn.Sequential(hidden, head)
    optimiser = torch.optim.Adam(network.parameters(), lr=parameters["learning_rate"])
    rng = generator(seed, 1)
    for _ in range(parameters["epochs"]):
        vectors = hidden(rows)
        if row["method"] == "batchmixup":
            wide = 1 if row.get("weights") == "sample" else width
            policy = sample_beta(1.0, (row.get("points", len(rows)), len(rows), wide), rng).float()
            share = torch.softmax(policy, dim=1).expand(-1, -1, width)
            points = compose(share, vectors)
            if row.get("loss_form") == "dot":
                loss = -(points * compose(share, head.weight[labels])).sum(1).mean()
            else:
                logits = head(points)
                wanted = share.mean(2) @ F.one_hot(labels, logits.shape[1]).float()
                loss = -(wanted * logits.log_softmax(1)).sum(1).mean()
        else:
            loss = F.cross_entropy(head(vectors), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network
