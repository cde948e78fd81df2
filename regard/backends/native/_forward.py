"""The forward pass: context and log-sum-exp.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.native._arguments import Arguments, vectors
from regard.backends.native._structs import TENSOR
from regard.backends.native.library import call


def forward(*arguments: Any) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and log-sum-exp, natural logarithm, of `Arguments`."""
    context, logsumexp = like(*arguments)
    packed = Arguments(*arguments).pack()
    call("regard_forward", packed.numbers, TENSOR.pack(*vectors(context)), logsumexp.data_ptr())
    return context, logsumexp


def like(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Allocate context and log-sum-exp."""
    inputs = Arguments(*arguments)
    shape = inputs.query.shape[:-1]
    return (
        inputs.query.new_empty((*shape, inputs.value.shape[-1])),
        inputs.query.new_empty(shape, dtype=torch.float32),
    )
