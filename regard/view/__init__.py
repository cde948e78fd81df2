"""Display of attention in terminals, notebooks and figures.

`regard.view.terminal` and `regard.view.report` need rich, `regard.view.plot` needs matplotlib, and
`regard.view.notebook` needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

# Renderers of objects of lower rooms, found by `regard._display.show`, and their modules.
_RENDERERS = {
    "as_text": "terminal",
    "atlas_difference_text": "differences",
    "effects_html": "notebook",
    "fidelity_html": "tables",
    "heads_html": "tables",
    "link_effects_html": "spans",
    "link_effects_text": "spans",
    "logit_parts_text": "effects",
    "pattern_html": "notebook",
    "plot_effects": "plot",
    "plot_heads": "plot",
    "plot_link_effects": "plot",
    "plot_monitor": "plot",
    "plot_pattern": "plot",
    "plot_steps": "plot",
    "readings_html": "tables",
    "recording_html": "notebook",
    "span_weights_html": "spans",
    "span_weights_text": "spans",
    "step_tables": "terminal",
    "steps_html": "notebook",
}


def renderer(name: str) -> Callable[..., Any]:
    """Import a renderer by its name.

    Raises:
        ImportError: without a library that the renderer needs.
    """
    show: Callable[..., Any] = getattr(import_module(f"regard.view.{_RENDERERS[name]}"), name)
    return show
