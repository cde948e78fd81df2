"""Random numbers that a model draws while it runs, such as those of dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def same_draws(model: nn.Module) -> Iterator[None]:
    """Have a model draw the same random numbers in each such block; afterwards nothing is drawn."""
    devices = {tensor.device.index for tensor in model.parameters() if tensor.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices)):
        torch.manual_seed(0)
        yield
