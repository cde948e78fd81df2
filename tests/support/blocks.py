"""Random matrices in the blocks of a GGUF."""

import torch

from regard.gpt.blocks import KINDS, Blocks

BLOCK_KINDS = [number for number, kind in KINDS.items() if kind.numbers > 1]
SCALES = {2: (0,), 3: (0, 2), 8: (0,), 12: (0, 2), 14: (208,)}
"""Where the float16 of a block are."""
LARGEST = {2: 8, 3: 15, 8: 128, 12: 63 * 15, 14: 128 * 32}
"""What a scale is multiplied by, at most."""


def drawn_blocks(kind, rows, inputs, draw):
    """Rows of any bytes, with scales of either sign for which numbers are some hundredths."""
    form = KINDS[kind]
    if form.numbers == 1:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[form.name]
        numbers = torch.randn(rows, inputs, generator=draw) / 16
        return Blocks(((kind, numbers.to(dtype).view(torch.uint8)),))
    shape = (rows, inputs // form.numbers, form.size)
    data = torch.randint(256, shape, generator=draw, dtype=torch.uint8)
    for place in SCALES[kind]:
        scale = (torch.rand(shape[:-1], generator=draw) - 0.5) / 4 / LARGEST[kind]
        if place == 2:  # an offset is no multiple of as much
            scale *= 15
        data[..., place : place + 2] = scale.half()[..., None].view(torch.uint8)
    return Blocks(((kind, data.flatten(1)),))
