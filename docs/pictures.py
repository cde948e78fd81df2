"""Draw the pictures of the pages, from the numbers that the pages compute.

``python docs/pictures.py [FOLDER]`` writes them all, by default to docs/pictures.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from drawing import (
    ACCENT,
    CELL_WIDTH,
    FAINT,
    INK,
    SHADES,
    STYLE,
    arrow,
    box,
    canvas,
    square,
    table,
    write,
)
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from pages import FOLDER, run
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from regard.view.terminal import step_tables

if TYPE_CHECKING:
    Names = Mapping[str, Any]

TOKENS = ["the", "warm", "sunny", "day", "went", "by"]  # of the six rows that the pages share


def averaging(names: Names) -> Figure:
    """Page 1: the table of weights, as fractions."""
    positions = [str(i) for i in range(8)]
    figure, axes = canvas(7.0, 4.4)
    table(
        axes,
        names["weights"],
        at=(1.15, 0.7),
        rows=positions,
        columns=positions,
        captions=("position ↓", "weight of row →"),
        text=lambda w: f"1/{round(1 / w)}" if w < 1 else "1",
    )
    return figure


def parameter_free(names: Names) -> Figure:
    """Page 2: the weights, and what each key receives."""
    figure, axes = canvas(6.6, 3.95)
    edge = table(
        axes,
        names["weights"],
        at=(1.35, 0.7),
        rows=TOKENS,
        columns=TOKENS,
        captions=("query ↓", "key →"),
        strongest=0.3,
        sums=True,
    )
    write(axes, 1.25, edge + 0.25, "received", "right", color=FAINT)
    for j, total in enumerate(names["weights"].sum(dim=0).tolist()):
        write(axes, 1.35 + (j + 0.5) * CELL_WIDTH, edge + 0.25, f"{total:.2f}", color=FAINT)
    return figure


def head(names: Names) -> Figure:
    """Page 3: the tables of one head, each with what it is made from, cells in true number."""
    figure, axes = canvas(8.7, 5.3)
    cell = 0.17

    def grid(name: str, made: str, left: float, top: float) -> None:
        tensor = names["x"] if name == "x" else getattr(names["steps"], name)
        rows, columns = tensor.shape
        write(axes, left, top - 0.17, f"{name} ({rows}, {columns})", "left")
        write(axes, left, top + rows * cell + 0.18, made, "left", color=FAINT)
        for i in range(rows):
            for j in range(columns):
                strength = tensor[i, j].item() / 0.3 if name == "weights" else 0.0
                square(axes, left + j * cell, top + i * cell, SHADES(strength), "", cell, cell)

    grid("x", "", 0.3, 2.15)
    for name, matrix, top in (("query", "Wq", 0.4), ("key", "Wk", 2.15), ("value", "Wv", 3.9)):
        grid(name, f"x @ {matrix}", 2.2, top)
        arrow(axes, (0.95, 2.65), (2.1, top + 0.5))
    grid("scores", "query @ keyᵀ", 3.9, 1.27)
    arrow(axes, (2.65, 0.9), (3.8, 1.67))
    arrow(axes, (2.65, 2.65), (3.8, 1.87))
    grid("weights", "softmax(scores / √2)", 5.6, 1.27)
    arrow(axes, (5.02, 1.77), (5.5, 1.77))
    grid("context", "weights @ value", 7.35, 3.0)
    arrow(axes, (6.72, 1.77), (7.5, 2.65))
    arrow(axes, (2.65, 4.4), (7.25, 3.6))
    return figure


def scaling(names: Names) -> Figure:
    """Page 4: variance, largest weight and gradient against d, scaled and not."""
    sizes, medians = names["sizes"], names["medians"]
    raw, kept = (
        [(scores[d].var(), *medians(scores[d])) for d in sizes]
        for scores in (names["scores"], names["scaled"])
    )
    figure = Figure(figsize=(8.6, 3.4))
    variance, largest, gradient = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.17, top=0.87, wspace=0.28)
    for axes, title, column in (
        (variance, "variance of q·k", 0),
        (largest, "largest weight", 1),
        (gradient, "gradient of softmax", 3),
    ):
        axes.set_title(title, loc="left", fontsize=11, pad=12)
        axes.set_xscale("log", base=2)
        axes.set_xticks([4, 32, 256, 2048], ["4", "32", "256", "2048"])
        axes.set_xlabel("d", labelpad=2)
        axes.plot(sizes, [row[column] for row in raw], "o--", color=INK, markersize=4)
        axes.plot(sizes, [row[column] for row in kept], "o-", color=ACCENT, markersize=4)
    variance.set_yscale("log", base=2)
    variance.set_yticks([1, 16, 256, 4096], ["1", "16", "256", "4096"])
    largest.set_ylim(0, 1.05)
    gradient.set_yscale("log")
    gradient.set_ylim(1e-8, 5)
    gradient.set_yticks([1, 1e-2, 1e-4, 1e-6, 1e-8])
    for axes, raw_at, kept_at in (
        (variance, (180, 1000), (4096, 2)),
        (largest, (4096, 0.9), (4096, 0.17)),
        (gradient, (900, 2e-5), (4096, 0.8)),
    ):
        axes.minorticks_off()
        write(axes, *raw_at, "not scaled", "right", color=INK)
        write(axes, *kept_at, "scaled", "right", color=ACCENT)
    return figure


def causal(names: Names) -> Figure:
    """Page 5: the causal weights."""
    figure, axes = canvas(6.6, 3.6)
    table(
        axes,
        names["weights"],
        at=(1.35, 0.7),
        rows=TOKENS,
        columns=TOKENS,
        captions=("query ↓", "key →"),
        sums=True,
    )
    write(axes, 4.75, 1.36, "later keys:\nweight 0", color=FAINT)
    return figure


def dropout(names: Names) -> Figure:
    """Page 6: the weights, and what one draw leaves of them."""
    positions = [str(i) for i in range(6)]
    figure, axes = canvas(8.6, 3.6)
    for left, title, values in (
        (0.45, "weights", names["weights"]),
        (4.95, "dropped: one draw with p = ½", names["dropped"]),
    ):
        table(
            axes,
            values,
            at=(left, 0.7),
            rows=positions,
            columns=positions,
            captions=("", title),
            shown=names["weights"] > 0,
            width=0.56,
        )
    arrow(axes, (4.05, 2.02), (4.5, 2.02))
    return figure


def heads(names: Names) -> Figure:
    """Page 7: a table is cut into the tables of the heads, and put together again."""
    whole, parts = names["table"], names["heads"]
    count, positions, dim = parts.shape
    figure, axes = canvas(8.2, 3.3)
    write(axes, 0.5, 0.35, f"(T, E) = {tuple(whole.shape)}", "left")
    write(axes, 5.7, 0.35, f"(H, T, D) = {tuple(parts.shape)}", "left")
    for h in range(count):
        top, left, color = 0.65 + h * 0.86, 0.5 + h * dim * 0.5, SHADES(0.45 * h)
        write(axes, left + 0.5, 1.3, f"head {h}", color=FAINT)
        write(axes, 6.85, top + 0.36, f"head {h}", "left", color=FAINT)
        for t in range(positions):
            for d in range(dim):
                number = str(int(parts[h, t, d]))
                square(axes, left + 0.5 * d, 1.5 + 0.36 * t, color, number)
                square(axes, 5.7 + 0.5 * d, top + 0.36 * t, color, number)
    for start, end, y, label in ((3.8, 5.4, 1.72, "split"), (5.4, 3.8, 2.12, "merge")):
        arrow(axes, (start, y), (end, y))
        write(axes, 4.6, y - 0.13, label)
    return figure


def parameters(names: Names) -> Figure:
    """Page 9: the share of each part in the four sizes of GPT-2."""
    parts = {
        "embeddings": ("#d0d7de", ("token_embedding", "position_embedding")),
        "query,\nkey": (SHADES(0.45), ("query_key",)),
        "value,\noutput": (SHADES(0.9), ("value_output",)),
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
            axes.add_patch(Rectangle((x, y), end - x, 0.36, facecolor=color, edgecolor="white"))
            write(axes, (x + end) / 2, y + 0.19, f"{100 * share:.0f} %")
            if row == 0:
                lines = part.count("\n") + 1
                write(axes, (x + end) / 2, y - 0.06 - 0.1 * lines, part, color=FAINT)
            x = end
    write(axes, left, 2.95, "Norms are left out: below 0.04 % in each size.", "left", color=FAINT)
    return figure


def cross(names: Names) -> Figure:
    """Page 8: as many rows as queries, as many columns as keys of the source."""
    figure, axes = canvas(5.2, 3.6)
    table(
        axes,
        names["weights"],
        at=(1.35, 0.7),
        rows=TOKENS,
        columns=["0", "1", "2", "3"],
        captions=("query ↓", "key: position in the source →"),
        sums=True,
    )
    return figure


def block(names: Names) -> Figure:
    """Page 9: the way through the model, and one block in large."""
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
    axes.add_patch(Rectangle((4.6, 0.95), 3.5, 4.6, facecolor="white", edgecolor=ACCENT))
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
        axes.add_patch(Circle((stream, y + 1.7), 0.12, facecolor="white", edgecolor=INK))
        write(axes, stream, y + 1.71, "+")
    return figure


PICTURES: dict[str, tuple[str, Callable[[Names], Figure]]] = {
    "averaging": ("01-averaging.md", averaging),
    "parameter-free": ("02-weights-from-the-data.md", parameter_free),
    "head": ("03-one-head.md", head),
    "scaling": ("04-why-divide-by-the-root-of-d.md", scaling),
    "causal": ("05-causal-mask.md", causal),
    "dropout": ("06-dropout.md", dropout),
    "heads": ("07-many-heads.md", heads),
    "parameters": ("09-a-gpt-block.md", parameters),
    "cross": ("08-cross-attention.md", cross),
    "block": ("09-a-gpt-block.md", block),
}

TERMINAL = """<svg viewBox="-14 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<!-- Rich vVERSION -->
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px Menlo, Consolas, "DejaVu Sans Mono",
monospace; }}
{styles}
</style>
<defs>{lines}</defs>
<rect x="-14" width="{width}" height="{height}" fill="white"/>
<g transform="translate({terminal_x}, 25)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
""".replace("VERSION", version("rich"))


def printed_steps(names: Names) -> str:
    """Page 5: the steps as a terminal shows them, as SVG."""
    console = Console(width=96, record=True, file=io.StringIO(), highlight=False)
    for renderable in step_tables(names["steps"]):
        console.print(renderable)
    red, green, blue = bytes.fromhex(INK.removeprefix("#"))
    return console.export_svg(
        code_format=TERMINAL,
        theme=TerminalTheme((255, 255, 255), (red, green, blue), [(red, green, blue)] * 8),
        unique_id="steps",
        font_aspect_ratio=0.602,
    )


def draw(folder: Path) -> None:
    """Write all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (page, picture) in PICTURES.items():
        written = io.StringIO()
        with mpl.rc_context(STYLE):
            picture(run(FOLDER / page)).savefig(written, format="svg", metadata={"Date": None})
        save(folder / f"{name}.svg", written.getvalue())
    save(folder / "steps.svg", printed_steps(run(FOLDER / "05-causal-mask.md")))


def save(path: Path, text: str) -> None:
    """Write a file under another name first, so that it is never half there."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "pictures")
