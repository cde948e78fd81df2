"""Live reports: the page with the model in it, whose data `regard.page.file.live` makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.page._errors import PageError
from regard.page.file.live import live_page, objection_to_tokenizer
from regard.page.subjects import ModelSubject

if TYPE_CHECKING:
    from regard.page.subjects import Subject

__all__ = ["LIVE_SIZE", "live_html"]

LIVE_SIZE = 12_000_000
"""Bytes of the largest live report that is written."""


def live_html(subject: Subject, *, start: str = "") -> str:
    """Make a live report's HTML; see `regard.page.report`."""
    if not isinstance(subject, ModelSubject):
        raise PageError("a recording has no model that could run in the page; leave live out")
    model, tokenizer, run, ids = subject.first()
    if model.has_int8_weights:
        raise PageError(
            "a page computes in float32, and the model has int8 weights: load it without "
            'weights="int8", or leave live out'
        )
    why = objection_to_tokenizer(tokenizer)
    if why is not None:
        raise PageError(
            f"a page can't encode as this tokenizer does: {why}; leave live out, or use "
            "regard explore"
        )
    # What is far too large is not packed: its weights alone, in half precision.
    _require_small(2 * sum(parameter.numel() for parameter in model.parameters()))
    about = subject.about() | {"report": True, "live": True, "runs": ["1"], "start": start}
    about.pop("training", None)  # the server alone has it
    page = live_page(model, tokenizer, about, ids, run.notes)
    _require_small(len(page.encode()))
    return page


def _require_small(size: int) -> None:
    if size > LIVE_SIZE:
        raise PageError(
            f"a live report of this model takes {size / 1e6:.0f} MB or more, and at most "
            f"{LIVE_SIZE / 1e6:.0f} MB are written: leave live out, or use regard explore. Weights "
            "that float16 holds exactly take half the room of others"
        )
