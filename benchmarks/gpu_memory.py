"""The memory of attention, of its gradients and of every readout, at a length where it decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import regard
from benchmarks.cases import Case
from benchmarks.gpu_checks import READOUTS, further
from benchmarks.gpu_clock import extra_mib
from benchmarks.gpu_peers import peers
from benchmarks.gpu_result import Result

LONG = Case(1, 8, 131072, 128)
TINY = Case(1, 2, 131, 16)


def memory(result: Result, shape: Case, device: torch.device) -> None:
    """Measure what each takes beyond query, key and value."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    query, key, value = shape.tensors(dtype, str(device))
    stored = 4 * shape.batch * shape.heads * shape.length**2
    result.table(
        f"Memory at {shape}, beyond query, key and value; the weights in float32 would take "
        f"{stored / 2**20:,.0f} MiB",
        *("what", "MiB"),
    )
    attend = partial(regard.attention, query, key, value, mask=regard.causal())
    pattern = regard.attention_with_pattern(query, key, value, mask=regard.causal())[1]

    def gradients() -> None:
        leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
        context = regard.attention(*leaves, mask=regard.causal())
        torch.autograd.grad(context.sum(), leaves)

    readouts = READOUTS | further(shape.length)
    tasks: dict[str, Callable[[], object]] = {
        "attention, forward": attend,
        "attention, forward and backward": gradients,
        **{f"readout: {name}": partial(pattern.read, each) for name, each in readouts.items()},
        "all readouts, in one pass": partial(pattern.read, *READOUTS.values()),
    }
    ways: dict[str, Callable[[], Tensor]] = peers(query, key, pattern.logsumexp)
    tasks |= {f"received by {n}": way for n, way in ways.items() if n != "eager"}
    for name, task in tasks.items():
        if "backward" in name and "received" in name and device.type != "cuda":
            result.left_out(name, "FlexAttention has no backward pass on a CPU")
        elif result.has_time(name):
            with result.attempt(name):
                result.row(name, extra_mib(task))
