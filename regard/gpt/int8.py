"""Weight-only int8 quantization with a scale per row; activations are not quantized.

A number w of a row is stored as the integer nearest to w / s, where s is the row's largest
magnitude divided by 127. So the dequantized ŵ differs from w by at most s / 2. All linear maps and
the token embeddings, tied to the unembedding, are stored so: a generation step reads no other whole
matrix. Norms and biases are small, and a step reads one row of learned positions; these stay.

Axis letters: I inputs, O outputs of a map, V vocabulary, E model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import _huge_pages
from regard._contexts import to_autocast_dtype
from regard._shapes import Float, Int
from regard.backends import native
from regard.gpt.layers import Embedding, Linear, may_use_kernel, times

LARGEST = 127
"""Symmetric int8 range: [−127, 127]."""
_TILE = 2**22
"""Elements of a matrix that are converted to floating point at a time."""
_VECTORS_PER_CALL = 8  # vectors per pass of the kernel over the matrix
_MAX_VECTORS = {torch.float32: 64, torch.float16: 64, torch.bfloat16: 16}
"""Maximum number of vectors for which the kernel was measured to be faster than a library's product
of the dequantized matrix."""


def quantized(weight: Float[Tensor, "O I"]) -> tuple[Int[Tensor, "O I"], Float[Tensor, "O"]]:
    """Round a matrix of finite numbers to int8; return it with the float32 scale of each row."""
    int8_weight = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.zeros(len(weight), device=weight.device)
    if not weight.is_meta:
        _quantize(weight, int8_weight, scale)
    return int8_weight, scale


def _quantize(weight: Tensor, int8_weight: Tensor, scale: Tensor) -> None:
    if weight.shape[-1] == 0:
        return
    for rows in _tiles(weight):
        part = weight[rows].detach().float()
        scale[rows] = part.abs().amax(dim=1) / LARGEST
        divisor = torch.where(scale[rows] > 0, scale[rows], 1)[:, None]
        int8_weight[rows] = (part / divisor).round_().clamp_(-LARGEST, LARGEST)


def _tiles(matrix: Tensor) -> Iterator[slice]:
    """Yield slices of rows to convert to floating point at a time."""
    count = max(1, _TILE // max(1, matrix.shape[-1]))
    for start in range(0, len(matrix), count):
        yield slice(start, start + count)


class Int8Matrix(nn.Module):
    """An int8 matrix with a scale per row.

    Attributes:
        int8_weight: ``(O, I)``.
        scale: ``(O,)``, always float32: row o represents ``scale[o] · int8_weight[o]``.
        dtype: dtype of the model's other parameters.
    """

    int8_weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        int8_weight, scale = quantized(weight)
        self.register_buffer("int8_weight", int8_weight)
        self.register_buffer("scale", scale)
        self.dtype = weight.dtype

    def dequantized(self) -> Float[Tensor, "O I"]:
        """Return the matrix in float32."""
        return self.int8_weight * self.scale[:, None]

    @property
    def weight(self) -> Float[Tensor, "O I"]:
        """The matrix that it stands for, in float32, made at each use."""
        return self.dequantized()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002 - nn.Module's
        """Convert and move as `nn.Module` does, but keep scales in float32."""
        scale = self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype = self.scale.dtype
        if self.scale.dtype != scale.dtype:
            self.scale = scale.to(self.scale.device)
        return self


class Int8Linear(Int8Matrix):
    """A linear map with a matrix of int8."""

    bias: nn.Parameter | None

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear.weight)
        self.register_parameter("bias", linear.bias)

    def forward(self, x: Float[Tensor, "*b I"]) -> Float[Tensor, "*b O"]:
        """``x @ ŵᵀ + bias``."""
        return int8_linear(x, self.int8_weight, self.scale, self.bias)

    def extra_repr(self) -> str:
        """Return the shape, as `nn.Linear` shows it."""
        outputs, inputs = self.int8_weight.shape
        return f"in_features={inputs}, out_features={outputs}, bias={self.bias is not None}"


class Int8Embedding(Int8Matrix):
    """Token embeddings of int8."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__(embedding.weight)
        self.factor = embedding.factor

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b E"]:
        """Return the rows of tokens, in the dtype of the model's other parameters."""
        exact = torch.promote_types(self.dtype, torch.float32)
        rows = F.embedding(ids, self.int8_weight).to(exact)
        rows = (rows * F.embedding(ids, self.scale[:, None])).to(self.dtype)
        return times(rows, self.factor)

    def unembed(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b V"]:
        """``x @ ŵᵀ``."""
        return int8_linear(x, self.int8_weight, self.scale, None)

    def extra_repr(self) -> str:
        """Return the shape, as `nn.Embedding` shows it."""
        return ", ".join(map(str, self.int8_weight.shape))


def to_int8(model: nn.Module) -> None:
    """Replace the linear maps and the token embeddings of a GPT, one matrix after another.

    Its other parameters no longer require gradients, since it can't be trained. For a model on the
    meta device, `int8_state` makes the state dict to load.
    """
    for path, module in list(model.named_modules()):
        made: Int8Matrix
        if isinstance(module, Linear):
            made = Int8Linear(module)
        elif path == "wte" and isinstance(module, Embedding):
            made = Int8Embedding(module)
        else:
            continue
        owner, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(owner), attribute, made.train(module.training))
    model.requires_grad_(requires_grad=False)


