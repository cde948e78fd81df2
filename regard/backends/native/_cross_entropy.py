"""The cross-entropy of rows of logits and its gradient, while the rows are in the caches.

Axis letters: N rows, V vocabulary.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.native import library
from regard.backends.native._arguments import CODES

_STRUCT = struct.Struct("9q")  # regard_cross_entropy in src/native/abi.h


def compute_cross_entropy(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, "N"],
    losses: Float[Tensor, "N"],
    *,
    weights: Float[Tensor, "N"],
    gradient: Float[Tensor, "N V"] | None,
) -> None:
    """Compute ``logsumexp(logits) - logits[target]`` of each row; all tensors contiguous.

    Args:
        logits: in a dtype of the kernels, at least one number.
        targets: int64, below V; below 0 where a row has no loss.
        losses: where the losses are written, in nats, float32; 0 where a row has none.
        weights: what each loss counts in the sum whose gradient is computed, float32.
        gradient: where that of the logits is written, in their dtype, which may be `logits` itself;
            None: nowhere.
    """
    assert gradient is None or gradient.dtype == logits.dtype, "the kernel reads and writes one"
    library.call(
        "regard_cross_entropy_and_gradient",
        _STRUCT.pack(
            *(CODES[logits.dtype], torch.get_num_threads(), *logits.shape, logits.data_ptr()),
            *(targets.data_ptr(), weights.data_ptr(), losses.data_ptr()),
            0 if gradient is None else gradient.data_ptr(),
        ),
    )
