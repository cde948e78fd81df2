"""Draw README's picture: a text, and what the heads of the shipped model do with it.

``python docs/demo.py [FILE [MODEL]]`` writes it, by default to docs/pictures/demo.png.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib as mpl
import torch
from drawing import ACCENT, FAINT, INK, LINE, ROLES, SHADES, STYLE, canvas, write
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from pages import FOLDER

from regard.gpt import load
from regard.lens import HeadScores
from regard.lens.naming.forward_pass import ForwardPass, forward_pass
from regard.view.tokens import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from regard import Pattern

TEXT = (
    "Anna had lost a silver kite and a red drum, and she looked in the garden and then in the "
    "kitchen, but nobody had seen the silver"
)
COLUMN, LINE_HEIGHT, LETTER = 4.1, 0.34, 0.099  # inches
FAINTEST = 1e-3  # weights below this are as good as none to the eye


def main(file: Path, model_folder: Path | None) -> None:
    """Draw the picture and put it in place in one go."""
    model, tokenizer = load(model_folder)
    ids = torch.tensor(tokenizer.encode(TEXT))
    with torch.inference_mode():
        logits, patterns = model.with_patterns(ids)
    result = forward_pass(ids, patterns, logits, name=tokenizer.tokens)
    # The head whose last token looks most at one further back; at the first of all, heads rest.
    last = len(ids) - 1
    head = max(result.heads, key=lambda one: float(result.row(one, last)[1:-4].max()))
    with mpl.rc_context(STYLE):
        figure, axes = canvas(9.6, 4.75)
        _text(axes, result, head)
        _heads(axes, result, patterns, head)
        unfinished = file.with_name(f"unfinished-{file.name}")
        figure.savefig(unfinished, dpi=160, metadata={"Software": None})
    unfinished.replace(file)


def _text(axes: Axes, result: ForwardPass, head: HeadScores) -> None:
    """The text, each token shaded by what the last one gives it."""
    query = len(result.tokens) - 1
    row = result.row(head, query)
    write(axes, 0.3, 0.38, f"layer {head.layer} · head {head.head}", "left", weight="bold")
    write(axes, 0.3, 0.66, "what the last token looks at", "left", color=FAINT, size=9)
    x, y = 0.3, 1.15
    for position, token in enumerate(result.tokens):
        text = readable(token)
        width = len(text) * LETTER
        if x + width > 0.3 + COLUMN:
            x, y = 0.3 - LETTER * text.startswith(" "), y + LINE_HEIGHT
        weight = float(row[position])
        box = Rectangle((x, y - 0.14), width, 0.28, facecolor=SHADES(weight), linewidth=0)
        if position == query:
            box.set(edgecolor=ROLES["query"], linewidth=1.6, facecolor="none", zorder=3)
        axes.add_patch(box)
        style = {"family": "DejaVu Sans Mono", "size": 11, "color": INK}
        for i, letter in enumerate(text):  # letter by letter: the grid holds whatever the font
            write(axes, x + (i + 0.5) * LETTER, y, letter, **style)
        x += width
    y += 0.55
    heading = f"{query} “{readable(result.tokens[query]).strip()}” attends to"
    write(axes, 0.3, y, heading, "left", size=9, color=FAINT)
    for weight, key in zip(*(top.tolist() for top in row.topk(4)), strict=True):
        y += 0.27
        write(axes, 0.75, y, str(key), "right", size=9, color=FAINT)
        name = readable(result.tokens[key])
        write(axes, 0.85, y, name, "left", size=9.5, family="DejaVu Sans Mono")
        axes.add_patch(Rectangle((2.0, y - 0.07), 1.7 * weight, 0.14, facecolor=ACCENT))
        write(axes, 2.06 + 1.7 * weight, y, f"{weight:.4f}", "left", size=9)


def _heads(
    axes: Axes, result: ForwardPass, patterns: Sequence[Pattern], chosen: HeadScores
) -> None:
    """Every head as a thumbnail of its pattern, with what it does."""
    layers = 1 + max(head.layer for head in result.heads)
    across = 1 + max(head.head for head in result.heads)
    left, top, gap, below = 5.15, 0.3, 0.24, 0.43
    size = min(0.82, 4.3 / across - gap)  # that all fit the picture
    for head in result.heads:
        x, y = left + head.head * (size + gap), top + head.layer * (size + below)
        inside = axes.inset_axes((x, y, size, size), transform=axes.transData)
        image = patterns[head.layer][head.head].image(96, 96).clamp_min(FAINTEST)
        inside.imshow(image, cmap=SHADES, norm=LogNorm(FAINTEST, 1), interpolation="nearest")
        inside.set(xticks=[], yticks=[])
        this = (head.layer, head.head) == (chosen.layer, chosen.head)
        inside.spines[:].set(visible=True, color=ACCENT if this else LINE, lw=1.6 if this else 0.8)
        colour = ACCENT if this else FAINT
        role = fill(head.role.value, 14)
        write(axes, x + size / 2, y + size + 0.08, role, size=7, color=colour, va="top")
    for layer in range(layers):
        y = top + layer * (size + below) + size / 2
        write(axes, left - 0.12, y, str(layer), "right", size=8, color=FAINT)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "pictures" / "demo.png",
        Path(sys.argv[2]) if len(sys.argv) > 2 else None,
    )
