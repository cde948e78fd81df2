"""What a call is surrounded by: a compiler, a trace, a transform, a mode, a profiler.

torch has few public questions for it; those that it has no public name for are kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._C import _get_dispatch_mode, _get_tracing_state, _len_torch_dispatch_stack
from torch._C import _TorchDispatchModeKey as _Mode
from torch._C._autograd import _profiler_enabled
from torch._C._functorch import (
    get_interpreter_stack,
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from torch import Tensor


def watched() -> bool:
    """Whether someone has to see each operator that runs.

    What computes past the dispatcher is missing from a traced graph, which then gives memory that
    was never written, and from a profile; and derivatives would be lost.
    """
    return (
        torch.compiler.is_compiling()
        or _len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0  # noqa: SLF001 - torch has no public way
        or _profiler_enabled()
    )


def readable(*tensors: Tensor) -> bool:
    """Whether Python may branch on the numbers in tensors.

    Not where there are none (on the meta device, in fake tensors), not in a graph, which has to
    hold for other numbers too, and not under `torch.func`, where a tensor may stand for many.
    """
    if torch.compiler.is_compiling() or _len_torch_dispatch_stack() > 0:
        return False
    return peek_interpreter_stack() is None and unreadable(*tensors) is None


def unreadable(*tensors: Tensor) -> str | None:
    """Say under what a kernel of ours can't read tensors, or None where it can."""
    if _get_tracing_state() is not None or _get_dispatch_mode(_Mode.PROXY) is not None:
        return "a trace, which would not see it"
    if any(t.is_meta for t in tensors):
        return "the meta device, whose tensors hold no numbers"
    return unbranchable(*tensors)


def unbranchable(*tensors: Tensor) -> str | None:
    """Say under what Python can't branch on numbers in tensors that have a device; else None."""
    if any(map(is_functorch_wrapped_tensor, tensors)):
        return "torch.func, where a tensor may stand for many"
    under_fake = isinstance(_get_dispatch_mode(_Mode.FAKE), FakeTensorMode)
    if under_fake or any(isinstance(t, FakeTensor) for t in tensors):
        return "torch.export or fake tensors, which hold no numbers"
    return None


def transforms() -> tuple[str, ...]:
    """Name the transforms of `torch.func` that a call is under: "Grad", "Jvp", "Vmap"."""
    return tuple(level.key().name for level in get_interpreter_stack() or ())


# As torch.compiler.assume_constant_result does, but without loading the compiler: while it traces
# what a transform is applied to, the transform is on.
transforms._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


def has_tangent(tensor: Tensor | None) -> bool:
    """Whether a forward-mode derivative is asked for."""
    if tensor is None or forward_ad._current_level < 0:  # noqa: SLF001 - as above
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


def for_onnx() -> bool:
    """Whether a graph is made for ONNX, which knows torch's operators and no others."""
    if torch.compiler.is_exporting() or _get_tracing_state() is not None:
        return torch.onnx.is_in_onnx_export()
    return False


def as_under_autocast(tensor: Tensor) -> Tensor:
    """Convert a tensor as autocast does for the functions that it runs in half precision."""
    kind = tensor.device.type
    if tensor.is_meta or not torch.is_autocast_enabled(kind):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))
