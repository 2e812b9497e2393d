"""LN-G under DistributedDataParallel and FSDP2: two processes have the gradients of one, to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import normscope.nn
from normscope.nn import operator

TOLERANCE = 1e-12  # of the largest gradient; float64, so what differs is the order of sums
STEPS, ROWS = 3, 8


class Block(nn.Module):
    """Norms of all kinds between linear layers."""

    def __init__(self):
        super().__init__()
        self.enter, self.between, self.leave = nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 6)
        self.first = normscope.nn.Norm(24, groups=6)
        self.second = normscope.nn.Norm(24, groups=8, project=False, bias=False)
        self.third = normscope.nn.Norm((3, 2), groups=2)

    def forward(self, x):
        hidden = torch.tanh(self.between(self.first(self.enter(x))))
        return self.third(self.leave(self.second(hidden)).unflatten(-1, (3, 2))).flatten(-2)


def model():
    torch.manual_seed(0)
    made = Block().double()
    for vector in (norm.weight for norm in (made.first, made.second, made.third)):
        nn.init.normal_(vector, 1.0, 0.3)
    return made


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 6, generator=generator).double(), torch.randn(ROWS, 6, generator=generator).double()


def trained(net, rows):
    """The gradients of every step of a short training, each with its name."""
    optimizer, gradients = torch.optim.SGD(net.parameters(), lr=0.3), []
    for step in range(STEPS):
        x, target = batch(step)
        optimizer.zero_grad()
        (net(x[rows]) - target[rows]).square().mean().backward()
        gradients.append({name.removeprefix("module."): whole(p.grad) for name, p in net.named_parameters()})
        optimizer.step()
    return gradients


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient.clone()


def one_rank():
    """What each of the two processes runs."""
    distributed.init_process_group("gloo", init_method=os.environ["MEETING"], rank=int(sys.argv[1]), world_size=2)
    rank = distributed.get_rank()
    mine, found = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2), {}
    found["ddp"] = trained(nn.parallel.DistributedDataParallel(model()), mine)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    sharded = model()
    fused, calls = operator.norm, []
    operator.norm = lambda *arguments: calls.append(1) or fused(*arguments)
    for part in (sharded.first, sharded.second, sharded.third):  # each norm a unit of its own, and the rest
        fully_shard(part, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    found["fsdp"] = trained(sharded, mine)
    assert all(type(parameter.data).__name__ == "DTensor" for parameter in sharded.parameters())
    found["fused calls"] = len(calls)
    torch.save(found, Path(sys.argv[2]) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch is built without gloo")
    folder = tmp_path_factory.mktemp("ranks")
    surroundings = os.environ | {
        "MEETING": f"file://{folder}/meeting",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)], env=surroundings, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_gradients_are_those_of_one_process(found, way):
    alone = trained(model(), slice(None))
    assert len(alone[0]) == 11
    for rank in found:
        assert len(rank[way]) == STEPS
        for ours, expected in zip(rank[way], alone, strict=True):
            assert ours.keys() == expected.keys()
            for name, gradient in expected.items():
                assert gradient.abs().max() > 0
                assert (ours[name] - gradient).abs().max() <= TOLERANCE * gradient.abs().max()


def test_the_fused_operator_runs_on_gathered_parameters(found):
    assert [rank["fused calls"] for rank in found] == [3 * STEPS] * 2


if __name__ == "__main__":
    one_rank()
