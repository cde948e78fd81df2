"""Matrices in the blocks of a GGUF, as they are in the file: products without a dequantised copy.

A block is 32 or 256 numbers of a row that share scales: w = scale · q + offset, with q of 4 to 8
bits. A native kernel multiplies the blocks by inputs that are rounded to 16 bits, 32 at a time with
a scale of their own: each by at most 1/65,534 of the largest of the 32, where float32 rounds to
1/16,777,216. Where it may not, or for gradients, some rows at a time are dequantised.

Source: the formats of llama.cpp, ggml-quants.c; `gguf.dequantize` defines the numbers.

Axis letters: R rows, I inputs, O outputs of a map, V vocabulary, E model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._contexts import to_autocast_dtype
from regard._shapes import Float, Int
from regard.backends import native
from regard.gpt.layers import Embedding, Linear, may_use_kernel, times

_TILE = 2**20
"""Elements of a matrix that are converted to floating point at a time."""
_MAX_VECTORS = 64
"""Maximum number of vectors for which the kernel was measured to be faster than a library's
product, where rows are not blocks but numbers of 16 or 32 bits."""


@dataclass(frozen=True)
class Kind:
    """A format of rows.

    Args:
        name: of GGUF.
        numbers: of a block.
        size: of a block in bytes.
        dequantize: blocks ``(B, size)`` of bytes to their numbers ``(B, numbers)``, float32.
    """

    name: str
    numbers: int
    size: int
    dequantize: Callable[[Tensor], Tensor]


def _halves(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _nibbles(bytes_: Tensor) -> Tensor:
    """The lower halves of some bytes, then the upper ones."""
    return torch.cat([bytes_ & 15, bytes_ >> 4], dim=-1)


def _q4_0(blocks: Tensor) -> Tensor:
    return _halves(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    scale, offset = _halves(blocks[:, :4]).split(1, dim=1)
    return scale * _nibbles(blocks[:, 4:]) + offset


def _q8_0(blocks: Tensor) -> Tensor:
    return _halves(blocks[:, :2]) * blocks[:, 2:].view(torch.int8)


def _q4_k(blocks: Tensor) -> Tensor:
    scale, offset = _halves(blocks[:, :4]).split(1, dim=1)
    low, middle, high = blocks[:, 4:16].split(4, dim=1)
    scales = torch.cat([low & 63, high & 15 | low >> 6 << 4], dim=1)  # (B, 8)
    offsets = torch.cat([middle & 63, high >> 4 | middle >> 6 << 4], dim=1)
    numbers = _nibbles(blocks[:, 16:].unflatten(1, (4, 32))).view(-1, 8, 32)
    return ((scale * scales)[..., None] * numbers - (offset * offsets)[..., None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    lower = blocks[:, :128].unflatten(1, (2, 64))
    lower = torch.stack([lower & 15, lower >> 4], dim=2).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    upper = blocks[:, 128:192].unflatten(1, (2, 1, 32))
    numbers = (lower | (upper >> shifts & 3) << 4).view(-1, 16, 16).float() - 32
    scales = _halves(blocks[:, 208:]) * blocks[:, 192:208].view(torch.int8)  # (B, 16)
    return (scales[..., None] * numbers).flatten(1)


KINDS = {
    0: Kind("F32", 1, 4, lambda bytes_: bytes_.view(torch.float32)),
    1: Kind("F16", 1, 2, _halves),
    2: Kind("Q4_0", 32, 18, _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    12: Kind("Q4_K", 256, 144, _q4_k),
    14: Kind("Q6_K", 256, 210, _q6_k),
    30: Kind("BF16", 1, 2, lambda bytes_: bytes_.view(torch.bfloat16).float()),
}
"""By the number that GGUF and the kernel have for it."""


@dataclass(frozen=True)
class Blocks:
    """The rows of a matrix, in parts of one kind each.

    Args:
        parts: each a number of `KINDS`, and the bytes of its rows ``(R, bytes)``.
    """

    parts: tuple[tuple[int, Tensor], ...]

    @property
    def shape(self) -> torch.Size:
        """``(O, I)``."""
        kind, rows = self.parts[0]
        inputs = rows.shape[1] // KINDS[kind].size * KINDS[kind].numbers
        return torch.Size((sum(len(rows) for _, rows in self.parts), inputs))

    @classmethod
    def joined(cls, matrices: Sequence[Blocks]) -> Blocks:
        """Put matrices below each other; neighbours of one kind become one part."""
        parts: list[tuple[int, list[Tensor]]] = []
        for kind, rows in (part for matrix in matrices for part in matrix.parts):
            if parts and parts[-1][0] == kind:
                parts[-1][1].append(rows)
            else:
                parts.append((kind, [rows]))
        return cls(tuple((kind, torch.cat(rows) if rows[1:] else rows[0]) for kind, rows in parts))

    def dequantized(self) -> Float[Tensor, "O I"]:
        """Return the matrix in float32: the definition of its numbers."""
        return torch.cat([_numbers(kind, rows) for kind, rows in self.parts])

    def tiles(self) -> Iterator[Float[Tensor, "R I"]]:
        """Yield some rows at a time in float32."""
        count = max(1, _TILE // max(1, self.shape[1]))
        for kind, rows in self.parts:
            for some in rows.split(count):
                yield _numbers(kind, some)


def _numbers(kind: int, rows: Tensor) -> Tensor:
    form = KINDS[kind]
    return form.dequantize(rows.reshape(-1, form.size)).view(len(rows), -1)


class BlockMatrix(nn.Module):
    """A matrix in the blocks of a GGUF.

    Attributes:
        kinds: of each part, numbers of `KINDS`; the bytes of part i are the buffer ``part{i}``.
    """

    _like: Tensor

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self.kinds = tuple(kind for kind, _ in blocks.parts)
        for i, (_, rows) in enumerate(blocks.parts):
            self.register_buffer(f"part{i}", rows)
        # Has the dtype of the model's other parameters.
        self.register_buffer("_like", torch.empty(0, device="cpu"), persistent=False)

    @property
    def blocks(self) -> Blocks:
        """Its rows."""
        parts = (cast("Tensor", getattr(self, f"part{i}")) for i in range(len(self.kinds)))
        return Blocks(tuple(zip(self.kinds, parts, strict=True)))

    @property
    def weight(self) -> Float[Tensor, "O I"]:
        """The matrix that they stand for, in float32, made at each use."""
        return self.blocks.dequantized()

    def extra_repr(self) -> str:
        """Return the shape and the kinds."""
        outputs, inputs = self.blocks.shape
        return f"{outputs}, {inputs}, {', '.join(KINDS[kind].name for kind in self.kinds)}"


class BlockLinear(BlockMatrix):
    """A linear map with a matrix in blocks."""

    bias: nn.Parameter | None

    def __init__(self, blocks: Blocks, bias: nn.Parameter | None = None) -> None:
        super().__init__(blocks)
        self.register_parameter("bias", bias)

    def forward(self, x: Float[Tensor, "*b I"]) -> Float[Tensor, "*b O"]:
        """``x @ Wᵀ + bias``."""
        return block_linear(x, self.blocks, self.bias)


class BlockEmbedding(BlockMatrix):
    """Token embeddings in blocks of one kind; `factor` is what rows are multiplied by."""

    def __init__(self, blocks: Blocks, factor: float = 1.0) -> None:
        super().__init__(blocks)
        self.factor = factor

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b E"]:
        """Return the rows of tokens, in the dtype of the model's other parameters."""
        ((kind, data),) = self.blocks.parts
        rows = F.embedding(ids.flatten(), data)
        numbers = _numbers(kind, rows).to(self._like.dtype).view(*ids.shape, -1)
        return times(numbers, self.factor)

    def unembed(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b V"]:
        """``x @ Wᵀ``."""
        return block_linear(x, self.blocks, None)


def to_blocks(model: nn.Module, blocks: Mapping[str, Blocks]) -> None:
    """Replace the linear maps and the token embeddings of a GPT.

    Its other parameters no longer require gradients, since it can't be trained.

    Args:
        model: the model.
        blocks: the matrix of each, by its path; without one it stays as it is.

    Raises:
        ValueError: for a matrix of another shape.
    """
    for path, module in list(model.named_modules()):
        if path not in blocks or not isinstance(module, Linear | Embedding):
            continue
        if blocks[path].shape != module.weight.shape:
            raise ValueError(
                f"{path} is {tuple(module.weight.shape)}, and its blocks are of a matrix of "
                f"{tuple(blocks[path].shape)}"
            )
        made: BlockMatrix
        if isinstance(module, Linear):
            made = BlockLinear(blocks[path], module.bias)
        else:
            made = BlockEmbedding(blocks[path], module.factor)
        owner, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(owner), attribute, made.train(module.training))
    model.requires_grad_(requires_grad=False)


