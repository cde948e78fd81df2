"""What a notebook shows of a running explorer: its address, and its page in a frame.

A notebook's page often comes from elsewhere than Python's machine and can't reach the server, or is
not let in by it. So what fits is put into the notebook itself, as a report.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from regard.explorer._report import SIZE, report_html
from regard.explorer.subjects import ExplorerError
from regard.record import RecordError

if TYPE_CHECKING:
    from regard.explorer.subjects import Subject

__all__ = ["explorer_html"]

_WEIGHTS = 2**22
"""Most weights of a report that is made unasked: it takes some seconds."""
_FRAME = 'title="regard explore" allow="clipboard-write" width="100%" height="900"'


def explorer_html(subject: Subject, url: str, port: int) -> str:
    """The link to the page, and below it a frame with a report of it or with the page itself."""
    link = f'<a href="{escape(url)}" target="_blank" rel="noopener">{escape(url)}</a>'
    report = _report(subject)
    if report is not None:
        frame = f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{escape(report)}"'
        note = "Below, a report of the page, which is part of this notebook."
    else:
        frame = f'<iframe src="{escape(url)}"'
        note = (
            "Where the frame below stays empty, as in VS Code, in Colab or with a Jupyter on "
            f"another machine, forward port {port} of the machine that Python runs on, such as by "
            f"ssh -N -L {port}:127.0.0.1:{port} that-machine, and open the link in a browser."
        )
    head = f'<div style="line-height:1.45">regard explore: {link}. {note}</div>'
    return f'{head}{frame} {_FRAME} style="border:0"></iframe>'


def _report(subject: Subject) -> str | None:
    """A report that a notebook has room for; None where the page can do more, or it is too long."""
    about = subject.about()
    runs = [subject.run(name) for name in about["runs"]]
    count = sum(len(run.tokens) ** 2 * len(layer.heads) for run in runs for layer in run.layers)
    if about["writes"] or count > _WEIGHTS:
        return None
    try:
        report = report_html(subject)
    except (ExplorerError, RecordError):  # such as a mask that a report can't hold
        return None
    return report if len(report) <= SIZE else None
