"""What recording costs: a GPT-2 of random weights, recorded or not.

``python -m benchmarks.recording LENGTH WAY`` prints the bytes that one pass in that way takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

import regard
from benchmarks.arguments import take
from benchmarks.measure import extra_memory, high_water, interleaved
from benchmarks.report import Report, milliseconds

LAYERS, HEADS, DIM = 2, 12, 64
LENGTHS = (1024, 8192)

WAYS = {
    "sdpa": ("sdpa", False),
    "sdpa, recorded": ("sdpa", True),
    "eager": ("eager", False),
    "eager, recorded": ("eager", True),
    "eager, output_attentions": ("eager", False),
}


def recording(report: Report, lengths: Sequence[int] = LENGTHS) -> None:
    """Print the tables."""
    if find_spec("transformers") is None:
        print("\nrecording: transformers is not installed")
        return
    for length in lengths:
        report.table(
            f"recording at {length}: GPT-2, {LAYERS} layers of {HEADS} heads of {DIM}, one pass",
            *(("way", 26), ("ms", 9), ("of plain sdpa", 14), ("memory, MiB", 12)),
        )
        tasks: dict[str, Callable[[], object]] = {
            name: partial(run, model(length, kind), length, name)
            for name, (kind, _) in WAYS.items()
        }
        with torch.no_grad():
            seconds = interleaved(tasks).seconds
        for name, taken in seconds.items():
            ratio = report.at_most(name, taken / seconds["sdpa"], None)
            memory = extra_memory("benchmarks.recording", str(length), name)
            report.row(name, milliseconds(taken), ratio, f"{memory / 2**20:.0f}")


def model(length: int, implementation: str) -> Any:
    """Make the model."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=HEADS * DIM,
        n_positions=length,
        vocab_size=101,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=implementation,
    )
    return GPT2Model(config).eval()


def run(gpt: Any, length: int, way: str) -> object:
    """Run the model once; its output, and the recording, which is to stay in memory."""
    ids = torch.arange(length)[None] % 101
    recorded: AbstractContextManager[Any] = nullcontext()
    if WAYS[way][1]:
        recorded = regard.record(gpt)
    with recorded as kept:
        output = gpt(ids, use_cache=False, output_attentions="output_attentions" in way)
    return output, kept


def _print_extra_memory(length: int, way: str) -> None:
    gpt = model(length, WAYS[way][0])
    with torch.no_grad():
        run(model(16, WAYS[way][0]), 16, way)  # what is imported and allocated once
        before = high_water()
        result = run(gpt, length, way)
    print(high_water() - before)
    del result


if __name__ == "__main__":
    about = "Print the bytes that one pass of a model takes, recorded or not."
    _print_extra_memory(*take("benchmarks.recording", about, length=int, way=WAYS))
