"""Models inside what torch wraps them in: torch.compile, DataParallel, DDP and FSDP."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

_NAMES = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}

_SHARDED = (
    "is sharded over processes (FSDP), and is needed whole: gather the weights by "
    "torch.distributed.checkpoint.state_dict.get_model_state_dict with "
    "StateDictOptions(full_state_dict=True), and load them into a model that is not sharded"
)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, `DataParallel` and `DistributedDataParallel`.

    What FSDP wraps stays wrapped: inside, the weights are whole during the wrapper's own call only.
    """
    while True:
        is_copy = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = model.module if is_copy else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def unwrapped_name(path: str) -> str:
    """The path of a module or a parameter without the names of wrappers in it.

    >>> unwrapped_name("h.0._orig_mod.attn")
    'h.0.attn'
    """
    return ".".join(part for part in path.split(".") if part not in _NAMES)


def is_sharded(model: object) -> bool:
    """Whether this process has only shards of the weights: FSDP, or any distributed tensor."""
    if not isinstance(model, nn.Module):
        return False  # whoever takes a model says so
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(fsdp, "FullyShardedDataParallel", ())
    return any(isinstance(module, wrapper) for module in model.modules()) or any(
        map(_is_distributed, model.parameters())
    )


def require_whole(model: object) -> None:
    """Raise ValueError where a model is sharded, for what reads its weights outside of its call."""
    if is_sharded(model):
        raise ValueError(f"model {_SHARDED}")


def require_whole_state(state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError where a state dict is that of a sharded model."""
    if any(map(_is_distributed, state_dict.values())):
        raise ValueError(f"state_dict {_SHARDED}")


def _is_distributed(tensor: object) -> bool:
    return hasattr(tensor, "device_mesh")
