"""Whether calling a module does more than the forward of its class."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_modules


def has_hooks(module: nn.Module) -> bool:
    """Whether calling a module does more than the forward of its class."""
    return has_own_hooks(module) or bool(torch_modules._has_any_global_hook())  # noqa: SLF001 - torch has no public way


def has_own_hooks(module: nn.Module) -> bool:
    """The same, but for hooks of all modules, which are called for its submodules too."""
    return bool(
        module._forward_hooks  # noqa: SLF001 - torch has no public way
        or module._forward_pre_hooks  # noqa: SLF001 - likewise
        or module._backward_hooks  # noqa: SLF001 - likewise
        or module._backward_pre_hooks  # noqa: SLF001 - likewise
        or module._compiled_call_impl is not None  # noqa: SLF001 - likewise
        or "forward" in vars(module)
    )
