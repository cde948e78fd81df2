"""The picture of page 9d."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, canvas, square, tint, title, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_CELL = 0.25  # inches, both ways
_TOP, _LEFT, _BETWEEN = 1.0, 0.85, 0.45


def trained_heads(names: Mapping[str, Any]) -> Figure:
    """Page 9d: the weights of both heads on one text, the largest of a question with its number."""
    tokens, weights = names["tokens"], names["patterns"][0].dense()
    heads, size, _ = weights.shape
    figure, axes = canvas(7.9, _TOP + size * _CELL + 0.15)
    write(axes, _LEFT - 0.1, _TOP - 0.16, "query ↓", "right", color=FAINT, fontsize=9)
    for head in range(heads):
        left = _LEFT + head * (size * _CELL + _BETWEEN)
        title(axes, left, 0.2, "weight", f"head {head}", "key →")
        for j, token in enumerate(tokens):
            x = left + (j + 0.5) * _CELL
            write(axes, x, _TOP - 0.06, token, rotation=90, va="bottom", fontsize=9)
        for i, token in enumerate(tokens):
            y = _TOP + i * _CELL
            asked = token.endswith("?")
            if head == 0:
                weight = "bold" if asked else "normal"
                write(axes, left - 0.1, y + _CELL / 2, token, "right", fontsize=9, weight=weight)
            for j in range(i + 1):
                share = round(weights[head, i, j].item(), 1)
                label = f"{share:.1f}".lstrip("0") if asked and share >= 0.5 else ""
                color = tint("weight", share)
                square(axes, left + j * _CELL, y, color, label, _CELL, _CELL, size=8)
    return figure


PICTURES = {"trained-heads": trained_heads}
