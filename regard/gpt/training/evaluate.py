"""The loss of a model on a text."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.gpt.model import GPT
from regard.gpt.training.batches import document_mask
from regard.gpt.training.ranks import Ranks
from regard.gpt.unwrap import as_gpt, evaluating


def evaluate(model: GPT, tokens: Tensor, *, batch: int = 16, end: int | None = None) -> float:
    """Compute the mean loss of a model on a text, in nats per token.

    The text is cut into windows of the model's context; every token but the first is predicted
    once, from those before it in its window.

    Args:
        model: the model, which runs in evaluation mode and is restored to its mode afterwards.
        tokens: ``(N,)`` ids on the model's device, at least two.
        batch: number of windows per forward pass.
        end: the token that ends a document, across which attention is masked; None for no mask.

    Raises:
        ValueError: `tokens` has fewer than two.

    Example:
        >>> import torch
        >>> from regard.gpt import evaluate, load
        >>> model, tokenizer = load()
        >>> evaluate(model, torch.tensor(tokenizer.encode("The cat sat on the mat."))) > 0
        True
    """
    return mean_loss(as_gpt(model, whole=False), tokens, batch=batch, end=end)


def mean_loss(
    model: GPT, tokens: Tensor, *, batch: int, end: int | None, ranks: Ranks | None = None
) -> float:
    """Return the loss of `evaluate`, on every rank; `ranks` share the work."""
    if len(tokens) < 2:
        raise ValueError(f"tokens holds {len(tokens)}; expected at least two, one to predict")
    context = model.config.context
    end_of_windows = (len(tokens) - 1) // context * context
    batches = list(
        zip(
            tokens[:end_of_windows].view(-1, context).split(batch),
            tokens[1 : end_of_windows + 1].view(-1, context).split(batch),
            strict=True,
        )
    )
    if end_of_windows < len(tokens) - 1:
        batches.append((tokens[end_of_windows:-1][None], tokens[end_of_windows + 1 :][None]))

    def loss(ids: Tensor, targets: Tensor) -> Tensor:
        ones = torch.ones_like(ids, dtype=torch.float32)
        return model.loss(ids, targets, ones, mask=document_mask(ids, end))  # the sum of all

    rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    rounds = [batches[start : start + size] for start in range(0, len(batches), size)]
    with evaluating(model):
        losses = [loss(*own[rank]) for own in rounds if rank < len(own)]
    total = sum(torch.stack(losses).tolist()) if losses else 0.0  # one read
    if ranks is not None and size > 1:
        total = ranks.sum(torch.tensor(total, dtype=torch.float64, device=tokens.device)).item()
    return total / (len(tokens) - 1)
