"""Causal self-attention that you can see inside.

The attention weights of a model are a lazy matrix: computed at the speed of a fused kernel, never
stored, and exact wherever you look.

What most programs need stands here; the rest in its room: `regard.masks`, `regard.readouts`,
`regard.lens` (what attention means), `regard.gpt` and `regard.nn` (models of our own).
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from regard import _display

if TYPE_CHECKING:
    from regard import gpt, lens, masks, nn, readouts, steps
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
    "nn",
    "padding",
    "readouts",
    "record",
    "report",
    "scaled_dot_product_attention",
    "steps",
    "window",
]

_ROOMS = {"gpt", "lens", "masks", "nn", "readouts", "steps"}
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
    """Import what shows a thing when it is shown: that needs more than torch."""
    from regard import view

    return view.renderer(name)


_display.find_with(_renderer)


def __getattr__(name: str) -> Any:
    """Import a room, or what stands in one, when it is first asked for: the command needs few."""
    if name in _ROOMS:
        return import_module(f"regard.{name}")
    if name in _HOMES:
        value = getattr(import_module(f"regard.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Face(ModuleType):
    """The package, where `record` is the function although a room has its name.

    Whoever imports a module sets it as an attribute of its package, which would hide the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
