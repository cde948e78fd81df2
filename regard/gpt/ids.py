"""Checks of token ids, of targets, and of the positions whose logits are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._arguments import check_whole
from regard._contexts import abstract_reason
from regard._shapes import Float, Int
from regard.gpt._loss import IGNORED
from regard.gpt.config import GPTConfig


def check_ids(ids: Int[Tensor, "..."], config: GPTConfig) -> None:
    """Check that ids are integers of a model's vocabulary.

    A model checks ids on a CPU at each call, unless they hold no values, as under
    `torch.func.vmap`. Ids on CUDA are checked by the device, whose context is unusable after an
    index out of range: reading them here would synchronize with all queued work.

    Args:
        ids: token ids, of any shape.
        config: the model's configuration.

    Raises:
        TypeError: `ids` is not a tensor of int64 or int32.
        ValueError: an id lies outside the vocabulary.

    >>> from regard.gpt import GPTConfig, check_ids
    >>> check_ids(torch.tensor([[1, 11]]), GPTConfig(vocab_size=11))
    Traceback (most recent call last):
    ValueError: ids runs from 1 to 11 and the vocabulary from 0 to 10; encode the text with this \
model's tokenizer
    """
    check_dtype(ids)
    if ids.numel() and not ids.is_meta:
        low, high = (int(bound) for bound in ids.aminmax())
        cure = "encode the text with this model's tokenizer"
        _check_range("ids", low, high, config.vocab_size, cure)


def checked_targets(
    targets: Int[Tensor, "..."],
    weights: Float[Tensor, "..."] | None,
    ids: Int[Tensor, "..."],
    vocabulary: int,
) -> tuple[Int[Tensor, "..."], Float[Tensor, "..."]]:
    """Check targets and their weights; return targets in int64, and a weight for each.

    Args:
        targets: the caller's targets; on CUDA they are checked by the device.
        weights: the caller's weights; None is the mean over all targets but `IGNORED`, NaN without
            any.
        ids: the ids, whose shape both must have.
        vocabulary: number of tokens with a logit.

    Raises:
        TypeError: `targets` is not a tensor of int64 or int32, or `weights` not one of floats.
        ValueError: one has another shape than `ids`, a target lies outside the vocabulary, or a
            mean is wanted and there are no positions.
    """
    check_dtype(ids)
    check_dtype(targets, "targets")
    if weights is not None and not (isinstance(weights, Tensor) and weights.is_floating_point()):
        kind = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"weights is {kind}; expected a tensor of floats, one for each position")
    for name, tensor in (("targets", targets), ("weights", weights)):
        if tensor is not None and tensor.shape != ids.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and ids {tuple(ids.shape)}; expected the "
                "same, one for each position"
            )
    if weights is None and not ids.numel():
        raise ValueError(
            f"ids has shape {tuple(ids.shape)}: the mean over zero positions is undefined; pass at "
            "least one position, or weights, which make it a sum"
        )
    compiling = torch.compiler.is_compiling()
    if not (targets.is_cuda or compiling) and abstract_reason(targets, in_trace=False) is None:
        _check_targets(targets, vocabulary)
    targets = targets.long()
    if weights is None:
        counted = (targets != IGNORED).float()
        return targets, counted / counted.sum()
    return targets, weights


def _check_targets(targets: Tensor, vocabulary: int) -> None:
    if not targets.numel():
        return
    low, high = (int(bound) for bound in targets.aminmax())
    if low < 0:
        known = targets[targets != IGNORED]
        low = int(known.min()) if known.numel() else 0
    _check_range("targets", low, high, vocabulary, f"a position without a target has {IGNORED}")


def _check_range(name: str, low: int, high: int, vocabulary: int, cure: str) -> None:
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"{name} runs from {low} to {high} and the vocabulary from 0 to {vocabulary - 1}; "
            f"{cure}"
        )


def check_dtype(ids: object, name: str = "ids") -> None:
    """Check that ids are a tensor of integers."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"{name} is {kind}; expected a tensor of int64 or int32 token ids")


def check_tokens(ids: Tensor) -> None:
    """Check dtype and shape of ids, which must hold at least one token per sequence."""
    check_dtype(ids)
    _check_dimensions(ids)
    if ids.shape[-1] == 0:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; expected at least one token")


def _check_dimensions(ids: Tensor) -> None:
    if ids.ndim not in (1, 2):
        raise ValueError(f"ids has shape {tuple(ids.shape)}; expected (B, T) or (T,)")


def check_call(ids: Tensor, config: GPTConfig) -> None:
    """Check the ids of a model's call; on CUDA their values are checked by the device.

    Raises:
        TypeError: `ids` is not a tensor of int64 or int32.
        ValueError: an id lies outside the vocabulary, or the shape is neither ``(B, T)`` nor
            ``(T,)`` with T at most the context.
    """
    check_dtype(ids)
    compiling = torch.compiler.is_compiling()  # reading values would break the graph
    if not (ids.is_cuda or compiling) and abstract_reason(ids, in_trace=False) is None:
        check_ids(ids, config)
    _check_dimensions(ids)
    if ids.shape[-1] > config.context:
        raise ValueError(
            f"ids holds {ids.shape[-1]} tokens and the model's context is {config.context}; pass a "
            f"piece of it, such as ids[..., -{config.context}:]"
        )


def check_logits_to_keep(count: int | Int[Tensor, " N"]) -> None:
    """Check the number of last tokens, or the positions, whose logits are computed.

    Raises:
        TypeError: if it is neither an integer nor a tensor of int64.
        ValueError: if it is negative, or a tensor of other than one dimension.
    """
    if isinstance(count, Tensor):
        if count.dtype != torch.int64:
            raise TypeError(f"logits_to_keep is {count.dtype}; expected positions of int64")
        if count.ndim != 1:
            raise ValueError(
                f"logits_to_keep has shape {tuple(count.shape)}; expected positions (N,)"
            )
        return
    check_whole(count, "logits_to_keep")
    if count < 0:
        raise ValueError(
            f"logits_to_keep is {count}; expected how many last tokens to compute the logits of, "
            "or 0 for all"
        )
