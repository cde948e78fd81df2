"""Modules: their hooks, and the wrappers of torch.compile, DataParallel, DDP and FSDP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.nn.modules import module as torch_modules

_NAMES = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}

_SHARDED = (
    "is sharded over processes (FSDP), but all weights are needed here: gather them with "
    "torch.distributed.checkpoint.state_dict.get_model_state_dict with "
    "StateDictOptions(full_state_dict=True), and load them into an unsharded model"
)


def has_hooks(module: nn.Module) -> bool:
    """Return True if calling a module does more than its class's forward."""
    return has_own_hooks(module) or bool(torch_modules._has_any_global_hook())  # noqa: SLF001 - torch has no public way


def has_own_hooks(module: nn.Module) -> bool:
    """Like `has_hooks`, ignoring global hooks, which are also called for its submodules."""
    return bool(
        module._forward_hooks  # noqa: SLF001 - torch has no public way
        or module._forward_pre_hooks  # noqa: SLF001 - likewise
        or module._backward_hooks  # noqa: SLF001 - likewise
        or module._backward_pre_hooks  # noqa: SLF001 - likewise
        or module._compiled_call_impl is not None  # noqa: SLF001 - likewise
        or "forward" in vars(module)
    )


def of_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a module's hook that does nothing when another thread runs the module.

    Torch may call a hook on another thread without its keyword arguments while this thread removes
    it.
    """
    thread = get_ident()

    def called(*args: Any) -> Any:
        return hook(*args) if get_ident() == thread else None

    return called


@runtime_checkable
class HasModule(Protocol):
    """What carries a module, such as a `regard.models.LanguageModel`."""

    module: nn.Module


def module_of(model: Any) -> Any:
    """Return the module that a language model carries, see `regard.models`; else what was given."""
    inner = None if isinstance(model, nn.Module) else getattr(model, "module", None)
    return inner if isinstance(inner, nn.Module) else model


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside ``torch.compile``, `DataParallel` and `DistributedDataParallel`.

    FSDP wrappers are kept, since the weights are gathered only during the wrapper's own call.
    """
    while True:
        is_copy = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = model.module if is_copy else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def unwrapped_name(path: str) -> str:
    """Remove the names of wrappers from the path of a module or parameter.

    >>> unwrapped_name("h.0._orig_mod.attn")
    'h.0.attn'
    """
    return ".".join(part for part in path.split(".") if part not in _NAMES)


def is_sharded(model: object) -> bool:
    """Return True if this process holds only shards of the weights: FSDP, or any DTensor."""
    if not isinstance(model, nn.Module):
        return False  # the caller reports the wrong type
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(fsdp, "FullyShardedDataParallel", ())
    return any(isinstance(module, wrapper) for module in model.modules()) or any(
        map(_is_distributed, model.parameters())
    )


def require_whole(model: object) -> None:
    """Raise ValueError if a model is sharded, before its weights are read outside its forward."""
    if is_sharded(model):
        raise ValueError(f"model {_SHARDED}")


def require_whole_state(state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError if a state dict comes from a sharded model."""
    if any(map(_is_distributed, state_dict.values())):
        raise ValueError(f"state_dict {_SHARDED}")


def _is_distributed(tensor: object) -> bool:
    return hasattr(tensor, "device_mesh")
