"""A model that runs in the page and is too large for one file: a folder for any static host.

Its matrices are of int8 with a scale a row, or in the blocks that a GGUF has; all tensors lie one
behind the other, cut into pieces that a browser fetches once, checks and keeps.
`static/live/pieces.js` reads them.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.gpt.blocks import blocks_of
from regard.gpt.int8 import to_int8
from regard.page.file.bundle import module, static
from regard.page.file.live import described, page_of

__all__ = ["PASSAGE", "as_int8", "live_files", "longest", "perplexity"]

PIECE = 2**23  # bytes
_ALIGNMENT = 64  # of a tensor in bytes, a cache line
_CACHE = 2**27
"""Bytes that a text's queries, keys and values may take in the page."""

PASSAGE = """\
The harbour master kept two notebooks. In the first he wrote down every ship that came in, with \
its flag, its cargo and the name of its captain; in the second he wrote what he thought of them. \
When the old lighthouse was sold, a young woman from the city moved into it with her telescope and \
three boxes of books. People said that she was measuring the light of stars that change, and that \
she slept while others worked. One evening in March, when the wind had turned to the north and the \
fishing boats lay two by two along the wall, she came down to the harbour and asked him for the \
times of the tides. He gave her a printed table. She thanked him, read it through, and told him \
that the figures for the ninth of the month could not be right: the second high water would come \
before the first. He had used the table for eleven years. They sat down at his desk, and by \
midnight they had found that the printer had exchanged two columns. After that she came every \
Thursday. He learned that a star can swell and shrink like something that breathes, and that one \
can tell from the rhythm how far away it is. She learned that a cargo of timber smells of resin \
for two days after it has gone, that captains who talk least have usually been furthest, and that \
the sea is not level: it leans towards the moon, and the moon, which is slow to answer, pulls it \
along behind. In the spring he began a third notebook. On its first page he wrote the date, the \
height of the water, and the brightness of a star in the Swan, and under them, in smaller letters, \
that the two did not seem to have anything to do with each other, but that he would go on looking.
"""
"""A text by which a model in whole numbers is compared with the same in float32."""


@torch.no_grad()
def perplexity(model: GPT, ids: Sequence[int]) -> float:
    """Return the perplexity of a text, given its first token."""
    text = torch.tensor(ids, device=model.device)
    logits = model(text[:-1]).double()
    return math.exp(float(torch.nn.functional.cross_entropy(logits, text[1:])))


def as_int8(model: GPT) -> GPT:
    """Return a copy whose matrices are of int8; the model stays as it is."""
    quantised = copy.deepcopy(model)
    to_int8(quantised)
    return quantised


def live_files(
    model: GPT,
    tokenizer: dict[str, Any],
    about: dict[str, Any],
    first: dict[str, Any],
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a folder, by name; the page comes last.

    Args:
        model: the model, with matrices of int8 or in blocks.
        tokenizer: its `tokenizer_file`.
        about: what the page shows, as the server describes it.
        first: the text that is open at first: its ids, notes, and its description, which the page
            shows while the model is fetched.
    """
    tensors, size = _layout(model)
    pieces = []
    for data in _cut(tensor for _, tensor, _ in tensors):
        pieces.append(_entry("weights", data, "bin"))
        yield pieces[-1]["file"], data
    text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode()
    entry = _entry("tokenizer", text, "json")
    yield entry["file"], text
    threads = module("kernels_threads.wasm")
    kernels = _entry("kernels", threads, "wasm")
    yield kernels["file"], threads
    config = replace(model.config, context=longest(model))
    description = {
        "config": described(config),
        "tensors": [
            {"name": name, "offset": offset, "count": tensor.numel()}
            for name, tensor, offset in tensors
        ],
        "blocks": _parts(model, {name: offset for name, _, offset in tensors}),
        "bytes": size,
        "pieces": pieces,
        "tokenizer": entry,
        "threads": kernels,
    }
    limits = about["limits"] | {"tokens": config.context}
    yield "service.js", static("live/service.js").encode()
    yield "index.html", page_of(description, about | {"limits": limits}, first).encode()


def longest(model: GPT) -> int:
    """The longest text that the page reads: its queries, keys and values have room; in tokens."""
    config = model.config
    width = (config.heads + 2 * config.group_count) * config.head_dim
    return min(config.context, _CACHE // (4 * config.layers * width))


def _layout(model: GPT) -> tuple[list[tuple[str, Tensor, int]], int]:
    """The tensors with the place of each, in bytes, and the bytes of all."""
    placed, end = [], 0
    for name, tensor in model.state_dict().items():
        whole = tensor.detach().cpu().contiguous()
        placed.append((name, whole.float() if whole.is_floating_point() else whole, end))
        end += -(-placed[-1][1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return placed, end


def _parts(model: GPT, offsets: dict[str, int]) -> dict[str, list[dict[str, int]]]:
    """The parts of each matrix in blocks, by the matrix's path."""
    return {
        path: [
            {"offset": offsets[f"{path}.part{i}"], "kind": kind, "rows": len(rows)}
            for i, (kind, rows) in enumerate(matrix.parts)
        ]
        for path, matrix in blocks_of(model).items()
    }


def _cut(tensors: Iterator[Tensor]) -> Iterator[bytes]:
    """The bytes of all tensors, each filled up to the next place, in pieces."""
    waiting = bytearray()
    for tensor in tensors:
        waiting += tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        waiting += bytes(-len(waiting) % _ALIGNMENT)
        while len(waiting) >= PIECE:
            yield bytes(waiting[:PIECE])
            del waiting[:PIECE]
    if waiting:
        yield bytes(waiting)


def _entry(name: str, data: bytes, suffix: str) -> dict[str, Any]:
    """A file by what is in it, so that no cache can hold another one of its name."""
    digest = sha256(data).hexdigest()
    return {"file": f"{name}-{digest[:12]}.{suffix}", "bytes": len(data), "sha256": digest}
