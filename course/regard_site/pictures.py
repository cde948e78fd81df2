"""The landing page's pictures, drawn from the small model as SVG that takes the page's colours."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from html import escape

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from regard.gpt import GPT, Tokenizer, load
from regard.gpt.stories import stories
from regard.page.example import EXAMPLE

__all__ = ["atlas_picture", "door_pictures"]

_WIDTH, _HEIGHT = 360, 200
_LINES = ("Tom had a red kite", "and a blue drum.", "Tom wanted the blue")
"""Asked for the red, the model says kite: what is looked at decides."""
_SPACE = 6.0
_NARROW, _WIDE = "fijlrt.,'", "mw"
_FAINTEST = 0.03  # weights below it have no arc
_STORY = 384  # tokens of the pattern that is read from
_PIXELS = 96
_WINDOW = 4  # queries and keys whose weights are written out


def door_pictures() -> dict[str, str]:
    """The picture of each door: ``learn``, ``look`` and ``build``, as SVG elements."""
    model, tokenizer = load()
    return {
        "learn": _arcs(model, tokenizer),
        "look": _heads(model, tokenizer),
        "build": _window(model, tokenizer),
    }


def _arcs(model: GPT, tokenizer: Tokenizer) -> str:
    """A sentence, and where the head looks that looks most at the answer."""
    text = " ".join(_LINES)
    answer, patterns, pieces = _run(model, tokenizer, text)
    rows = torch.cat([one[:, -1] for one in patterns])  # (heads of all layers, T)
    row = rows[int(rows[:, pieces.index(answer)].argmax())]
    places, words, end = _set_words()
    starts = [len("".join(pieces[:at]).rstrip()) for at in range(len(pieces))]
    middles = [_middle_of(places, start + 1) for start in starts]
    x, y = middles[-1]
    drawn = ""
    for (to_x, to_y), weight in zip(middles[:-1], row.tolist(), strict=False):
        if weight >= _FAINTEST:
            high = min(y, to_y) - 44
            drawn += (
                f'<path d="M{x:.0f},{y - 20:.0f}C{x:.0f},{high:.0f} {to_x:.0f},{high:.0f} '
                f'{to_x:.0f},{to_y - 20:.0f}" stroke-width="{1 + 6 * weight:.1f}" '
                f'opacity="{0.3 + 0.55 * weight:.2f}"/>'
            )
    said = answer.strip()
    words += f'<text class="answer" x="{end + 14:.0f}" y="{y:.0f}">{escape(said)}</text>'
    label = f"After “{text}” the model says {said}: an arc goes from the last word to {said}"
    return _svg(label, f'<g class="arcs">{drawn}</g>{words}')


def _set_words() -> tuple[list[tuple[int, float, float]], str, float]:
    """Where each word ends in the text, and its middle; the words as set; the end of the last."""
    places, words, end, x = [], "", 0, 0.0
    for line, text in enumerate(_LINES):
        x = 40.0
        for word in text.split():
            width = sum(7 if c in _NARROW else 17 if c in _WIDE else 11.5 for c in word)
            y = 56 + 54 * line
            words += f'<text x="{x:.0f}" y="{y}" textLength="{width:.0f}">{escape(word)}</text>'
            end += len(word)
            places.append((end, x + width / 2, float(y)))
            end += 1
            x += width + _SPACE
    return places, words, x


def _middle_of(places: Sequence[tuple[int, float, float]], at: int) -> tuple[float, float]:
    """The middle of the word in which a character of the text stands."""
    return next((x, y) for end, x, y in places if at <= end)


def _heads(model: GPT, tokenizer: Tokenizer) -> str:
    """Every head on the text of the opening: its weights, small; the opening's one is framed."""
    _, patterns, _ = _run(model, tokenizer, EXAMPLE)
    layers, heads, length = len(patterns), len(patterns[0]), len(patterns[0][0])
    cell, gap = 45.0, 3  # of the picture; tokens
    step = cell * (length + gap) / length
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    whole = torch.zeros(layers * (length + gap) - gap, heads * (length + gap) - gap)
    for layer, head in places:
        rows, columns = (slice(at * (length + gap), None) for at in (layer, head))
        whole[rows, columns][:length, :length] = patterns[layer][head] ** 0.4
    width, height = step * heads - step + cell, step * layers - step + cell
    left, top = (_WIDTH - width) / 2, (_HEIGHT - height) / 2
    grounds = "".join(
        _square("ground", left + head * step, top + layer * step, cell) for layer, head in places
    )
    label = f"The {layers * heads} heads of the small model on one sentence, a map of weights each"
    return _svg(label, grounds + _ink(whole, left, top, width, height, name="heads"))


