"""Figures for papers and notebooks, drawn with matplotlib (the extra ``plot``).

`Pattern.plot`, `Recording.plot_heads`, `Steps.plot`, `Effects.plot`, `LinkEffects.plot` and
`Monitor.plot` draw with it. Each returns a `matplotlib.figure.Figure` made without pyplot, so it
needs no display and has no global state.
"""

from __future__ import annotations

from regard._extras import install

try:
    import matplotlib  # noqa: F401, ICN001 - only whether it is there
except ModuleNotFoundError as missing:
    message = f"drawing needs {missing.name}: {install('plot')}"
    raise ImportError(message, name=missing.name) from missing

from regard.view.plot.effects import plot_effects
from regard.view.plot.heads import plot_heads
from regard.view.plot.links import plot_link_effects
from regard.view.plot.monitor import plot_monitor
from regard.view.plot.pattern import plot_pattern
from regard.view.plot.steps import plot_steps

__all__ = [
    "plot_effects",
    "plot_heads",
    "plot_link_effects",
    "plot_monitor",
    "plot_pattern",
    "plot_steps",
]
