"""HTML for notebooks of a pattern, steps, effects and a recording, self-contained.

Text has the notebook's own colours, a picture is a data URI on a white background, so that both
are legible in light and dark themes. Nothing is loaded from elsewhere. Display must not raise, so
an exception is shown as text. In a long pattern only evenly spaced queries are read, and the text
says so.
"""

from __future__ import annotations

import html
import io
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from regard.lens import Effects
from regard.pattern import Pattern
from regard.record import Recording
from regard.record.layer import Layer
from regard.steps import Steps
from regard.view.elements import heading, line, plain, reason, table, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.lens.naming.heads import HeadScores
    from regard.view.plot.heads import Thumbnails

__all__ = [
    "LARGEST",
    "effects_html",
    "pattern_html",
    "recording_html",
    "recording_png",
    "steps_html",
]

LARGEST = 130_000
"""Maximum characters of a static picture; a larger one is drawn at a lower resolution."""

_DENSITY, _COARSEST = 150, 32  # dots per inch
_COLOURS = 256
_HEADS = 8  # maximum of a pattern
_LAYERS_DOWN, _HEADS_ACROSS = 24, 16  # maxima of a recording
_LAYERS_LISTED = 64
_WEIGHTS = 2**25  # maximum weights to compute for a picture of all heads
_SCORED = 2**24  # maximum weights of a recording whose heads are scored automatically
_THUMBNAILS = {64: 48, 160: 32}  # maximum number of heads: pixels per side
_SMALLEST = 24

_PAPER = "background:#fff;border-radius:4px;margin:6px 0;max-width:100%;height:auto"


def pattern_html(pattern: Pattern) -> str:
    """Render a pattern: its size, and its first heads."""

    def parts() -> Iterable[str]:
        dtype = str(pattern.dtype).removeprefix("torch.")
        size = pattern.shape.numel() * pattern.dtype.itemsize
        yield heading("Pattern", f"{_sizes(pattern.shape)}, {dtype}, {pattern.device}")
        yield line(f"written down it would take {_bytes(size)}; any part of it is exact when read")
        yield from _picture(lambda: _draw_pattern(pattern), pattern)
        heads = pattern.shape[-3] if pattern.ndim > 2 else 1
        sequences = pattern.shape[:-3].numel()
        if heads > _HEADS:
            yield line(f"{_HEADS} of {heads} heads are shown; pattern[..., {_HEADS}:] has more")
        if sequences > 1:
            yield line(f"sequence 0 of {sequences} is shown")

    return whole(parts, pattern)


def steps_html(steps: Steps) -> str:
    """Render steps: each with its shape and caption, and a figure of the last query."""

    def parts() -> Iterable[str]:
        yield heading("Steps", f"of one attention, scale {steps.scale:.4g}")
        rows = [(step.name, " × ".join(map(str, step.shape)), step.meaning) for step in steps]
        yield table(("step", "shape", "what it is"), rows)
        yield from _picture(steps.plot, steps)

    return whole(parts, steps)


def recording_html(recording: Recording) -> str:
    """Render a recording: its heads in a grid, and a list of its layers."""

    def parts() -> Iterable[str]:
        layers = recording.layers
        counts = [f"{len(recording.of_kind(kind))} × {kind}" for kind in recording.kinds]
        yield heading("Recording", f"{len(layers)} attentions: {', '.join(counts) or 'none'}")
        if layers:
            yield from _picture(lambda: _draw_recording(recording), recording)
        rows = [
            (str(layer.index), layer.kind, layer.name, _sizes(layer.pattern.shape))
            for layer in layers[:_LAYERS_LISTED]
        ]
        yield table(("layer", "kind", "module", "pattern"), rows)
        if len(layers) > _LAYERS_LISTED:
            yield line(f"… {len(layers) - _LAYERS_LISTED} more: recording.layers")

    return whole(parts, recording)


def recording_png(recording: Recording) -> str | None:
    """Return a recording's heads as a PNG in base64; None without matplotlib."""
    try:
        import regard.view.plot  # noqa: F401 - says what is missing
    except ImportError:
        return None
    return _small_png(_draw_recording(recording))


def effects_html(effects: Effects) -> str:
    """Render effects: the target, and a figure."""

    def parts() -> Iterable[str]:
        yield heading("Effects", f"on the {effects.target}, which is {effects.unchanged:.4g}")
        if effects.method == "gradient":
            yield line("estimates, by gradient; check(n) measures the largest")
        for what, check in zip(
            ("the largest", "some at random"), effects.checks or (), strict=False
        ):
            yield line(
                f"{len(check.true)} of them measured, {what}: rank correlation "
                f"{check.rank_correlation:.2f}, largest miss {check.largest_miss:.3g}"
            )
        if effects.other is not None:
            yield line(f"patched with the {effects.by}, where it is {effects.other:.4g}")
        yield from _picture(effects.plot, effects)

    return whole(parts, effects)


