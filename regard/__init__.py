"""Causal self-attention that you can see inside.

The attention weights of a model are a lazy matrix: computed at the speed of a fused kernel, never
stored, and exact wherever you look.

The names that most programs need are here; the others are in rooms: `regard.masks`,
`regard.readouts`, `regard.lens` (interpretation), `regard.models` (any language model by its name),
`regard.gpt` and `regard.nn` (our own).
"""

from typing import TYPE_CHECKING, Any

from regard import _display
from regard._faces import make_lazy

if TYPE_CHECKING:
    from regard import gpt, lens, masks, models, nn, readouts, steps
    from regard.attention import attention, attention_with_pattern
    from regard.errors import Error
    from regard.intervene import intervene
    from regard.lens import Monitor
    from regard.masks import Mask, causal, dense, documents, padding, window
    from regard.page import explore, report
    from regard.pattern import Pattern
    from regard.record import Recording, load, record
    from regard.sdpa import scaled_dot_product_attention
    from regard.steps import explain

__all__ = [
    "Error",
    "Mask",
    "Monitor",
    "Pattern",
    "Recording",
    "attention",
    "attention_with_pattern",
    "causal",
    "dense",
    "documents",
    "explain",
    "explore",
    "gpt",
    "intervene",
    "lens",
    "load",
    "masks",
    "models",
    "nn",
    "padding",
    "readouts",
    "record",
    "report",
    "scaled_dot_product_attention",
    "steps",
    "window",
]

_ROOMS = {"gpt", "lens", "masks", "models", "nn", "readouts", "steps"}
_HOMES = {
    "Error": "errors",
    "Mask": "masks",
    "Monitor": "lens",
    "Pattern": "pattern",
    "Recording": "record",
    "attention": "attention",
    "attention_with_pattern": "attention",
    "causal": "masks",
    "dense": "masks",
    "documents": "masks",
    "explain": "steps",
    "explore": "page",
    "intervene": "intervene",
    "load": "record",
    "padding": "masks",
    "record": "record",
    "report": "page",
    "scaled_dot_product_attention": "sdpa",
    "window": "masks",
}


def _renderer(name: str) -> Any:
    """Import a renderer on first use, since it needs more than torch."""
    from regard import view

    return view.renderer(name)


_display.find_with(_renderer)

make_lazy(__name__, _HOMES, _ROOMS)
