"""The context of a call: a compiler, a trace, a transform, a mode, a profiler.

Private names of torch's dispatcher and transforms are used here alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _DisableFuncTorch,
    _dispatch_keys,
    _get_dispatch_mode,
    _get_tracing_state,
    _len_torch_dispatch_stack,
)
from torch._C import _TorchDispatchModeKey as _Mode
from torch._C._autograd import _profiler_enabled
from torch._C._functorch import (
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

_PLAIN = {torch.Tensor, torch.nn.Parameter}


def must_dispatch() -> bool:
    """Whether every operator has to go through torch's dispatcher.

    What bypasses it is missing from a traced graph, from a profile and from derivatives.
    """
    return is_transformed() or _profiler_enabled()


def are_plain(*arguments: Any) -> bool:
    """Whether all are tensors on the CPU for which torch's dispatcher would only call the kernel.

    It has more to do for a subclass, for the negative of other memory, for zeros without any, for a
    batch of an older vmap: their dispatch keys differ from those of a tensor in memory.
    """
    plain = _plain_keys()
    for argument in arguments:
        if type(argument) not in _PLAIN or _dispatch_keys(argument) not in plain:
            return False
    return True


@functools.cache
def _plain_keys() -> tuple[object, ...]:
    """Dispatch keys of a tensor on the CPU, and of one in inference mode.

    They are kept from the first call, which may be under a transform or with fake tensors.
    """
    with _disable_current_modes(), _DisableFuncTorch():
        with torch.inference_mode(mode=False):
            usual = _dispatch_keys(torch.empty(0, device="cpu"))
        with torch.inference_mode():
            return usual, _dispatch_keys(torch.empty(0, device="cpu"))


def is_transformed() -> bool:
    """Whether a compiler, a trace, a transform or a dispatch mode makes something of operators.

    An `autograd.Function` that calls no operator is missing from all of them; a profile has it.
    """
    return (
        torch.compiler.is_compiling()
        or _len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0  # noqa: SLF001 - torch has no public way
    )


def is_concrete(*tensors: Tensor) -> bool:
    """Whether Python may branch on the values of tensors.

    Not on the meta device, in fake tensors, in a graph, which has to hold for other values too, nor
    under `torch.func`, where a tensor may stand for many.
    """
    if torch.compiler.is_compiling() or _len_torch_dispatch_stack() > 0:
        return False
    return peek_interpreter_stack() is None and abstract_reason(*tensors) is None


def abstract_reason(*tensors: Tensor, in_trace: bool = True) -> str | None:
    """Name what keeps the values of tensors from being read; None where they can be.

    Args:
        tensors: those to be read.
        in_trace: whether reading them in a trace, which has values but records no reading, counts.
    """
    if in_trace and (
        _get_tracing_state() is not None or _get_dispatch_mode(_Mode.PROXY) is not None
    ):
        return "a trace, which would not see it"
    if any(t.is_meta for t in tensors):
        return "the meta device, whose tensors hold no numbers"
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


@contextmanager
def without_transforms() -> Iterator[None]:
    """A time in which operators do what they would outside of all transforms of `torch.func`."""
    with temporarily_clear_interpreter_stack():
        yield


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor that those of `torch.func.grad`, `vjp` and `jvp` stand for."""
    while is_gradtrackingtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def wants_gradient(tensor: Tensor) -> bool:
    """Whether a tensor takes a gradient, be it that of a transform inside another one."""
    while is_gradtrackingtensor(tensor) and not tensor.requires_grad:
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad


def is_batch(tensor: Tensor) -> bool:
    """Whether a tensor stands for each of a batch, as under `torch.vmap`."""
    return is_batchedtensor(unwrapped(tensor))


def has_tangent(tensor: Tensor | None) -> bool:
    """Whether a tensor carries a forward-mode derivative."""
    if tensor is None or forward_ad._current_level < 0:  # noqa: SLF001 - as above
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


def exporting_to_onnx() -> bool:
    """Whether a graph is being made for ONNX, which knows torch's operators alone."""
    if torch.compiler.is_exporting() or _get_tracing_state() is not None:
        return torch.onnx.is_in_onnx_export()
    return False


def in_memory(tensor: Tensor) -> Tensor:
    """A tensor, or a copy where its memory holds other numbers.

    That of the negative of another tensor does, as torch makes it of the imaginary part of a
    conjugate; and zeros that autograd makes may have none.
    """
    if tensor.is_neg() or tensor._is_zerotensor():  # noqa: SLF001 - as above
        return tensor.clone()
    return tensor


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a tensor on a CPU is multiplied: autocast's where that is on."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return tensor.dtype


def to_autocast_dtype(tensor: Tensor) -> Tensor:
    """Convert a tensor as autocast does for functions that it runs in half precision."""
    kind = tensor.device.type
    if tensor.is_meta or not torch.is_autocast_enabled(kind):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))