def _draw_pattern(pattern: Pattern) -> Figure:
    from regard.view.plot.pattern import draw_maps, read_maps

    first = _first(pattern)
    drawn = _thinned(first, _WEIGHTS)
    maps = read_maps(drawn)
    if drawn is not first:
        whole = (0, first.shape[-2])
        maps = replace(maps, queries=whole, received=None, sampled=drawn.shape[-2])
    return draw_maps(maps)


def _first(pattern: Pattern) -> Pattern:
    """Return the first heads of the first sequence."""
    while pattern.ndim > 3:
        pattern = pattern[0]
    return pattern[:_HEADS] if pattern.ndim > 2 and pattern.shape[0] > _HEADS else pattern


def _draw_recording(recording: Recording) -> Figure:
    from regard.view.plot.heads import draw_thumbnails
    from regard.view.plot.style import on_paper

    with on_paper():
        return draw_thumbnails(*_read_recording(recording))


def _read_recording(recording: Recording) -> tuple[list[Thumbnails], str]:
    """Return thumbnails of the first heads and layers, and a note on them."""
    from regard.view.plot.heads import Thumbnails, named, of_first

    layers = recording.of_kind().layers
    shown = layers[:_LAYERS_DOWN]
    scores: dict[int, tuple[HeadScores, ...]] = {}
    reason = "what they do: recording.plot_heads()"
    if sum(layer.pattern.shape.numel() for layer in shown) <= _SCORED:
        scores, reason = named(recording, shown)
    notes = [reason] if reason else []
    drawn, samples = [], set()
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
            samples.add(f"drawn from {part.shape[-2]} of {pattern.shape[-2]} queries each")
        image = part.image(size, size)
        drawn.append(
            Thumbnails(
                layer=layer.index,
                heads=layer.heads[:_HEADS_ACROSS],
                maps=image.reshape(-1, *image.shape[-2:]).cpu().numpy(),
                exact=image.shape == pattern.shape,
                keys=pattern.shape[-1],
                names=tuple(str(head.role) for head in scores.get(place, ())),
            )
        )
    notes += sorted(samples)[:2]
    notes += _more(layers, heads)
    return drawn, "; ".join(notes)


def _more(layers: Sequence[Layer], heads: int) -> list[str]:
    batch = max(layer.pattern.shape[:-3].numel() for layer in layers)
    return [
        *([f"sequence 0 of {batch}"] if batch > 1 else []),
        *([f"{len(layers) - _LAYERS_DOWN} more layers"] if len(layers) > _LAYERS_DOWN else []),
        *([f"{heads - _HEADS_ACROSS} more heads a layer"] if heads > _HEADS_ACROSS else []),
    ]


def _thinned(pattern: Pattern, most: int) -> Pattern:
    """Return the pattern, or evenly spaced queries of it with at most so many weights."""
    queries = pattern.shape[-2]
    rows = max(most // max(pattern.shape.numel() // max(queries, 1), 1), 16)
    if rows >= queries:
        return pattern
    return pattern.at(torch.linspace(0, queries - 1, rows, device=pattern.device).round().long())


def _picture(draw: Callable[[], Figure], shown: object) -> Iterable[str]:
    """Yield a figure as an image; without matplotlib, or with nothing to draw, the reason."""
    try:
        import regard.view.plot  # noqa: F401 - says what is missing

        yield _image(draw())
    except Exception as error:  # noqa: BLE001 - likewise
        yield f"{line(f'no picture: {reason(error)}')}<pre>{html.escape(plain(shown))}</pre>"


def _image(figure: Figure) -> str:
    """Return a figure as an image element."""
    width = round(96 * figure.get_figwidth())
    source = f"data:image/png;base64,{_small_png(figure)}"
    return f'<div><img alt="" width="{width}" style="{_PAPER}" src="{source}"></div>'


def _small_png(figure: Figure) -> str:
    """Return a figure as PNG in base64, at a lower resolution if it would be too large."""
    density = _DENSITY
    data = _png(figure, density)
    while len(data) > LARGEST and density > _COARSEST:
        density = max(_COARSEST, int(0.9 * density * (LARGEST / len(data)) ** 0.5))
        data = _png(figure, density)
    return data


def _png(figure: Figure, density: int) -> str:
    from PIL import Image  # a dependency of matplotlib

    from regard.view.plot.style import on_paper

    drawn = io.BytesIO()
    with on_paper():
        figure.savefig(drawn, format="png", dpi=density, pil_kwargs={"compress_level": 0})
    with Image.open(drawn) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, format="png")
    return b64encode(written.getvalue()).decode()


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
