"""Reading calls of flash_attn_interface, FlashAttention-3, whose kernels run on GPUs alone.

The signature is the package's (Shah et al. 2024, arXiv:2407.08608). It has no dropout and no ALiBi;
what it has beyond version 2 and changes scores is refused by name.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.errors import RecordError
from regard.intercept import _flash
from regard.intercept._library_call import LibraryCall


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the package's signature
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: _flash.Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,  # noqa: ARG001 - who computes is not what a call depends on
    pack_gqa: bool | None = None,  # noqa: ARG001, FBT001 - likewise
    deterministic: bool = False,  # noqa: ARG001, FBT001, FBT002 - likewise
    sm_margin: int = 0,  # noqa: ARG001 - likewise
    return_attn_probs: bool = False,  # noqa: ARG001, FBT001, FBT002 - likewise
) -> LibraryCall:
    """Read ``flash_attn_func``: q ``(B, L, H, D)``, k and v ``(B, S, G, D)``."""
    unknown = {
        "qv": qv is not None,
        "q_descale": q_descale is not None,
        "k_descale": k_descale is not None,
        "v_descale": v_descale is not None,
        "attention_chunk": attention_chunk != 0,
    }
    for name, given in unknown.items():
        if given:
            raise RecordError(
                f"flash_attn_interface.flash_attn_func was called with {name}, which regard does "
                "not read; call it without"
            )
    return _flash.flash_attn_func(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
    )


def refused(name: str) -> Any:
    """Make what reads a function of the package that is seen, and not understood."""

    def read(*args: Any, **options: Any) -> LibraryCall:  # noqa: ARG001 - none of them is read
        raise RecordError(
            f"a model called flash_attn_interface.{name}, of which regard reads flash_attn_func "
            "alone; give the model another attention, such as attn_implementation='sdpa'"
        )

    return read
