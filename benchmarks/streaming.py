"""What reading while a model runs costs: layers of attention, plain, recorded or read at each call.

``python -m benchmarks.streaming LAYERS LENGTH WAY`` prints the bytes that one pass takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from benchmarks.arguments import take
from benchmarks.measure import extra_memory, high_water, interleaved
from benchmarks.report import Report, milliseconds

HEADS, DIM = 2, 64
CASES = ((1, 131_072), (32, 8192))
"""Layers, and tokens."""
READOUTS = (regard.Received(), regard.Entropy(), regard.MaxScore(), regard.TopK(8))
WAYS: dict[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {
    "plain": lambda _: nullcontext(),
    "recorded": regard.record,
    "read received": lambda model: regard.record(model, read=READOUTS[:1]),
    "read all four": lambda model: regard.record(model, read=READOUTS),
}


class Layers(nn.Module):
    """Causal self-attention of a residual stream, layer after layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        width = HEADS * DIM
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``(B, L, H·D)``."""
        for layer in self.layers:
            query, key, value = (
                part.unflatten(-1, (HEADS, DIM)).transpose(1, 2)
                for part in layer(x).chunk(3, dim=-1)
            )
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + context.transpose(1, 2).flatten(2)
        return x


def streaming(report: Report, cases: Sequence[tuple[int, int]] = CASES) -> None:
    """Print the tables; a read or recorded run is measured by the plain one."""
    for layers, length in cases:
        report.table(
            f"streaming, {layers} × {length}: layers × tokens, {HEADS} heads of {DIM}, one pass",
            *(("way", 16), ("ms", 10), ("of plain", 14), ("memory, MiB", 12)),
        )
        model, x = Layers(layers), torch.randn(1, length, HEADS * DIM)
        tasks = {way: partial(run, model, x, way) for way in WAYS}
        seconds = interleaved(tasks).seconds
        for way, taken in seconds.items():
            ratio = report.at_most(way, taken / seconds["plain"], None)
            memory = extra_memory("benchmarks.streaming", str(layers), str(length), way)
            report.row(way, milliseconds(taken), ratio, f"{memory / 2**20:.0f}")


def run(model: nn.Module, x: Tensor, way: str) -> object:
    """Run the model once; its output, and what was kept, which is to stay in memory."""
    with torch.no_grad(), WAYS[way](model) as kept:
        output = model(x)
    return output, kept


def _print_extra_memory(layers: int, length: int, way: str) -> None:
    model = Layers(layers)
    run(model, torch.randn(1, 16, HEADS * DIM), way)  # what is imported and allocated once
    x = torch.randn(1, length, HEADS * DIM)
    before = high_water()
    result = run(model, x, way)
    print(high_water() - before)
    del result


if __name__ == "__main__":
    about = "Print the bytes that one pass takes, plain, recorded or read."
    _print_extra_memory(*take("benchmarks.streaming", about, layers=int, length=int, way=WAYS))
