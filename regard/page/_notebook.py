"""Whether a notebook's cell runs this Python, what it can show, and a picture for it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from regard.record import Recording
from regard.record.layer import Labels
from regard.view.notebook import recording_png

if TYPE_CHECKING:
    from regard.page.subjects import Subject

__all__ = ["heads_png", "in_notebook", "shows_widgets"]


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


def heads_png(subject: Subject) -> str | None:
    """The heads of a subject's first text, a PNG in base64; None where matplotlib is missing."""
    run = subject.run(subject.about()["runs"][0])
    return recording_png(Recording(lambda: list(run.layers), lambda: Labels((run.tokens,))))
