"""Which tensors are computed with: those whose memory holds the numbers that they stand for.

A subclass of `torch.Tensor` may stand for something else and keep its memory unwritten, as torch's
`CausalBias` does. It says what it means by ``__torch_function__``, which only functions of torch
ask; what it means here can't be known.
"""

from __future__ import annotations

import sys

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_tensor(given: object, name: str) -> None:
    """Check that an argument is a tensor whose memory can be read.

    Raises:
        TypeError: if it is no tensor, or one of another kind.
    """
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, but is {type(given).__name__}")
    refuse_nested(given, name)
    if type(given) in _PLAIN:
        return
    if _is_distributed(given):
        raise TypeError(
            f"{name} is a DTensor, which is not served; pass the part that lies here, "
            f"{name}.to_local(), or use regard.distributed"
        )
    if _speaks_for_itself(type(given)):
        raise TypeError(
            f"{name} is a {type(given).__name__}, whose memory need not hold what it stands for; "
            f"convert it to a plain torch.Tensor first{_cure(given)}"
        )


def check_floating(given: object, name: str) -> None:
    """Check that an argument is a floating-point tensor that can be computed with.

    Raises:
        TypeError: if it is not.
    """
    check_tensor(given, name)
    assert isinstance(given, torch.Tensor), "it has just been checked"
    if not given.is_floating_point():
        raise TypeError(f"{name} must be floating point, but is {given.dtype}; try {name}.float()")
    check_dtype(given, name)


def check_dtype(given: torch.Tensor, name: str) -> None:
    """Check that a floating-point tensor has a dtype that is computed with.

    Raises:
        TypeError: for one of 8 bits or fewer, which means nothing without its scale.
    """
    if given.dtype not in _DTYPES:
        served = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise TypeError(
            f"{name} is {given.dtype}, and served are {served}; multiply it by its scale and "
            f"convert it: {name}.to(torch.bfloat16)"
        )


def refuse_nested(given: torch.Tensor, name: str) -> None:
    """Refuse a tensor of sequences of unequal lengths, most of which can't even tell a shape.

    Raises:
        TypeError: if it is nested.
    """
    if given.is_nested:
        raise TypeError(
            f"{name} is a nested tensor, which is not served; pad the sequences to one length and "
            "hide the padding with regard.padding, or pack them and part them with regard.documents"
        )


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _speaks_for_itself(kind: type) -> bool:
    """Whether a class has a ``__torch_function__`` of its own, and is not just being asked it."""
    own = kind.__torch_function__  # type: ignore[attr-defined]
    disabled = torch._C._disabled_torch_function_impl  # noqa: SLF001 - it has no public name
    inherited = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    if own is disabled or getattr(own, "__func__", None) is inherited:
        return False
    return torch._C._is_torch_function_enabled()  # noqa: SLF001


def _cure(tensor: torch.Tensor) -> str:
    if type(tensor).__module__ != "torch.nn.attention.bias":
        return ""
    return "; for torch's CausalBias pass mask=regard.causal(offset=0) or mask=regard.causal()"
