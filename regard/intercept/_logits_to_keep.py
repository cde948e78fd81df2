"""Models that compute the logits of some positions alone, where they are given ``logits_to_keep``.

Of a model with a large vocabulary, logits are a large part of a run.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from regard._modules import has_hooks, unwrapped


def takes_logits_to_keep(model: nn.Module) -> bool:
    """Whether a model takes positions in ``logits_to_keep``, and then leaves out logits alone.

    That is known of this package's GPT and of models of transformers, as they were written: other
    code may mean something else by the argument, and hooks may read the logits of all positions.
    To be called outside of blocks, which see a model's calls by hooks of their own.
    """
    model = unwrapped(model)
    forward = type(model).forward
    if getattr(forward, "__module__", "").split(".")[0] not in {"regard", "transformers"}:
        return False
    parameter = inspect.signature(forward).parameters.get("logits_to_keep")
    takes_positions = parameter is not None and "Tensor" in str(parameter.annotation)
    return takes_positions and not any(map(has_hooks, (model, *model.children())))


def last_logits(count: int) -> dict[str, Any]:
    """The argument for the logits of so many last positions alone.

    Given their number in place of a tensor, Gemma 4 leaves out queries of its last layers, too.
    """
    return {"logits_to_keep": torch.arange(-count, 0, device="cpu")}
