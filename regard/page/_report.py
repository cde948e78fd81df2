"""Reports: the page in one file, with a recording's numbers or with the model itself.

Its contents are made in `regard.page.file`; what holds a model, in `regard.page._live`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard._files import replace_file
from regard.page._errors import PageError
from regard.page._live import live_html, write_folder
from regard.page._run import views_with
from regard.page.file.report import ReportRun, objection, report_page, tokens_within
from regard.page.subjects import as_subject

if TYPE_CHECKING:
    from torch import nn

    from regard.inputs import Problem
    from regard.models import LanguageModel
    from regard.page._run import Run
    from regard.page.subjects import Subject
    from regard.record import Recording

__all__ = ["LARGEST", "report", "report_html"]

LARGEST = 32_000_000
"""Largest report, in bytes."""
WEIGHTS = 2**27
"""Largest number of weights of a report: a browser computes them all for the heads' pictures."""


def report(
    shown: Recording | LanguageModel | nn.Module | Subject,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    start: str = "",
    live: bool = False,
    tokenizer: Any = None,
    text: str | None = None,
) -> int:
    """Write the page as one HTML file that opens offline, without a server.

    The file holds queries, keys and log-sum-exps, kept in few bits, and values where they are
    known; the page recomputes every weight from them and says how far off it may be.

    A live report holds the model itself, which runs in the page: over any text, one token after the
    other, and with its attention changed. In one file the model is as it is; in a folder its
    matrices are rounded to int8, one scale a row, and a browser fetches them in pieces and keeps
    them. The page says what the rounding costs: the perplexity of a text beside float32. A GGUF
    that was opened with ``weights="blocks"`` is put into a folder as it is.

    Args:
        shown: a recording, a language model as `regard.models.open` returns, a module with its
            tokenizer, or another subject.
        path: the file; one that is there is replaced. Of a live report, a name without a suffix is
            a folder for any static host, which must not be there or be empty.
        title: what the page calls a recording or a model.
        start: what the page opens with, as in a page's address after ``#``.
        live: whether it holds the model: of regard.gpt, or of Llama's or GPT-2's shape. A file
            takes at most 12 MB, weights in half precision where that holds them exactly; a folder
            a model of at most 200 MB: in int8, as many parameters.
        tokenizer: of a module, its own.
        text: of a model, what it reads first; None is an example.

    Returns:
        The bytes written.

    Raises:
        PageError: for masks and biases that are not intervals, NaN, and what is too
            long for a file; live, for a recording, a tokenizer that a page can't reproduce, a
            model that is too large or of another shape, and one whose perplexity int8 raises by
            more than 1 %.
        TypeError: a module comes without its tokenizer, something else with one, or what is
            neither a model nor a recording.
        OSError: if the file can't be written, or is a folder, a pipe or the like; or the folder is
            not empty.

    Example:
        >>> import os, tempfile, regard
        >>> from regard.gpt import load
        >>> model, tokenizer = load()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "cat.html")
        ...     size = regard.report(model, file, tokenizer=tokenizer, text="The cat", live=True)
        >>> size < 12_000_000
        True
    """
    subject = as_subject(shown, tokenizer=tokenizer, text=text, title=title)
    target = Path(path)
    if live and not target.suffix and not target.is_file():
        return write_folder(subject, target, start=start)
    if target.exists() and not target.is_file():  # such as /dev/stdout, which must not be replaced
        raise FileExistsError(f"{path} exists and is not a regular file")
    page = live_html(subject, start=start) if live else report_html(subject, start=start)
    data = page.encode()
    replace_file(target, data)
    return len(data)


def report_html(subject: Subject, *, start: str = "") -> str:
    """Make the report's HTML; see `report`."""
    opened = [subject.run(name) for name in subject.about()["runs"]]
    for run in opened:
        if run.objection is not None:
            raise PageError(
                f"{run.objection}, and a report holds them: give a shorter text, or use regard "
                "explore"
            )
    runs = [
        ReportRun(description=run.describe(), scores=[], layers=_problems(run), values=run.values)
        for run in opened
    ]
    about = {**subject.about(), "writes": False, "generates": False, "example": None}
    about |= {"report": True, "start": start, "views": views_with(_without_view)}
    about.pop("training", None)  # which only a server has
    heads = [head for run in runs for layer in run.layers for head in layer]
    count = sum(head.queries * head.keys for head in heads)
    if count > WEIGHTS:
        why = f"stands for {count:,} weights, and browsers compute at most {WEIGHTS:,}"
        raise _too_long(about, runs, why)
    page = report_page(about, [_scored(subject, run) for run in runs])
    size = len(page.encode())
    if size > LARGEST:
        why = f"takes {size / 1e6:.0f} MB, and at most {LARGEST / 1e6:.0f} MB are written"
        raise _too_long(about, runs, why)
    return page


def _without_view(view: str) -> str | None:
    if view == "weight":
        return None
    return "a report of numbers shows the weights; a live report and regard explore have this view"


def _scored(subject: Subject, run: ReportRun) -> ReportRun:
    scores = subject.run(run.description["id"]).scores
    return replace(run, scores=[scores(place) for place in range(len(run.layers))])


def _too_long(about: dict[str, Any], runs: Sequence[ReportRun], why: str) -> PageError:
    """Error for texts that are too long, with the largest length within all limits."""
    heads = [head for run in runs for layer in run.layers for head in layer]
    length = max(head.queries for head in heads)
    count = sum(head.queries * head.keys for head in heads)
    most = min(isqrt(WEIGHTS * length**2 // count), tokens_within(LARGEST, about, runs))
    return PageError(
        f"a report of these {len(heads)} heads on {length} tokens {why}: give at most {most} "
        "tokens, or use regard explore"
    )


def _problems(run: Run) -> list[list[Problem]]:
    """Problems of all heads by layer, after a check that a page can recompute them."""
    layers = []
    for place, layer in enumerate(run.layers):
        heads = [run.head(place, head).problem for head in range(len(layer.heads))]
        for why in filter(None, map(objection, heads)):
            raise PageError(
                f"{layer.name or f'layer {layer.index}'} {why}, which a report can't "
                "recompute; use regard explore"
            )
        layers.append(heads)
    return layers
