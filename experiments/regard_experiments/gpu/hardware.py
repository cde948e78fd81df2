"""Facts about the machine that decide what a kernel can do there. None of them reads a tensor."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from regard._tensors import is_nvidia
from regard.inputs import Problem

TRITON = "triton>=3.9"
"""The requirement, which pyproject.toml states too: kernels take named tuples."""


def name(device: torch.device) -> str:
    """Name a device: its place, and on CUDA what it is."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability: (8, 0) for an A100, (9, 0) for an H100 or H200."""
    return torch.cuda.get_device_capability(device)


def cudnn_version() -> int:
    """The version of cuDNN that torch has loaded, such as 91002 for 9.10.2; 0 for none."""
    return torch.backends.cudnn.version() or 0


def why_no_triton() -> str | None:
    """Say why Triton can't be used, or None."""
    if find_spec("triton") is None:
        return f"Triton is not installed; pip install '{TRITON}'"
    return None


def elsewhere(problem: Problem, backend: str) -> str | None:
    """Object to a problem that does not lie on a CUDA device."""
    device = problem.query.device
    if device.type != "cuda":
        return f"query is on {device} but {backend} needs CUDA"
    if not is_nvidia(device):
        return f"torch was built for ROCm but {backend} needs CUDA"
    return None


def too_old(problem: Problem, needed: tuple[int, int]) -> str | None:
    """Object to a device of a lower compute capability than is needed."""
    has = capability(problem.query.device)
    if has >= needed:
        return None
    return f"the GPU has compute capability {has[0]}.{has[1]}, below {needed[0]}.{needed[1]}"
