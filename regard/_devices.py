"""Devices that compute on their own: who reads a number off one waits for all that is under way.

So on CUDA nothing is read unless the caller asks for it. Checks are left to the device, and what
comes from the CPU is copied while the device goes on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._contexts import is_concrete
from regard._shapes import Bool, Shaped


def is_nvidia(device: torch.device) -> bool:
    """Whether a device is one of CUDA's; ROCm's bear the same name, but run other kernels."""
    return device.type == "cuda" and torch.version.hip is None


def upload(tensor: Shaped[Tensor, "..."], device: torch.device) -> Shaped[Tensor, "..."]:
    """Copy a tensor to a device; from the CPU to a GPU by way of pinned memory, without waiting."""
    stays = device.type != "cuda" or tensor.is_cuda
    if stays or tensor.requires_grad or not is_concrete(tensor):  # what is pinned has no graph
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def require(condition: Bool[Tensor, ""], message: str) -> None:
    """Require that a condition holds.

    A GPU checks it when it gets there. Where it does not hold, the GPU writes the message to stderr
    and refuses all further work of the process, as torch's lookups do for an index out of range.

    Raises:
        ValueError: if it does not hold, on any other device.
    """
    if condition.is_cuda:
        torch._assert_async(condition, message)  # noqa: SLF001 - torch has no public name
    elif not bool(condition):
        raise ValueError(message)
