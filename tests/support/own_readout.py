"""A readout of one's own: a class, known to nothing else."""

from dataclasses import dataclass

from regard.pattern.readouts import Readout


@dataclass(frozen=True)
class SquaredWeights(Readout):
    """Sum of each row's weights to a power: ``(..., L)``."""

    axes = ("query",)

    power: int = 2

    def add(self, state, block):
        state[block.heads, block.rows] = (block.weights**self.power).sum(-1).double()

    def merge(self, state, tile, results):
        state[:, tile.local_queries] += results[0]
