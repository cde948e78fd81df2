"""Models that can be asked for the logits of some positions alone.

Of a model with a large vocabulary, logits are a large part of a run.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from regard.record.intercept._eager import uncompiled

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def takes_logits_to_keep(model: nn.Module) -> bool:
    """Whether a model may be asked for the logits of some positions, and leaves out nothing else.

    That is known of this package's GPT and of models of transformers, as they were written: other
    code may mean something else by the argument, and hooks may read the logits of all positions.
    Ask outside of blocks that see the model's calls by hooks of their own.
    """
    model = uncompiled(model)
    forward = type(model).forward
    if getattr(forward, "__module__", "").split(".")[0] not in {"regard", "transformers"}:
        return False
    parameter = inspect.signature(forward).parameters.get("logits_to_keep")
    return (
        parameter is not None
        and "Tensor" in str(parameter.annotation)
        and not torch.nn.modules.module._has_any_global_hook()  # noqa: SLF001 - torch has no public way
        and not any(_does_more(module) for module in (model, *model.children()))
    )


def _does_more(module: nn.Module) -> bool:
    """Whether calling a module does more than the forward of its class."""
    return "forward" in vars(module) or any(getattr(module, hooks) for hooks in _HOOKS)


def last_logits(count: int) -> dict[str, Any]:
    """The argument that asks for the logits of so many last positions.

    They are named one by one: told how many, Gemma 4 leaves out queries of its last layers, too.
    """
    return {"logits_to_keep": torch.arange(-count, 0)}
