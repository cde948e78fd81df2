"""The pictures of page 9b."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import ACCENT, FAINT, INK, arrow, box, canvas, tint, write
from matplotlib.patches import Circle, Rectangle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def block(names: Mapping[str, Any]) -> Figure:
    """Page 9b: the way through the model, and one block in large."""
    tokens, dim, size = names["T"], names["E"], names["V"]
    vectors, guesses = f"(T, E) = ({tokens}, {dim})", f"(T, V) = ({tokens}, {size})"
    parts = (
        ("tokenizer", 0.4, f"ids  (T) = ({tokens})"),
        ("row of the token table\n+ row of the position table", 0.6, vectors),
        *((f"block {i}", 0.4, vectors) for i in range(len(names["model"].h))),
        ("norm", 0.4, vectors),
        ("@ token tableᵀ", 0.4, f"logits  {guesses}"),
        ("softmax", 0.4, f"probabilities of the next token  {guesses}"),
    )
    figure, axes = canvas(8.4, 6.8)
    write(axes, 2.1, 0.3, repr(names["tokenizer"].decode(names["inputs"].tolist())))
    axes.add_patch(Rectangle((4.6, 0.95), 3.5, 4.6, facecolor="#ffffff", edgecolor=ACCENT))
    write(axes, 4.6, 0.75, "a block", "left", color=ACCENT)

    y = 0.45
    for name, height, passed_on in parts:
        arrow(axes, (2.1, y), (2.1, y + 0.4))
        box(axes, 0.9, y + 0.4, 2.4, height, name, strong=name.startswith("block"))
        if name == "block 0":
            for corner, zoomed in ((y + 0.4, 0.95), (y + 0.8, 5.55)):
                axes.plot((3.3, 4.6), (corner, zoomed), ":", color=ACCENT, linewidth=1)
        y += 0.4 + height
        write(axes, 2.2, y + 0.17, passed_on, "left", color=FAINT, fontsize=9)
    arrow(axes, (2.1, y), (2.1, y + 0.4))

    stream, side = 5.1, 6.7
    write(axes, stream - 0.15, 2.1, "residual", color=FAINT, fontsize=9, rotation=90)
    for start, end in ((1.05, 2.88), (3.12, 4.93), (5.17, 5.5)):
        arrow(axes, (stream, start), (stream, end))
    for y, part in ((1.3, "attention"), (3.35, "MLP")):
        axes.plot((stream, side), (y, y), color=INK, linewidth=1.2)
        arrow(axes, (side, y), (side, y + 0.2))
        box(axes, 5.8, y + 0.2, 1.8, 0.4, "norm")
        arrow(axes, (side, y + 0.6), (side, y + 0.8))
        box(axes, 5.8, y + 0.8, 1.8, 0.4, part, strong=part == "attention")
        axes.plot((side, side), (y + 1.2, y + 1.7), color=INK, linewidth=1.2)
        arrow(axes, (side, y + 1.7), (stream + 0.12, y + 1.7))
        axes.add_patch(Circle((stream, y + 1.7), 0.12, facecolor="#ffffff", edgecolor=INK))
        write(axes, stream, y + 1.71, "+")
    return figure


def parameters(names: Mapping[str, Any]) -> Figure:
    """Page 9b: the share of each part in the four sizes of GPT-2."""
    parts = {
        "embeddings": ("#d0d7de", ("token_embedding", "position_embedding")),
        "query,\nkey": (tint("query", 0.55), ("query_key",)),
        "value,\noutput": (tint("value", 0.55), ("value_output",)),
        "MLP": ("#9aa4ae", ("mlp",)),
    }
    figure, axes = canvas(8.4, 3.2)
    left, width = 1.0, 6.3
    for row, (size, counts) in enumerate(names["counts"].items()):
        y = 0.75 + row * 0.5
        write(axes, left - 0.12, y + 0.18, size, "right")
        write(axes, left + width + 0.12, y + 0.18, f"{counts.total / 1e6:,.0f} M", "left")
        x = left
        for part, (color, fields) in parts.items():
            share = sum(getattr(counts, field) for field in fields) / counts.total
            end = x + share * width
            axes.add_patch(Rectangle((x, y), end - x, 0.36, facecolor=color, edgecolor="#ffffff"))
            write(axes, (x + end) / 2, y + 0.19, f"{100 * share:.0f} %")
            if row == 0:
                lines = part.count("\n") + 1
                write(axes, (x + end) / 2, y - 0.06 - 0.1 * lines, part, color=FAINT)
            x = end
    write(axes, left, 2.95, "Norms are left out: below 0.04 % in each size.", "left", color=FAINT)
    return figure


PICTURES = {"block": block, "parameters": parameters}
