"""How well a model predicts a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from regard.gpt._incremental import evaluating
from regard.gpt.training.update import document_mask

if TYPE_CHECKING:
    from torch import Tensor

    from regard.gpt.model import GPT
    from regard.gpt.training.ranks import Ranks


def evaluate(model: GPT, tokens: Tensor, *, batch: int = 16, end: int | None = None) -> float:
    """The mean loss of a model on a text, in nats a token.

    The text is cut into windows of the model's context; every token but the first is predicted
    once, from those before it in its window.

    Args:
        model: the model; it runs in evaluation mode and is left as it was.
        tokens: ``(N,)`` ids on the model's device, at least two.
        batch: windows at a time.
        end: the token that ends a document, beyond which attention is not to look; None: it looks
            at the whole window.

    Raises:
        ValueError: `tokens` has fewer than two.
    """
    return mean_loss(model, tokens, batch=batch, end=end)


def mean_loss(
    model: GPT, tokens: Tensor, *, batch: int, end: int | None, ranks: Ranks | None = None
) -> float:
    """What `evaluate` tells; `ranks` share the work, and all of them learn it."""
    if len(tokens) < 2:
        raise ValueError(f"tokens holds {len(tokens)}; expected at least two, one to predict")
    context = model.config.context
    whole = (len(tokens) - 1) // context * context
    pieces = list(
        zip(
            tokens[:whole].view(-1, context).split(batch),
            tokens[1 : whole + 1].view(-1, context).split(batch),
            strict=True,
        )
    )
    if whole < len(tokens) - 1:
        pieces.append((tokens[whole:-1][None], tokens[whole + 1 :][None]))

    def loss(ids: Tensor, targets: Tensor) -> float:
        logits = model(ids, mask=document_mask(ids, end))  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()

    if ranks is None:
        with evaluating(model):
            total = sum(loss(*piece) for piece in pieces)
        return total / (len(tokens) - 1)
    rounds = [pieces[start : start + ranks.size] for start in range(0, len(pieces), ranks.size)]
    with evaluating(model):  # as often on every rank, each of which may hold a piece of the model
        losses = [loss(*(found[ranks.rank :] or found)[0]) for found in rounds]
    if ranks.rank >= len(rounds[-1]):
        losses.pop()  # another rank's
    added = ranks.add_up(torch.tensor(sum(losses), dtype=torch.float64, device=tokens.device))
    return added.item() / (len(tokens) - 1)
