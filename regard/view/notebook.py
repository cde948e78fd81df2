"""What a notebook shows of a pattern, of steps and of a recording: HTML that needs nothing else.

No script, no address, no style sheet: a picture as a data URI, always on white paper, and text in
the notebook's own colours, so that both are legible on a light page and on a dark one. A notebook
must not fail because of what it shows, so whatever goes wrong is said in its place. Of a long
pattern only a part of the queries is looked at, spread evenly, and that is said too.
"""

from __future__ import annotations

import html
import io
from base64 import b64encode
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from regard.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.figure import Figure

    from regard.record import Recording
    from regard.record._layer import Layer
    from regard.steps import Steps

__all__ = ["LARGEST", "pattern_html", "recording_html", "steps_html"]

LARGEST = 250_000
"""Most characters of a picture; a larger one is drawn with fewer dots."""

_DENSITY, _COARSEST = 150, 40  # dots per inch
_COLOURS = 256
_HEADS = 8  # of a pattern
_LAYERS_DOWN, _HEADS_ACROSS = 24, 16  # of a recording
_LAYERS_LISTED = 64
_WEIGHTS = 2**25  # most weights to compute for a picture, all heads together
_SCORED = 2**24  # most weights of a recording whose heads are named unasked
_THUMBNAILS = {64: 48, 160: 32}  # pixels of a side, for up to so many heads
_SMALLEST = 24

_TABLE = "border-collapse:collapse;margin:4px 0;border:0;color:inherit;font-size:inherit"
_CELL = "text-align:left;padding:1px 14px 1px 0;border:0;background:none;color:inherit"
_HEADING = f"{_CELL};font-weight:normal;opacity:.7"
_PAPER = "background:#fff;border-radius:4px;margin:6px 0;max-width:100%;height:auto"


def pattern_html(pattern: Pattern) -> str:
    """A pattern: what it is, and its heads; of many the first."""

    def parts() -> Iterable[str]:
        dtype = str(pattern.dtype).removeprefix("torch.")
        size = pattern.shape.numel() * pattern.dtype.itemsize
        yield _heading("Pattern", f"{_sizes(pattern.shape)}, {dtype}, {pattern.device}")
        yield _line(f"written down it would take {_bytes(size)}; any part of it is exact when read")
        yield from _picture(lambda: _draw_pattern(pattern), pattern)
        heads = pattern.shape[-3] if pattern.ndim > 2 else 1
        sequences = pattern.shape[:-3].numel()
        if heads > _HEADS:
            yield _line(f"{_HEADS} of {heads} heads are shown; pattern[..., {_HEADS}:] has more")
        if sequences > 1:
            yield _line(f"sequence 0 of {sequences} is shown")

    return _whole(parts, pattern)


def steps_html(steps: Steps) -> str:
    """Steps: each with its shape and what it means, and the last query's way through them."""

    def parts() -> Iterable[str]:
        yield _heading("Steps", f"of one attention, scale {steps.scale:.4g}")
        rows = [(step.name, " × ".join(map(str, step.shape)), step.meaning) for step in steps]
        yield _table(("step", "shape", "what it is"), rows)
        yield from _picture(steps.plot, steps)

    return _whole(parts, steps)


def recording_html(recording: Recording) -> str:
    """A recording: its heads in a grid, and the list of its layers."""

    def parts() -> Iterable[str]:
        layers = recording.layers
        counts = [f"{len(recording.of_kind(kind))} × {kind}" for kind in recording.kinds]
        yield _heading("Recording", f"{len(layers)} attentions: {', '.join(counts) or 'none'}")
        if layers:
            yield from _picture(lambda: _draw_recording(recording), recording)
        rows = [
            (str(layer.index), layer.kind, layer.name, _sizes(layer.pattern.shape))
            for layer in layers[:_LAYERS_LISTED]
        ]
        yield _table(("layer", "kind", "module", "pattern"), rows)
        if len(layers) > _LAYERS_LISTED:
            yield _line(f"… {len(layers) - _LAYERS_LISTED} more: recording.layers")

    return _whole(parts, recording)


def _draw_pattern(pattern: Pattern) -> Figure:
    from regard.view.plot_heads import of_first
    from regard.view.plot_pattern import draw_maps, read_maps

    first = of_first(pattern)
    if first.ndim > 2:
        first = first if first.shape[0] <= _HEADS else first[:_HEADS]
    drawn = _thinned(first, _WEIGHTS)
    maps = read_maps(drawn)
    if drawn is not first:
        whole = (0, first.shape[-2])
        maps = replace(maps, queries=whole, received=None, sampled=drawn.shape[-2])
    return draw_maps(maps)


