"""Which tensors are accepted: those whose memory holds their values.

A subclass of `torch.Tensor` may mean something else and leave its memory unwritten, as torch's
`CausalBias` does. Its ``__torch_function__`` says what it means, to torch's functions alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_tensor(tensor: object, name: str) -> None:
    """Check that an argument is a tensor whose memory can be read.

    Raises:
        TypeError: if it is not a tensor, or one of another kind.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, but is {type(tensor).__name__}")
    refuse_nested(tensor, name)
    if type(tensor) in _PLAIN:
        return
    if _is_distributed(tensor):
        raise TypeError(
            f"{name} is a DTensor, which is not supported; pass this rank's part, "
            f"{name}.to_local(), or use regard_experiments.distributed"
        )
    if _overrides_torch_function(type(tensor)):
        raise TypeError(
            f"{name} is a {type(tensor).__name__}, whose memory need not hold its values; "
            f"convert it to a plain torch.Tensor first{_cure(tensor)}"
        )


def tensor_of(values: Any) -> torch.Tensor:
    """Make a tensor of numbers: on the CPU, whatever torch's default device; a tensor stays."""
    return values if isinstance(values, torch.Tensor) else torch.as_tensor(values, device="cpu")


def check_floating(tensor: object, name: str) -> None:
    """Check that an argument is a floating-point tensor that can be computed with.

    Raises:
        TypeError: if it is not.
    """
    check_tensor(tensor, name)
    assert isinstance(tensor, torch.Tensor), "it has just been checked"
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, but is {tensor.dtype}; try {name}.float()")
    check_dtype(tensor, name)


def check_integers(tensor: torch.Tensor, name: str) -> None:
    """Check that a tensor holds integers.

    Raises:
        TypeError: if it does not.
    """
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, but is {tensor.dtype}; try {name}.long()")


def check_dtype(tensor: torch.Tensor, name: str) -> None:
    """Check that a floating-point tensor has a dtype that is supported.

    Raises:
        TypeError: for one of 8 bits or fewer, which means nothing without its scale.
    """
    if tensor.dtype not in _DTYPES:
        supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise TypeError(
            f"{name} is {tensor.dtype}, but must be one of {supported}; multiply it by its "
            f"scale and convert it: {name}.to(torch.bfloat16)"
        )


def refuse_nested(tensor: torch.Tensor, name: str) -> None:
    """Refuse a nested tensor: sequences of unequal lengths, without one shape.

    Raises:
        TypeError: if it is nested.
    """
    if tensor.is_nested:
        raise TypeError(
            f"{name} is a nested tensor, which is not supported; pad the sequences to one length "
            "and hide the padding with regard.padding, or pack them and pass regard.documents"
        )


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _overrides_torch_function(kind: type) -> bool:
    """Whether a class has a ``__torch_function__`` of its own, outside a call of that."""
    own = kind.__torch_function__  # type: ignore[attr-defined]
    disabled = torch._C._disabled_torch_function_impl  # noqa: SLF001 - it has no public name
    inherited = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    if own is disabled or getattr(own, "__func__", None) is inherited:
        return False
    return torch._C._is_torch_function_enabled()  # noqa: SLF001 - it has no public name


def _cure(tensor: torch.Tensor) -> str:
    if type(tensor).__module__ != "torch.nn.attention.bias":
        return ""
    return "; for torch's CausalBias pass mask=regard.causal(offset=0) or mask=regard.causal()"


def matmul_alone(
    kind: type,
    function: Any,
    types: Iterable[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    cure: str,
) -> Any:
    """Answer a torch function that got a matrix which is not stored: multiply, or refuse.

    Args:
        kind: the class of such matrices, which has ``@`` from either side.
        function: as ``__torch_function__`` gets it.
        types: likewise.
        args: likewise.
        kwargs: likewise.
        cure: how to make a tensor of one.

    Raises:
        TypeError: for anything but a product, unless a type of another kind may take it.
    """
    if function in (torch.Tensor.__matmul__, torch.Tensor.matmul, torch.matmul):
        left, right = _operands(*args, **kwargs or {})
        return left @ right if isinstance(left, kind) else right.__rmatmul__(left)
    # torch's functions in Python list plain tensors too, which have no say.
    if any(not issubclass(other, kind) and _overrides_torch_function(other) for other in types):
        return NotImplemented
    name = torch.overrides.resolve_name(function) or function.__name__
    own = next(own for own in types if issubclass(own, kind))
    raise TypeError(f"{name} takes tensors, but a {own.__name__} is not stored as one; {cure}")


def _operands(input: Any, other: Any, *, out: Any = None) -> tuple[Any, Any]:  # noqa: A002 - torch's
    if out is not None:
        raise TypeError(
            f"out must be None where a factor is not stored as a tensor, but is "
            f"{type(out).__name__}; take the product that matmul returns"
        )
    return input, other


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to, 0 for one made in inference mode, which keeps no count."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - its only name
