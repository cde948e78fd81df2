"""Models of `transformers`: which can be changed, and which attention their configurations name.

Models of `transformers` call the attention function registered under the name in their
configuration. Writing another name there would show up in every copy made meanwhile, and on every
thread. So the property from which models read the name is replaced, on the class, and answers for
the configurations of this thread's blocks. Blocks may end in any order; the last to end on any
thread restores the property.

A class can be changed if its file calls the registered attention function. Other classes compute
attention themselves whatever the name is, and some of these still request the mask of that name.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from regard._modules import has_hooks, unwrapped
from regard.errors import RecordError
from regard.intercept._recomputation import depends_on
from regard.intercept._scopes import Scope, open_scope

NAME = "regard"
_KEPT = (None, "sdpa", NAME)
"""Implementations whose calls need no replacement to be seen; None is no attention."""

_lock = (
    threading.RLock()
)  # reentrant: garbage collection may close an abandoned block while it is held
_replaced: dict[int, _Replaced] = {}
"""By id of the configuration."""
_properties: dict[type, property] = {}
"""Original properties of the classes whose property is replaced."""


class _Replaced:
    """A configuration that names `regard` within some blocks."""

    def __init__(self, config: Any) -> None:
        self.config = config  # keeps it alive, so that its id stays unique
        self.own = own_name(config)
        self.blocks: list[Scope] = []

    def is_seen(self) -> bool:
        """Return whether the current call belongs to one of the blocks."""
        return any(block.holds() for block in self.blocks)


def own_name(config: Any) -> str | None:
    """Return the implementation that a configuration names outside of all blocks, if any."""
    return getattr(config, "_attn_implementation_internal", None)  # the property is replaced


def calls_unseen(name: str | None) -> bool:
    """Return whether an implementation is known never to call SDPA.

    These are the implementations of `transformers` and of its kernels, which are named by a
    repository, but not those registered by a user.
    """
    if name in _KEPT:
        return False
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    registered = ALL_ATTENTION_FUNCTIONS.get(name)  # "eager" is not
    return (
        registered is None
        or "/" in name
        or str(getattr(registered, "__module__", "")).startswith("transformers.")
    )


@contextmanager
def naming_regard(configs: Sequence[Any]) -> Iterator[None]:
    """Make configurations name `regard` for models that run in this block, on this thread.

    An implementation set inside the block persists; it applies at once if its calls are seen.
    """
    with open_scope() as block:
        with _lock:
            for config in configs:
                _begin(config, block)
        try:
            yield
        finally:
            with _lock:
                for config in configs:
                    _end(config, block)


def _begin(config: Any, block: Scope) -> None:
    kind = next(base for base in type(config).__mro__ if "_attn_implementation" in vars(base))
    replaced = _replaced.setdefault(id(config), _Replaced(config))
    replaced.blocks.append(block)  # first, so that a block that ends concurrently is not the last
    if kind not in _properties:
        own = _properties[kind] = vars(kind)["_attn_implementation"]
        kind._attn_implementation = property(_name, own.fset)  # type: ignore[attr-defined]  # noqa: SLF001 - its only name


def _name(config: Any) -> str | None:
    """Replacement of the property ``_attn_implementation`` of a configuration."""
    if not _names_regard(config):
        return own_name(config)
    depends_on(config, partial(_names_regard, config))
    return NAME


def _names_regard(config: Any) -> bool:
    replaced = _replaced.get(id(config))
    return replaced is not None and calls_unseen(own_name(config)) and replaced.is_seen()


def _end(config: Any, block: Scope) -> None:
    replaced = _replaced[id(config)]
    replaced.blocks.remove(block)
    if not replaced.blocks:
        del _replaced[id(config)]
        if own_name(config) == NAME:  # a model made from it copied the name
            config._attn_implementation_internal = replaced.own  # noqa: SLF001 - likewise
    if not _replaced:
        for kind, own in _properties.items():
            kind._attn_implementation = own  # type: ignore[attr-defined]  # noqa: SLF001 - its only name
        _properties.clear()


def require_replaceable(module: Any, implementation: str) -> None:
    """Refuse to replace the attention of a module that would ignore it.

    Args:
        module: a module of a model, with a configuration.
        implementation: of its attention.

    Raises:
        RecordError: for a model that computes its own attention, or uses a paged cache.
    """
    kind = type(module)
    if implementation.startswith("paged|"):
        raise RecordError(
            f"{kind.__name__} attends over a paged cache ({implementation!r}), which is not "
            "recorded; call model.set_attn_implementation('sdpa')"
        )
    if not hasattr(kind, "_can_set_attn_implementation"):  # a part of a model
        return
    if not kind._can_set_attn_implementation():  # noqa: SLF001 - its only name
        cure = "it supports 'sdpa': call model.set_attn_implementation('sdpa')"
        if not getattr(kind, "_supports_sdpa", False):
            cure = "its attention is its own; take its weights with output_attentions=True"
        raise RecordError(
            f"{kind.__name__} computes {implementation!r} attention and does not let it be "
            f"replaced; {cure}"
        )


def require_mask_interface(config: Any) -> None:
    """Refuse to make a mask for a model that would use it in its own attention code.

    Args:
        config: the configuration of the model that asks; None if it is not known.

    Raises:
        RecordError: for a model that computes its own attention.
    """
    if not _calls_registered_attention(type(config)):
        raise RecordError(
            f"a model of type {config.model_type!r} computes attention of its own, whatever "
            "attn_implementation says, and would misread the mask of 'regard'; load it with "
            "attn_implementation='eager'"
        )


def _calls_registered_attention(config: type) -> bool:
    """Return whether the models in a configuration's file call the registered attention."""
    name = config.__module__.replace(".configuration_", ".modeling_")
    for kind in vars(sys.modules[name]).values() if name in sys.modules else ():
        can_choose = getattr(kind, "_can_set_attn_implementation", None)
        if can_choose is not None and kind.__module__ == name:  # not one that the file imports
            return bool(can_choose())
    return True


def takes_logits_to_keep(model: nn.Module) -> bool:
    """Return whether a model accepts positions in ``logits_to_keep`` and then skips only logits.

    That is known of this package's GPT and of models of transformers without hooks: other code may
    give the argument another meaning, and hooks may read the logits of all positions. Call it
    outside of blocks, which install hooks.
    """
    model = unwrapped(model)
    forward = type(model).forward
    if getattr(forward, "__module__", "").split(".")[0] not in {"regard", "transformers"}:
        return False
    parameter = inspect.signature(forward).parameters.get("logits_to_keep")
    takes_positions = parameter is not None and "Tensor" in str(parameter.annotation)
    return takes_positions and not any(map(has_hooks, (model, *model.children())))


def last_logits(count: int) -> dict[str, Any]:
    """Return the argument for only the logits of the last positions.

    Positions are a tensor, since with an integer Gemma 4 also skips queries of its last layers.
    """
    return {"logits_to_keep": torch.arange(-count, 0, device="cpu")}
