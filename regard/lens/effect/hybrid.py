"""Hybrid models, in which tokens also reach each other through recurrences and convolutions."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from regard._modules import unwrapped

__all__ = ["hybrid_note", "warn_of_hybrid"]

# What configurations of transformers call such layers; those named hybrid have attention as well.
_NAMES = {"linear_attention", "mamba", "recurrent", "conv", "hybrid", "hybrid_sliding"}


def hybrid_note(model: nn.Module) -> str | None:
    """What hiding tokens from attention leaves open in a hybrid model of transformers.

    None for any other model, as far as its configuration says.
    """
    text = _text_config(getattr(unwrapped(model), "config", None))
    layers = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if not isinstance(layers, (list, tuple)):
        return None
    others = [name for name in layers if name in _NAMES]
    if not others:
        return None
    kinds = ", ".join(sorted(set(others)))
    return (
        f"tokens reach each other without attention in {len(others)} of the model's {len(layers)} "
        f"layers ({kinds}): what is hidden from attention can still be read there"
    )


def _text_config(config: Any) -> Any:
    try:
        return config.get_text_config() if hasattr(config, "get_text_config") else config
    except ValueError:  # it has several
        return None


def warn_of_hybrid(model: nn.Module) -> None:
    """Warn the caller of the caller that hiding tokens from attention does not hide them wholly."""
    note = hybrid_note(model)
    if note is not None:
        warnings.warn(note, RuntimeWarning, stacklevel=3)
