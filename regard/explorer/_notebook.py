"""Whether a notebook's cell runs this Python, and what it can show."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["in_notebook", "shows_widgets"]


def in_notebook() -> bool:
    """Whether a kernel of Jupyter or marimo runs this Python: what a cell ends with is shown."""
    ipython, marimo = sys.modules.get("IPython"), sys.modules.get("marimo")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return True
    return marimo is not None and bool(marimo.running_in_notebook())


def shows_widgets() -> bool:
    """Whether a cell can show a widget: in a notebook that has anywidget."""
    return in_notebook() and find_spec("anywidget") is not None
