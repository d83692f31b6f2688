"""Two processes on the loopback: ranks draw differently, gradients average, runs resume, shards change nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mixwell
import parts
import zoo
from mixwell.utils.errors import AttachError

PINNED = ["manifold", "ssmix", "attentionmix", "amplify"]  # whose draws a pin repeats
MORE_DRAWS = ["nfm", "eda"] if parts.ALL else []  # noise and tokens
PINNED += ["regmixup", "mit", "remix"] if parts.ALL else []
METHODS = PINNED + MORE_DRAWS
STEPS = 3


def build():
    return zoo.sharpen(zoo.tiny("bert", dropout=0.1)).train()


def own_rows(rank: int) -> dict:
    return {key: value[4 * rank : 4 * rank + 4] for key, value in zoo.batch(rows=8).items()}


def described(plan) -> tuple:
    return plan.seed, plan.lam, plan.layer, plan.permutation.tolist()


def steps(model, call, mixer, batch, count, optimiser) -> tuple[list, dict]:
    """Train; return the draws and the gradients of the last step."""
    draws, gradients = [], {}
    for _ in range(count):
        optimiser.zero_grad()
        call(**batch).loss.backward()
        gradients = zoo.gradients(model)
        optimiser.step()
        draws.append(described(mixer.last))
    return draws, gradients


def sharded(name: str, batch: dict) -> dict:
    """The same steps with FSDP: the draws and the whole weights at the end."""
    model = build()
    mixer = mixwell.attach(model, name, **zoo.strong(name))
    for block in model.bert.encoder.layer:
        fully_shard(block, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5)
    draws, _ = steps(model, model, mixer, batch, STEPS, optimiser)
    mixer.detach()
    with pytest.raises(AttachError, match="sharded already; attach first"):
        mixwell.attach(model, name)
    return dict(shard_draws=draws, shard_end={key: value.full_tensor() for key, value in model.named_parameters()})


def worker(folder: Path) -> None:
    """One rank: for each method STEPS steps, a checkpoint after the first, and a resumed run from there."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kept = {}
    for name in METHODS:
        model = build()
        mixer = mixwell.attach(model, name, **zoo.strong(name))
        call = torch.nn.parallel.DistributedDataParallel(model)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(5)  # the same on both ranks: the rank itself must tell them apart
        first, gradients = steps(model, call, mixer, own_rows(rank), 1, optimiser)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        random = torch.get_rng_state()
        later, _ = steps(model, call, mixer, own_rows(rank), STEPS - 1, optimiser)
        end = {key: value.clone() for key, value in model.state_dict().items()}

        again = build()
        again.load_state_dict(state)
        mixer = mixwell.attach(again, name, **zoo.strong(name))
        call = torch.nn.parallel.DistributedDataParallel(again)
        optimiser = torch.optim.SGD(again.parameters(), lr=0.1)
        torch.set_rng_state(random)
        repeated, _ = steps(again, call, mixer, own_rows(rank), STEPS - 1, optimiser)
        same = all(torch.equal(end[key], value) for key, value in again.state_dict().items())
        kept[name] = dict(draws=first + later, repeated=repeated, same=same, gradients=gradients, end=end)
        kept[name] |= sharded(name, own_rows(rank))
    torch.save(kept, folder / f"rank{rank}.pt")
    del call  # else a worker may abort at its end: tools/gloo_abort.py
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks kept, started with torchrun's variables."""
    folder = tmp_path_factory.mktemp("ddp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parent
    folders = [here, here.parent, here.parents[1] / "src"]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    running = []
    for rank in range(2):
        environment = dict(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PYTHONPATH=path
        )
        environment["GLOO_SOCKET_IFNAME"] = "lo"
        script = f"import pathlib, test_ddp; test_ddp.worker(pathlib.Path({str(folder)!r}))"
        running.append(
            subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **environment}, stderr=subprocess.PIPE)
        )
    try:
        for process in running:
            errors = process.communicate(timeout=120)[1]
            assert process.returncode == 0, errors.decode()[-2000:]
    finally:
        for process in running:
            process.kill()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", METHODS)
def test_ranks_draw_differently_and_end_equal(ranks, name):
    one, two = (rank[name] for rank in ranks)
    assert not {draw[0] for draw in one["draws"]} & {draw[0] for draw in two["draws"]}
    assert all(torch.equal(one["end"][key], two["end"][key]) for key in one["end"])


@pytest.mark.parametrize("name", PINNED)
def test_gradients_are_the_mean_of_both_ranks(ranks, name):
    """Each rank's gradients from a single process under its own draw, averaged by hand."""
    single = []
    for rank in range(2):
        _, lam, layer, permutation = ranks[rank][name]["draws"][0]
        model = build()
        mixer = mixwell.attach(model, name, **zoo.strong(name))
        pin = dict(permutation=permutation)
        if lam is not None:
            pin["lam"] = lam
        if layer is not None:
            pin["layer"] = layer
        torch.manual_seed(5)
        with mixer.pin(**pin):
            model(**own_rows(rank)).loss.backward()
        single.append(zoo.gradients(model))
    for rank in range(2):
        together = ranks[rank][name]["gradients"]
        assert together.keys() == single[0].keys()
        for key, value in together.items():
            torch.testing.assert_close(value, (single[0][key] + single[1][key]) / 2, rtol=1e-5, atol=1e-7, msg=key)


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_repeats(ranks, name):
    for rank in ranks:
        assert rank[name]["repeated"] == rank[name]["draws"][1:]
        assert rank[name]["same"]


@pytest.mark.parametrize("name", METHODS)
def test_shards_change_nothing(ranks, name):
    for rank in ranks:
        assert rank[name]["shard_draws"] == rank[name]["draws"]
        for key, value in rank[name]["shard_end"].items():
            torch.testing.assert_close(value, rank[name]["end"][key], rtol=1e-5, atol=1e-7, msg=key)