def blocks_of(model: nn.Module) -> dict[str, Blocks]:
    """Return the matrices in blocks of a model, by their paths."""
    modules = model.named_modules()
    return {path: part.blocks for path, part in modules if isinstance(part, BlockMatrix)}


def block_linear(
    x: Float[Tensor, "*b I"], blocks: Blocks, bias: Float[Tensor, "O"] | None
) -> Float[Tensor, "*b O"]:
    """Compute ``x @ Wᵀ + bias`` without dequantising the whole matrix.

    If `x` requires a gradient, autograd keeps the dequantised matrix until the backward pass.

    Raises:
        ValueError: if a tensor is not on a CPU.
    """
    data = [rows for _, rows in blocks.parts]
    if not all(one.is_cpu for one in (x, *data)):
        raise ValueError(
            f"the model has its weights in blocks on {data[0].device} and reads a tensor on "
            f"{x.device}; these are computed on a CPU: move both there, or open it without "
            'weights="blocks"'
        )
    are_blocks = all(KINDS[kind].numbers > 1 for kind, _ in blocks.parts)
    if are_blocks or x.shape[:-1].numel() <= _MAX_VECTORS:
        vectors = x.contiguous()
        usable = may_use_kernel(vectors, *data, bias)
        if usable and native.supports_blocks(vectors, blocks.shape, bias):
            return native.multiply_blocks(vectors, blocks.parts, bias)
    x = to_autocast_dtype(x)
    with torch.autocast("cpu", enabled=False):
        return _by_rows(x, blocks, bias)


def _by_rows(x: Tensor, blocks: Blocks, bias: Tensor | None) -> Tensor:
    """Multiply by a few dequantised rows at a time, in float32 at least."""
    vectors = x.to(torch.promote_types(x.dtype, torch.float32))
    whole = torch.cat([F.linear(vectors, rows.to(vectors.dtype)) for rows in blocks.tiles()], -1)
    return (whole if bias is None else whole + bias).to(x.dtype)
