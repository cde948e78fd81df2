"""Random matrices in the blocks of a GGUF."""

import copy
from itertools import cycle

import torch

from regard.gpt import GPT
from regard.gpt.blocks import KINDS, Blocks, to_blocks
from regard.gpt.layers import Embedding, Linear

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


def pair_in_blocks(config):
    """A model with blocks of every kind, and one in float64 that holds the same numbers."""
    torch.manual_seed(5)
    draw = torch.Generator().manual_seed(3)
    model = GPT(config).eval()
    for parameter in model.parameters():  # or biases were 0, gains 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    exact = copy.deepcopy(model).double()
    kinds, blocks = cycle(BLOCK_KINDS), {}
    for path, module in model.named_modules():
        if isinstance(module, Linear):
            rows, inputs = module.weight.shape
            some = [rows // 3, rows - rows // 3]
            blocks[path] = Blocks.joined(
                [drawn_blocks(next(kinds), count, inputs, draw) for count in some]
            )
        elif isinstance(module, Embedding):
            blocks[path] = drawn_blocks(14, *module.weight.shape, draw)
    to_blocks(model, blocks)
    for path, matrix in blocks.items():
        exact.get_submodule(path).weight.data = matrix.dequantized().double()
    return model, exact
