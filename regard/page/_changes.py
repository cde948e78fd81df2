"""Changes of a model's attention, as the page states them: heads switched off, keys cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from torch import nn

from regard.intervene import intervene
from regard.page._errors import PageError
from regard.page._fields import Fields, Number, Span

if TYPE_CHECKING:
    from regard.page._run import Run

__all__ = [
    "MOST",
    "Change",
    "Changes",
    "Cut",
    "SwitchOff",
    "changed",
    "check_changes",
    "require_range",
]

MOST = 64
"""Most changes of a run."""


class SwitchOff(Fields):
    """A head whose context is 0."""

    kind: Literal["off"]
    layer: Number
    head: Number


class Cut(Fields):
    """Keys that are hidden from queries, each as first and stop."""

    kind: Literal["cut"]
    layer: Number | None = None
    """None: in all layers, and then in all heads."""
    head: Number | None = None
    """None: in all heads of the layer."""
    queries: Span | None = None
    """None: from all later ones."""
    keys: Span


Change = SwitchOff | Cut


class Changes(Fields):
    """What to change."""

    changes: list[Annotated[Change, Field(discriminator="kind")]] = Field(
        min_length=1, max_length=MOST
    )


def check_changes(changes: Sequence[Change], run: Run) -> None:
    """Refuse changes of what a run does not have.

    Raises:
        PageError: for the first such change.
    """
    for change in changes:
        if change.layer is None:
            if change.head is not None:
                raise PageError(f"head={change.head} of all layers is none; name its layer")
        else:
            _require("layer", change.layer, len(run.layers))
            if change.head is not None:
                _require("head", change.head, len(run.layers[change.layer].heads))
        if isinstance(change, Cut):
            require_range("keys", change.keys, len(run.tokens))
            if change.queries is not None:
                require_range("queries", change.queries, len(run.tokens))
            elif change.keys[1] == len(run.tokens):
                raise PageError("the last token has no later one to be cut from; give queries")


@contextmanager
def changed(model: nn.Module, changes: Sequence[Change]) -> Iterator[None]:
    """Have a model compute with distinct changes, on this thread."""
    if not changes:
        yield
        return
    with intervene(model) as change:
        for one in changes:
            if isinstance(one, SwitchOff):
                change.ablate(layers=one.layer, heads=one.head)
            else:
                change.knock_out(**_places(one))
        yield


def _places(cut: Cut) -> dict[str, Any]:
    return {
        "layers": cut.layer,
        "heads": cut.head,
        "queries": slice(*cut.queries or (cut.keys[1], None)),
        "keys": slice(*cut.keys),
    }


def _require(name: str, value: int, count: int) -> None:
    if value >= count:
        raise PageError(f"{name}={value} is none of 0 … {count - 1}")


def require_range(name: str, span: Span, length: int) -> None:
    """Refuse a range that is empty or not within a length."""
    first, stop = span
    if not first < stop <= length:
        raise PageError(f"{name}={first},{stop} is not a range within 0,{length}")
