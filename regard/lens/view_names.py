"""The four views of a pattern by name, and what an entry of each means; read without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VIEWS", "View"]


@dataclass(frozen=True)
class View:
    """One of the four views: its name, and what an entry means.

    Example:
        >>> from regard.lens.view_names import VIEWS
        >>> VIEWS["toward"].title, VIEWS["toward"].is_signed
        ('toward the answer', True)
    """

    name: str
    title: str
    meaning: str
    is_signed: bool = False


VIEWS = {
    view.name: view
    for view in (
        View(
            "weight",
            "weight",
            "Where a head looks: the weight that a token gives each key. They add up to 1.",
        ),
        View(
            "moved",
            "moved",
            "What arrives: the weight times the length of the key’s value behind W_O. A large "
            "weight on a short value moves little.",
        ),
        View(
            "toward",
            "toward the answer",
            "What a key adds, through the head, to the logit of the likeliest next token, or takes "
            "from it; the final norm’s scale is that of the last token.",
            is_signed=True,
        ),
        View(
            "without",
            "without the sink",
            "Where a head looks beside the keys it rests on: the weights of the others, "
            "renormalized. A head that rests on none is as it is.",
        ),
    )
}
"""The views by name."""