def _window(model: GPT, tokenizer: Tokenizer) -> str:
    """The map of one head over stories, and some of its weights, written out."""
    text = "\n\n".join(story.text for story in stories(0, 8))
    ids = torch.tensor(tokenizer.encode(text)[:_STORY])
    with torch.inference_mode():
        _, patterns = model.with_patterns(ids)
    weights = patterns[2][2].dense()
    map_of_it = F.avg_pool2d(weights[None, None], _STORY // _PIXELS)[0, 0]
    size, left, top = 170, 14, 15
    # The window lies where most is written: its digits say more than zeros.
    sums = F.avg_pool2d(weights.tril(-24)[None, None], _WINDOW, stride=1)[0, 0]
    row, column = divmod(int(sums.argmax()), sums.shape[1])
    scale = size / _STORY
    x, y = left + (column + _WINDOW / 2) * scale, top + (row + _WINDOW / 2) * scale
    far, high, step = 212, 40, 30
    drawn = _square("ground", left, top, size)
    drawn += _ink((map_of_it * 12).clamp(0, 1).sqrt(), left, top, size, size, name="map")
    drawn += f'<rect class="frame" x="{x - 5:.0f}" y="{y - 5:.0f}" width="10" height="10"/>'
    ends = ((y - 5, high), (y + 5, high + 4 * step))
    drawn += "".join(
        f'<path class="frame" d="M{x + 5:.0f},{a:.0f}L{far},{b:.0f}"/>' for a, b in ends
    )
    for i, line in enumerate(weights[row : row + _WINDOW, column : column + _WINDOW].tolist()):
        for k, weight in enumerate(line):
            place = f'x="{far + 34 * k}" y="{high + step * i}"'
            drawn += f'<rect class="cell" {place} width="34" height="{step}" '
            drawn += f'style="--weight:{weight:.2f}"/>'
            middle = f'x="{far + 34 * k + 17}" y="{high + step * i + 20}"'
            drawn += f'<text class="number" {middle}>{weight:.2f}</text>'
    label = f"The weights of one head over {_STORY} tokens as a map, and 16 of them as numbers"
    return _svg(label, drawn)


def atlas_picture(shares: Sequence[Sequence[float]]) -> str:
    """A square a head of an atlas, as inked as the head's share is large.

    Args:
        shares: 0 … 1, a row a layer; layers go to the right, as one reads.
    """
    table = torch.tensor(shares).T
    heads, layers = table.shape
    size = _WIDTH / layers
    ground = f'<rect class="ground" width="{_WIDTH}" height="{size * heads:.0f}"/>'
    label = f"{layers} layers of {heads} heads, each inked by the share of its weight that rests"
    drawn = ground + _ink(table, 0, 0, _WIDTH, size * heads, name="heads-of-atlas")
    return _svg(label, drawn, size * heads)


def _run(model: GPT, tokenizer: Tokenizer, text: str) -> tuple[str, list[Tensor], list[str]]:
    """The likeliest next piece, each layer's weights (H, T, T), and the text's pieces."""
    ids = tokenizer.encode(text)
    with torch.inference_mode():
        logits, patterns = model.with_patterns(torch.tensor(ids))
    answer = tokenizer.decode([int(logits[-1].argmax())])
    return answer, [one.dense() for one in patterns], [tokenizer.decode([one]) for one in ids]


def _ink(opacity: Tensor, x: float, y: float, width: float, height: float, *, name: str) -> str:
    """The page's accent, as opaque as each entry (rows, columns) of 0 … 1 says."""
    shades = (opacity.clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    rows, columns = shades.shape
    image = Image.frombytes("L", (columns, rows), shades.numpy().tobytes())
    image.quantize(16).save(file, "PNG", optimize=True)
    data = b64encode(file.getvalue()).decode()
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return (
        f'<mask id="{name}"><image {place} href="data:image/png;base64,{data}"/></mask>'
        f'<rect class="ink" {place} mask="url(#{name})"/>'
    )


def _square(kind: str, x: float, y: float, size: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{size}" height="{size}"/>'


def _svg(label: str, content: str, height: float = _HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{content}</svg>"
    )