def int8_state(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return the state dict of a model that `to_int8` has changed, from floating-point weights.

    Args:
        model: the model.
        weights: names and weights of the original model, one at a time; none is kept.
    """
    matrices = {path for path, part in model.named_modules() if isinstance(part, Int8Matrix)}
    # Allocate all results first, else freed weights would leave gaps between them.
    tensors = model.state_dict()
    memory = _huge_pages.allocate(*((t.shape, t.dtype) for t in tensors.values()))
    state = {name: part.zero_() for name, part in zip(tensors, memory, strict=True)}
    for name, weight in weights:
        path, _, kind = name.rpartition(".")
        if path in matrices and kind == "weight":
            _quantize(weight, state[f"{path}.int8_weight"], state[f"{path}.scale"])
        else:
            state[name].copy_(weight)
    return state


def int8_linear(
    x: Float[Tensor, "*b I"],
    int8_weight: Int[Tensor, "O I"],
    scale: Float[Tensor, "O"],
    bias: Float[Tensor, "O"] | None,
) -> Float[Tensor, "*b O"]:
    """Compute ``x @ (scale · int8_weight)ᵀ + bias`` without dequantizing the whole matrix.

    If `x` requires a gradient, autograd keeps the dequantized matrix until the backward pass.

    Raises:
        ValueError: if a tensor is not on a CPU.
    """
    if not (x.is_cpu and int8_weight.is_cpu):
        raise ValueError(
            f"the model has int8 weights on {int8_weight.device} and reads a tensor on {x.device}; "
            'these are computed on a CPU: move both there, or load it without weights="int8"'
        )
    if may_use_kernel(x, int8_weight, scale, bias):
        some = x.reshape(-1, x.shape[-1]).split(_VECTORS_PER_CALL)
        few = x.shape[:-1].numel() <= _MAX_VECTORS.get(x.dtype, 0)
        if few and native.supports_matvec(some[0], int8_weight, bias, scale):
            parts = [native.matvec(vectors, int8_weight, bias, scale) for vectors in some]
            return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(*x.shape[:-1], -1)
    x = to_autocast_dtype(x)
    with torch.autocast("cpu", enabled=False):
        return _by_rows(x, int8_weight, scale, bias)


def _by_rows(x: Tensor, int8_weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by a few dequantized rows at a time.

    In bfloat16 the integers are exact but their multiples are not, so the scale is applied last; in
    float16 the sum could overflow before that, so it is float32.
    """
    dtype = torch.float32 if x.dtype == torch.float16 else x.dtype
    vectors = x.to(dtype)
    parts = []
    for rows in _tiles(int8_weight):
        weight, added = int8_weight[rows].to(dtype), None if bias is None else bias[rows]
        if dtype == torch.bfloat16:
            part = F.linear(vectors, weight) * scale[rows]
            part = part if added is None else part + added
        else:
            weight.mul_(scale[rows, None])
            part = F.linear(vectors, weight, None if added is None else added.to(dtype))
        parts.append(part.to(x.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
