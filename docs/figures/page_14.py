"""The picture of page 14."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, INK, ROLES, arrow, box, canvas, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 2.5, 0.42
_ENCODER, _DECODER = 0.55, 5.0  # left edges


def _stack(axes: Axes, left: float, parts: list[tuple[float, str, bool]]) -> None:
    """Draw boxes, each with an arrow from what stands below it."""
    middle = left + _WIDTH / 2
    for y, name, strong in parts:
        box(axes, left, y, _WIDTH, _HEIGHT, name, strong=strong)
        arrow(axes, (middle, y + _HEIGHT + 0.33), (middle, y + _HEIGHT))


def encoder_decoder(names: Mapping[str, Any]) -> Figure:
    """What is read on the left, what is written on the right, and the way between them."""
    source = "Ben sold the seal ."
    written = ["Ben", "sigu", "veno", "."]
    size = f"E = {names['E']}"
    figure, axes = canvas(8.6, 5.35)

    for left, name in ((_ENCODER, "encoder"), (_DECODER, "decoder")):
        write(axes, left + _WIDTH / 2, 5.12, name, weight="bold")
    arrow(axes, (_DECODER + _WIDTH / 2, 0.9), (_DECODER + _WIDTH / 2, 0.55))
    _stack(
        axes,
        _ENCODER,
        [(3.9, "words + positions", False), (3.15, "self-attention", True), (2.4, "MLP", False)],
    )
    _stack(
        axes,
        _DECODER,
        [
            (3.9, "words + positions", False),
            (3.15, "self-attention", True),
            (2.4, "cross-attention", True),
            (1.65, "MLP", False),
            (0.9, "output, softmax", False),
        ],
    )
    write(axes, _ENCODER + _WIDTH / 2, 4.82, source)
    write(axes, _DECODER + _WIDTH / 2, 4.82, " ".join(["<start>", *written[:-1]]))
    write(axes, _DECODER + _WIDTH / 2, 0.36, " ".join(written))
    write(axes, _ENCODER + _WIDTH / 2, 1.87, f"a row a word, {size}", color=FAINT, fontsize=9.5)
    for left, text in ((_ENCODER, "all words\nsee all"), (_DECODER, "causal")):
        write(axes, left + _WIDTH + 0.1, 3.36, text, "left", color=FAINT, fontsize=9.5)

    middle, bend = 2.61, _ENCODER + _WIDTH / 2
    axes.plot((bend, bend, 3.6, 3.6), (2.4, 2.1, 2.1, middle), color=INK, linewidth=1.2)
    arrow(axes, (3.6, middle), (_DECODER, middle))
    write(axes, 4.3, middle - 0.32, "keys", color=ROLES["key"], fontsize=9.5)
    write(axes, 4.3, middle - 0.14, "values", color=ROLES["value"], fontsize=9.5)
    write(
        axes,
        _DECODER + _WIDTH / 2 + 0.12,
        2.98,
        "queries",
        "left",
        color=ROLES["query"],
        fontsize=9.5,
    )
    return figure


PICTURES = {"encoder-decoder": encoder_decoder}
