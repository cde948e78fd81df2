"""The map of one head over 65,536 tokens as a pyramid of tiles, each pixel an exact mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.gpt import GPT, load
from regard.gpt.config import HAS_READ
from regard.gpt.stories import stories
from regard.record import RecordError
from regard_site.gallery.exhibit import (
    DECADES,
    HIGHEST,
    Exhibit,
    Progress,
    ink,
    write_picture,
)

__all__ = ["levels", "long_map"]

_TOKENS, _TILE = 65_536, 256
_LAYER, _HEAD = 2, 2
_WHOLE = 5  # the finest level that has all tiles: 8 tokens a pixel
_CORNER = 4096  # the last tokens, whose tiles go down to a token a pixel
_FINEST = 8


def long_map(progress: Progress) -> Exhibit:
    """Write every tile of the pyramid that holds a weight, as ``level/row-column.png``.

    Running the model takes most of the time, so its recording is kept for a later try.
    """
    folder = progress.folder
    pattern = _pattern(progress)
    count = sum(_write(folder, *tile) for tile in _tiles(pattern, progress))
    return Exhibit(
        name="long-map",
        title="65,536 tokens: a map to fly over",
        text=(
            f"Head {_LAYER}·{_HEAD} of the model that comes with regard, over {_TOKENS:,} tokens "
            f"of stories: 2.1 billion weights, none of them stored. {HAS_READ} It was trained on "
            "512 tokens; what lies beyond is the waves of its rotary positions. Each pixel is the "
            f"exact mean of its weights, as `Pattern.image` gives it, in {count} tiles: 8 tokens "
            "a pixel everywhere, one a pixel in the lower right corner. Full colour is a weight "
            f"of {10**HIGHEST:g} or more, none is {10.0 ** (HIGHEST - DECADES):.6f} or less."
        ),
        viewer="pyramid.js",
        data={
            "tokens": _TOKENS,
            "tile": _TILE,
            "whole": _WHOLE,
            "finest": _FINEST,
            "corner": _CORNER,
        },
    )


def _pattern(progress: Progress) -> regard.Pattern:
    """The pattern of the head, of a model that is cut off above it and takes longer texts."""
    kept = progress.folder / "run"
    try:
        recording = regard.load(kept)
    except RecordError:  # such as on the first try
        progress.say(f"the model reads {_TOKENS:,} tokens")
        recording = _record()
        progress.say("each row's log-sum-exp is computed and kept")
        recording.save(kept, overwrite=True)
    return recording[0][0]


def _record() -> regard.Recording:
    """Run the layers up to the head over stories."""
    shipped, tokenizer = load()
    model = GPT(replace(shipped.config, context=_TOKENS, layers=_LAYER + 1)).eval()
    weights = shipped.state_dict()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    ids: list[int] = []
    for story in stories(0, _TOKENS):
        ids += tokenizer.encode(f"{story.text}\n\n")
        if len(ids) >= _TOKENS:
            break
    with torch.no_grad(), regard.record(model, layers=_LAYER, heads=[_HEAD]) as recording:
        model(torch.tensor(ids[:_TOKENS]))
    return recording


def _tiles(pattern: regard.Pattern, progress: Progress) -> Iterator[tuple[int, int, int, Tensor]]:
    """Level, row, column and weights of each tile."""
    pixels = _TILE << _WHOLE
    block = _TOKENS // pixels
    bands = []
    for row in range(0, pixels, _TILE):
        band = pattern.crop(queries=(row * block, (row + _TILE) * block))
        bands.append(band.image(_TILE, pixels))
        progress.say(f"{len(bands)} of {pixels // _TILE} bands of the map")
    progress.say("tiles are written")
    yield from levels(torch.cat(bands), _WHOLE, range(_WHOLE + 1), first=0)
    corner = pattern.crop(queries=(_TOKENS - _CORNER, _TOKENS), keys=(_TOKENS - _CORNER, _TOKENS))
    first = (_TOKENS - _CORNER) // _TILE
    yield from levels(
        corner.image(_CORNER, _CORNER), _FINEST, range(_WHOLE + 1, _FINEST + 1), first=first
    )


def levels(
    image: Tensor, finest: int, wanted: range, *, first: int
) -> Iterator[tuple[int, int, int, Tensor]]:
    """Cut an image into tiles at several levels: level, row, column and weights of each.

    A pixel of a level is the mean of two by two pixels of the next finer one. Tiles above the
    diagonal hold no weight and are left out.

    Args:
        image: (pixels, pixels), as the finest level has it.
        finest: the number of that level.
        wanted: the levels to cut.
        first: the row and column of the image's first tile at the finest level.
    """
    for level in wanted:
        factor = 1 << (finest - level)
        means = F.avg_pool2d(image[None, None], factor)[0, 0]
        offset = first // factor
        for row in range(means.shape[0] // _TILE):
            for column in range(row + 1):
                rows = slice(row * _TILE, (row + 1) * _TILE)
                columns = slice(column * _TILE, (column + 1) * _TILE)
                yield level, row + offset, column + offset, means[rows, columns]


def _write(folder: Path, level: int, row: int, column: int, weights: Tensor) -> int:
    target = folder / str(level)
    target.mkdir(exist_ok=True)
    write_picture(target / f"{row}-{column}.png", ink(weights))
    return 1
