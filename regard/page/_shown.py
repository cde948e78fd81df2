"""What is handed to the explorer from Python: a recording, a model, or a subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn

from regard._modules import require_whole, unwrapped
from regard.gpt import GPT
from regard.page._recording_subject import RecordingSubject
from regard.page.subjects import ModelSubject
from regard.record import Recording

if TYPE_CHECKING:
    from regard.gpt import Tokenizer
    from regard.page.subjects import Subject

__all__ = ["as_subject"]


def as_subject(
    shown: Recording | GPT | Subject,
    *,
    tokenizer: Tokenizer | None = None,
    text: str | None = None,
    title: str | None = None,
) -> Subject:
    """What the explorer shows of a recording, or of a model with its tokenizer.

    Raises:
        PageError: there is nothing in it to show.
        ValueError: for a model that FSDP shards.
        TypeError: for a model without a tokenizer, anything else with a tokenizer or a text, and
            what is neither.
    """
    if isinstance(shown, nn.Module):
        require_whole(shown)
        shown = cast("GPT", unwrapped(shown))
    if isinstance(shown, GPT):
        if tokenizer is None:
            raise TypeError(
                "a model reads texts by its tokenizer; give tokenizer=..., which regard.gpt.load "
                "returns with the model"
            )
        return ModelSubject(shown, tokenizer, title=title or "model", text=text)
    kind = type(shown).__name__
    if tokenizer is not None or text is not None:
        raise TypeError(f"tokenizer and text go with a model of regard.gpt; this is a {kind}")
    if isinstance(shown, Recording):
        return RecordingSubject(shown, title=title or "recording")
    if not hasattr(shown, "about"):
        raise TypeError(
            f"shown is a {kind}; it must be a recording, as regard.record makes of any model's "
            "run, or a model of regard.gpt"
        )
    return shown
