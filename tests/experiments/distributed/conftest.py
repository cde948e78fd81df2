"""Worlds of two and of three ranks: processes on this machine that talk over gloo."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.ranks import run_ranks

from regard_experiments.distributed import Layout

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class World:
    """The results of each rank, by the name of the task."""

    size: int
    actual: list

    def whole(self, task, name, dim):
        """Put the ranks' parts of a result together, each at its positions."""
        parts = [one[task][name] for one in self.actual]
        length = sum(part.shape[dim] for part in parts)
        layout = Layout(length, self.size)
        places = torch.cat([layout.positions(rank) for rank in range(self.size)])
        assert places.sort().values.tolist() == list(range(length))
        return torch.cat(parts, dim).index_select(dim, places.argsort())

    def common(self, task, name):
        """A result that all ranks have alike."""
        first, *others = (one[task][name] for one in self.actual)
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=0, equal_nan=True)
        return first


@pytest.fixture(
    scope="session", params=[pytest.param(2, marks=pytest.mark.thorough), 3], ids="{}-ranks".format
)
def world(request, tmp_path_factory):
    size, folder = request.param, tmp_path_factory.mktemp("world")
    path = os.pathsep.join((str(WORKER.parents[2]), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    _, (output,) = run_ranks([[sys.executable, WORKER, str(size), folder]], environment)
    codes = [*map(int, output.splitlines()[-1].split())]
    assert codes == [0, -signal.SIGKILL, *[0] * (size - 2)], output
    survivors = [torch.load(folder / f"rank{rank}.pt") for rank in range(size) if rank != 1]
    before = torch.load(folder / "killed.pt")
    return World(size, [survivors[0], before, *survivors[1:]])