def _draw_recording(recording: Recording) -> Figure:
    from regard.view.plot_heads import Thumbnails, draw_thumbnails, named, of_first
    from regard.view.plot_style import on_paper

    layers = recording.of_kind()
    shown = layers[:_LAYERS_DOWN]
    names: dict[int, tuple[str, ...]] = {}
    reason = "what they do: recording.plot_heads()"
    if sum(layer.pattern.shape.numel() for layer in shown) <= _SCORED:
        names, reason = named(recording, shown)
    notes = [reason] if reason else []
    drawn, looked_at = [], set()
    heads = max(len(layer.heads) for layer in shown)
    count = len(shown) * min(heads, _HEADS_ACROSS)
    size = next((size for most, size in _THUMBNAILS.items() if count <= most), _SMALLEST)
    each = _WEIGHTS // count
    for place, layer in enumerate(shown):
        pattern = of_first(layer.pattern)
        if pattern.ndim == 3 and pattern.shape[0] > _HEADS_ACROSS:
            pattern = pattern[:_HEADS_ACROSS]
        part = _thinned(pattern, each * (pattern.shape[0] if pattern.ndim == 3 else 1))
        if part is not pattern:
            looked_at.add(f"drawn from {part.shape[-2]} of {pattern.shape[-2]} queries each")
        image = part.image(size, size)
        drawn.append(
            Thumbnails(
                layer=layer.index,
                heads=layer.heads[:_HEADS_ACROSS],
                maps=image.reshape(-1, *image.shape[-2:]).cpu().numpy(),
                exact=image.shape == pattern.shape,
                names=names.get(place, ()),
            )
        )
    notes += sorted(looked_at)[:2]
    notes += _more(layers, heads)
    with on_paper():
        return draw_thumbnails(drawn, "; ".join(notes))


def _more(layers: Sequence[Layer], heads: int) -> list[str]:
    batch = max(layer.pattern.shape[:-3].numel() for layer in layers)
    return [
        *([f"sequence 0 of {batch}"] if batch > 1 else []),
        *([f"{len(layers) - _LAYERS_DOWN} more layers"] if len(layers) > _LAYERS_DOWN else []),
        *([f"{heads - _HEADS_ACROSS} more heads a layer"] if heads > _HEADS_ACROSS else []),
    ]


def _thinned(pattern: Pattern, most: int) -> Pattern:
    """The pattern, or some of its queries, spread evenly, that have so many weights at most."""
    queries = pattern.shape[-2]
    rows = max(most // max(pattern.shape.numel() // max(queries, 1), 1), 16)
    if rows >= queries:
        return pattern
    problem, logsumexp = pattern.parts()
    index = torch.linspace(0, queries - 1, rows, device=pattern.device).round().long()
    return Pattern.of(problem.at(index), None if logsumexp is None else logsumexp[:, index])


# The HTML


def _whole(parts: Callable[[], Iterable[str]], shown: object) -> str:
    """Put the parts together; what fails is said, and the rest left out."""
    done: list[str] = []
    try:
        done.extend(parts())
    except Exception as error:  # noqa: BLE001 - a notebook must go on, whatever happened
        name = html.escape(_plain(shown))
        done = [f"<pre>{name}</pre>{_line(f'nothing to show: {_reason(error)}')}"]
    return f'<div style="line-height:1.45">{"".join(done)}</div>'


def _picture(draw: Callable[[], Figure], shown: object) -> Iterable[str]:
    """A figure as an image; without matplotlib, or without anything to draw, the reason."""
    try:
        import regard.view.plot  # noqa: F401 - says what is missing

        yield _image(draw())
    except Exception as error:  # noqa: BLE001 - likewise
        yield f"{_line(f'no picture: {_reason(error)}')}<pre>{html.escape(_plain(shown))}</pre>"


def _image(figure: Figure) -> str:
    """A figure as an image element, with fewer dots where it would be too large."""
    density = _DENSITY
    data = _png(figure, density)
    while len(data) > LARGEST and density > _COARSEST:
        density = max(_COARSEST, int(0.9 * density * (LARGEST / len(data)) ** 0.5))
        data = _png(figure, density)
    width = round(96 * figure.get_figwidth())
    source = f"data:image/png;base64,{data}"
    return f'<div><img alt="" width="{width}" style="{_PAPER}" src="{source}"></div>'


def _png(figure: Figure, density: int) -> str:
    from PIL import Image  # matplotlib needs it, too

    from regard.view.plot_style import on_paper

    drawn = io.BytesIO()
    with on_paper():
        figure.savefig(drawn, format="png", dpi=density, pil_kwargs={"compress_level": 0})
    with Image.open(drawn) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, format="png")
    return b64encode(written.getvalue()).decode()


def _plain(shown: object) -> str:
    try:
        return repr(shown)
    except Exception:  # noqa: BLE001 - likewise
        return type(shown).__name__


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _heading(name: str, what: str) -> str:
    return f"<div><b>{html.escape(name)}</b> {html.escape(what)}</div>"


def _line(text: str) -> str:
    return f'<div style="opacity:.7">{html.escape(text)}</div>'


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = _row("th", _HEADING, names)
    body = "".join(_row("td", _CELL, row) for row in rows)
    return f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _row(kind: str, style: str, texts: Sequence[str]) -> str:
    cells = (f'<{kind} style="{style}">{html.escape(text)}</{kind}>' for text in texts)
    return f'<tr style="background:none">{"".join(cells)}</tr>'


def _sizes(shape: Sequence[int]) -> str:
    *leading, queries, keys = shape
    letters = {1: "H", 2: "BH"}.get(len(leading), " " * len(leading))
    parts = [f"{a}={n}".lstrip(" =") for a, n in zip(letters, leading, strict=True)]
    return ", ".join([*parts, f"L={queries}", f"S={keys}"])


def _bytes(size: int) -> str:
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"
