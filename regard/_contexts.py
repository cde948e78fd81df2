"""State around a call: compiler, trace, transforms, dispatch modes, autocast.

Private names of torch's dispatcher and transforms are used in this module only.
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
    """Return True if every operator must go through torch's dispatcher.

    A kernel that bypasses it is missing from a traced graph, a profile and derivatives.
    """
    return is_transformed() or _profiler_enabled()


def are_plain(*arguments: Any) -> bool:
    """Return True if all are CPU tensors for which the dispatcher would only call the kernel.

    Subclasses, lazy negations, zero tensors and batched tensors have other dispatch keys.
    """
    plain = _plain_keys()
    for argument in arguments:
        if type(argument) not in _PLAIN or _dispatch_keys(argument) not in plain:
            return False
    return True


@functools.cache
def _plain_keys() -> tuple[object, ...]:
    """Return the dispatch keys of a CPU tensor, and of one made in inference mode.

    They are cached; the first call may be under a transform or with fake tensors.
    """
    with _disable_current_modes(), _DisableFuncTorch():
        with torch.inference_mode(mode=False):
            usual = _dispatch_keys(torch.empty(0, device="cpu"))
        with torch.inference_mode():
            return usual, _dispatch_keys(torch.empty(0, device="cpu"))


def is_transformed() -> bool:
    """Return True under a compiler, trace, transform or dispatch mode that intercepts operators.

    An `autograd.Function` that calls no operator is invisible to all of these; a profiler sees it.
    """
    return (
        torch.compiler.is_compiling()
        or _len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0  # noqa: SLF001 - torch has no public way
    )


def is_concrete(*tensors: Tensor) -> bool:
    """Return True if Python may branch on the values of tensors.

    It may not for meta and fake tensors, in a graph, which must hold for other values too, and
    under `torch.func`, where a tensor may be a batch.
    """
    if torch.compiler.is_compiling() or _len_torch_dispatch_stack() > 0:
        return False
    return peek_interpreter_stack() is None and abstract_reason(*tensors) is None


def abstract_reason(*tensors: Tensor, in_trace: bool = True) -> str | None:
    """Name the reason why the values of tensors can't be read; None if they can.

    Args:
        tensors: the tensors to read.
        in_trace: False to allow reads in a trace, which has values but does not record the read.
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
    """Name the active transforms of `torch.func`: "Grad", "Jvp", "Vmap"."""
    return tuple(level.key().name for level in get_interpreter_stack() or ())


# As torch.compiler.assume_constant_result does, but without loading the compiler: the transform is
# active while the compiler traces the function under it.
transforms._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


@contextmanager
def without_transforms() -> Iterator[None]:
    """Disable all transforms of `torch.func` inside the block."""
    with temporarily_clear_interpreter_stack():
        yield


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor inside the wrappers of `torch.func.grad`, `vjp` and `jvp`."""
    while is_gradtrackingtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def wants_gradient(tensor: Tensor) -> bool:
    """Return True if a tensor requires a gradient, also at an inner level of `torch.func`."""
    while is_gradtrackingtensor(tensor) and not tensor.requires_grad:
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad


def is_batch(tensor: Tensor) -> bool:
    """Return True for a batched tensor, as under `torch.vmap`."""
    return is_batchedtensor(unwrapped(tensor))


def has_tangent(tensor: Tensor | None) -> bool:
    """Return True if a tensor carries a forward-mode derivative."""
    if tensor is None or forward_ad._current_level < 0:  # noqa: SLF001 - as above
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


def exporting_to_onnx() -> bool:
    """Return True while exporting to ONNX, which knows torch's own operators only."""
    if torch.compiler.is_exporting() or _get_tracing_state() is not None:
        return torch.onnx.is_in_onnx_export()
    return False


def in_memory(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its values, copied if need be.

    The memory of a lazy negation, as of the imaginary part of a conjugate, holds the opposite
    values; zero tensors of autograd have no memory.
    """
    if tensor.is_neg() or tensor._is_zerotensor():  # noqa: SLF001 - as above
        return tensor.clone()
    return tensor


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of matrix products on the CPU: autocast's where it is on."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return tensor.dtype


def to_autocast_dtype(tensor: Tensor) -> Tensor:
    """Cast a tensor as autocast does for operators that run in half precision."""
    kind = tensor.device.type
    if tensor.is_meta or not torch.is_autocast_enabled(kind):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))
