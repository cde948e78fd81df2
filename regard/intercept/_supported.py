"""Which models of `transformers` let their attention be replaced.

A class is supported if its file calls the attention registered under the name in its
configuration. Others compute their own attention whatever the name is, and some of these ask for
the mask of that name all the same.
"""

from __future__ import annotations

import sys
from typing import Any

from regard.errors import RecordError


def require_replaceable(module: Any, implementation: str) -> None:
    """Refuse to replace the attention of a module that would ignore it.

    Args:
        module: a module of a model, with a configuration.
        implementation: of its attention.

    Raises:
        RecordError: for a model whose attention is its own, or goes over a paged cache.
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
    """Refuse to make a mask for a model that would use it in attention of its own.

    Args:
        config: the configuration of the model that asks; None if it is not known.

    Raises:
        RecordError: for a model whose attention is its own.
    """
    if not _calls_registered_attention(type(config)):
        raise RecordError(
            f"a model of type {config.model_type!r} computes attention of its own, whatever "
            "attn_implementation says, and would misread the mask of 'regard'; load it with "
            "attn_implementation='eager'"
        )


def _calls_registered_attention(config: type) -> bool:
    """Whether the models in the file of a configuration let their attention be replaced."""
    name = config.__module__.replace(".configuration_", ".modeling_")
    for kind in vars(sys.modules[name]).values() if name in sys.modules else ():
        can_choose = getattr(kind, "_can_set_attn_implementation", None)
        if can_choose is not None and kind.__module__ == name:  # not one that the file imports
            return bool(can_choose())
    return True
