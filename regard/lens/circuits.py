"""The QK and OV circuits of a head: what it compares and what it copies, as low-rank factors.

A head's four matrices act on the residual stream in two pairs. Each pair is an E × E matrix of rank
D, kept as its two factors and never multiplied out. Vectors are rows, as in ``x @ weight``; in the
paper they are columns, so its maps are the transposes of these.

Axes: E model dimension, H query heads, G key/value heads, D head dimension, V vocabulary.

Source: Elhage et al., "A Mathematical Framework for Transformer Circuits" (2021),
https://transformer-circuits.pub/2021/framework, section "Summarizing OV/QK Matrices".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard._modules import require_whole, unwrapped
from regard._shapes import Complex, Float
from regard._tensors import matmul_alone

__all__ = ["LowRank", "copying", "ov", "qk"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_ROWS = 4096  # rows of the vocabulary converted to float64 at a time
SUPPORTED = (
    "supported are regard.gpt's GPT, and of transformers GPT-2 (h[i].attn.c_attn, c_proj) and "
    "Llama-like models (layers[i].self_attn.q_proj, k_proj, v_proj, o_proj)"
)


@dataclass(frozen=True, eq=False, repr=False)
class LowRank:
    """A linear operator: the E × E matrix ``left @ right`` of rank at most D, never formed.

    Args:
        left: ``(E, D)``.
        right: ``(D, E)``, of the same dtype, on the same device.

    Raises:
        TypeError: if a factor is not a floating-point tensor.
        ValueError: if the factors do not fit together.

    Example:
        >>> circuit = LowRank(torch.tensor([[3.0], [4.0]]), torch.tensor([[1.0, 0.0]]))
        >>> circuit
        LowRank(2 × 2, rank at most 1, float32, cpu)
        >>> torch.tensor([1.0, 1.0]) @ circuit
        tensor([7., 0.])
        >>> circuit.singular_values(), circuit.eigenvalues()
        (tensor([5.], dtype=torch.float64), tensor([3.+0.j], dtype=torch.complex128))
    """

    left: Float[Tensor, "E D"]
    right: Float[Tensor, "D E"]

    def __post_init__(self) -> None:
        left, right = self.left, self.right
        for name, factor in (("left", left), ("right", right)):
            if not isinstance(factor, Tensor) or factor.dtype not in _DTYPES:
                kind = getattr(factor, "dtype", type(factor).__name__)
                raise TypeError(f"{name} must be a floating-point tensor, but is {kind}")
        if left.ndim != 2 or right.shape != left.shape[::-1]:
            raise ValueError(
                f"left has shape {tuple(left.shape)} and right {tuple(right.shape)}, but they must "
                "be (E, D) and (D, E); transpose the other one"
            )
        if (left.dtype, left.device) != (right.dtype, right.device):
            raise ValueError(
                f"left is {left.dtype} on {left.device} and right {right.dtype} on {right.device}, "
                "but they must agree; take right.to(left)"
            )

    @property
    def shape(self) -> torch.Size:
        """``(E, E)``."""
        return torch.Size((self.left.shape[0], self.right.shape[1]))

    def __repr__(self) -> str:
        (width, rank), dtype = self.left.shape, str(self.left.dtype).removeprefix("torch.")
        return f"LowRank({width} × {width}, rank at most {rank}, {dtype}, {self.left.device})"

    def singular_values(self) -> Float[Tensor, "D"]:
        """Compute the D largest singular values, largest first; the other E − D are zero.

        In float64: the triangular factors of two QR decompositions, O(E·D²), and an SVD of D × D.

        Raises:
            ValueError: if a factor holds NaN or infinite values.
        """
        first, second = (
            torch.linalg.qr(f, mode="r").R for f in (self._exact[0], self._exact[1].mT)
        )
        return torch.linalg.svdvals(first @ second.mT)

    def eigenvalues(self) -> Complex[Tensor, "D"]:
        """Compute the D eigenvalues that may be nonzero, unordered; the other E − D are zero.

        In complex128. ``left @ right`` and ``right @ left``, which is D × D, have the same ones.

        Raises:
            ValueError: if a factor holds NaN or infinite values.
        """
        left, right = self._exact
        return _eigenvalues(right @ left)

    @property
    def _exact(self) -> tuple[Tensor, Tensor]:
        """Both factors in float64; on the CPU if the device has no float64."""
        for name, factor in (("left", self.left), ("right", self.right)):
            if not bool(factor.isfinite().all()):
                raise ValueError(f"{name} holds NaN or infinite values; repair the model's weights")
        device = "cpu" if self.left.device.type == "mps" else self.left.device
        return self.left.to(device).double(), self.right.to(device).double()

    def __matmul__(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Apply to columns: y is ``(E,)`` or ``(..., E, N)``."""
        if not isinstance(y, Tensor):
            return NotImplemented
        self._check_operand(y, y.shape[-2:][:1], "(E,) or (..., E, N)")
        return self.left @ (self.right @ y)

    def __rmatmul__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Apply to rows: x is ``(..., E)``."""
        if not isinstance(x, Tensor):
            return NotImplemented
        self._check_operand(x, x.shape[-1:], "(..., E)")
        return (x @ self.left) @ self.right

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Support ``tensor @ circuit``; any other torch function raises an error."""
        cure = "write it down: map.left @ map.right"
        return matmul_alone(LowRank, function, types, args, kwargs, cure)

    def _check_operand(self, x: Tensor, width: torch.Size, expected: str) -> None:
        if width != self.shape[:1] or (x.dtype, x.device) != (self.left.dtype, self.left.device):
            raise ValueError(
                f"an operand {tuple(x.shape)} of {x.dtype} on {x.device} does not fit {self!r}: "
                f"it must be {expected} with E={self.shape[0]}, of this dtype and device; "
                "see Tensor.to"
            )


def qk(model: nn.Module, layer: int, head: int) -> LowRank:
    """Return the QK circuit of a head: ``x @ qk @ y`` is its score of destination x for source y.

    The score is q·k before scaling, without 1/√D and biases. x and y are the inputs of the
    projections, after normalisation. Rotary positions are left out: it is the map at equal
    positions, where the two rotations cancel.

    Args:
        model: regard's GPT, or one of transformers: GPT-2, or Llama-like (Llama, Mistral, Qwen2,
            Gemma, ...), with or without a language-model head.
        layer: index of the block, from 0.
        head: index of the query head, from 0; with grouped heads, its shared key head is used.

    Returns:
        Left is the query matrix ``(E, D)``, right the transposed key matrix ``(D, E)``. Both are
        views of the model's weights, without gradients.

    Raises:
        TypeError: if the model is of another kind, normalises queries or keys inside its attention
            (for which no such map exists), or has quantised matrices or adapters; or for an index
            that is not an integer.
        IndexError: if there is no such layer or head.
        ValueError: if the sizes of the matrices do not fit together, or they hold no values.

    Example:
        >>> from regard.gpt import GPT, GPTConfig
        >>> qk(GPT(GPTConfig(layers=2, heads=3, dim=12)), layer=1, head=2)
        LowRank(12 × 12, rank at most 4, float32, cpu)
    """
    parts = _find(model, layer, head)
    _refuse(parts.layer.extras, "use ov, or a model that does not normalise queries and keys")
    return parts.qk


def ov(model: nn.Module, layer: int, head: int) -> LowRank:
    """Return the OV circuit of a head: ``x @ ov`` is its output if all its weight is on source x.

    As in `qk`, x is the input of the value matrix, without biases. A normalisation or scaling of
    the heads' sum before it is added to the residual stream is left out too.

    Args:
        model: as for `qk`.
        layer: as for `qk`.
        head: as for `qk`.

    Returns:
        Left is the value matrix ``(E, D)``, right the head's slice of the output matrix ``(D, E)``;
        D is the head dimension of the values. Both are views, as for `qk`.

    Raises:
        TypeError, IndexError, ValueError: as for `qk`; normalised queries and keys are allowed.

    Example:
        >>> from regard.gpt import GPT, GPTConfig
        >>> model = GPT(GPTConfig(layers=2, heads=3, dim=12))
        >>> (torch.randn(5, 12) @ ov(model, layer=1, head=2)).shape
        torch.Size([5, 12])
    """
    parts = _find(model, layer, head)
    others = [name for name in parts.layer.extras if not name.startswith(("q", "k"))]
    _refuse(others, "use a model whose attention has its four matrices alone")
    return parts.ov


def copying(model: nn.Module, layer: int, head: int) -> float:
    """Compute the copying score of a head, −1 to 1: whether it raises logits of attended tokens.

    Σλ / Σ|λ| over the eigenvalues λ of the full OV circuit, embedding · ov · unembedding, V × V.
    The nonzero ones are those of a D × D matrix, the only one formed, in float64. It is 1 if
    every direction raises the logits of its own tokens, −1 if every one lowers them, and 0 if the
    output of the head is 0. Normalisations, biases and positions are left out.

    Args:
        model: as for `qk`, with an unembedding.
        layer: as for `qk`.
        head: as for `qk`.

    Raises:
        TypeError, IndexError, ValueError: as for `ov`; also TypeError for a model without an
            unembedding, ValueError if its vocabulary is not the embedding's, or for NaN or inf.

    Example:
        >>> from regard.gpt import GPT, GPTConfig
        >>> -1 <= copying(GPT(GPTConfig(layers=2, heads=3, dim=12)), layer=1, head=2) <= 1
        True
    """
    left, right = ov(model, layer, head)._exact  # noqa: SLF001 - of this module
    embedding, unembedding = _vocabulary(model)
    core = left.new_zeros(right.shape[0], left.shape[1])  # (D, D)
    for into, out in zip(embedding.split(_ROWS), unembedding.split(_ROWS, dim=1), strict=True):
        core += (right @ out.to(left)) @ (into.to(left) @ left)
    if not bool(core.isfinite().all()):
        raise ValueError("model has NaN or infinite values in its embeddings; repair its weights")
    values = _eigenvalues(core)
    size = float(values.abs().sum())
    return min(1.0, max(-1.0, float(values.real.sum()) / size)) if size else 0.0


def _eigenvalues(core: Tensor) -> Tensor:
    """Return the eigenvalues of a small matrix, on the CPU: not every torch has them on a GPU."""
    return torch.linalg.eigvals(core.cpu()).to(core.device)


# The matrices of a model: a function per family


class _Layer(NamedTuple):
    matrices: tuple[Tensor, ...]  # for rows: (E, H·D), (E, G·D), (E, G·Dv), (H·Dv, E)
    dim: int  # D
    extras: tuple[str, ...] = ()  # further modules inside the attention


class _Head(NamedTuple):
    qk: LowRank
    ov: LowRank
    layer: _Layer


def _gpt(block: nn.Module) -> _Layer | None:
    """Read our GPT: one `nn.Linear` for queries, keys and values."""
    projection, heads = _get(block, "attn.c_attn"), _get(block, "attn.heads")
    if not isinstance(projection, nn.Linear) or not isinstance(heads, int):
        return None
    parts = matrix_of("c_attn", projection).split(_get(block, "attn.widths"), dim=1)
    output = matrix_of("c_proj", output_of(_get(block, "attn")))
    extras = tuple(name for name in ("q_norm", "k_norm") if _get(block, f"attn.{name}") is not None)
    return _Layer((*parts, output), parts[0].shape[1] // heads, extras=extras)


def _gpt2(block: nn.Module) -> _Layer | None:
    """Read GPT-2 of transformers: the same as a `Conv1D`, whose weight is transposed."""
    projection, dim = _get(block, "attn.c_attn"), _get(block, "attn.head_dim")
    if projection is None or isinstance(projection, nn.Linear) or not isinstance(dim, int):
        return None
    output = matrix_of("c_proj", output_of(_get(block, "attn")))
    return _Layer((*matrix_of("c_attn", projection).chunk(3, dim=1), output), dim)


def _llama(block: nn.Module) -> _Layer | None:
    """Read Llama-like models: four `nn.Linear`; heads may share keys and values."""
    attention, dim = _get(block, "self_attn"), _get(block, "self_attn.head_dim")
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    if not isinstance(dim, int) or any(_get(attention, name) is None for name in names):
        return None
    inputs = (matrix_of(name, _get(attention, name)) for name in names[:3])
    matrices = (*inputs, matrix_of("o_proj", output_of(attention)))
    extras = tuple(
        name
        for name, child in attention.named_children()
        if name not in names and ("norm" in name or any(True for _ in child.parameters()))
    )
    return _Layer(matrices, dim, extras=extras)


def _find(model: nn.Module, layer: int, head: int) -> _Head:
    model = require_plain(model)
    blocks = _first(model, "h", "transformer.h", "layers", "model.layers")
    if not isinstance(blocks, nn.ModuleList):
        raise TypeError(
            f"model is {type(model).__name__}, which has no blocks that are known; {SUPPORTED}"
        )
    _check_index("layer", layer, len(blocks))
    families = (family(blocks[layer]) for family in (_gpt, _gpt2, _llama))
    if (own := next((one for one in families if one is not None), None)) is None:
        raise TypeError(
            f"model is {type(model).__name__}, whose layer {layer}, "
            f"{type(blocks[layer]).__name__}, has no attention that is known; {SUPPORTED}"
        )
    query, key, value, output = own.matrices
    heads, groups = query.shape[1] // own.dim, key.shape[1] // own.dim
    wide = output.shape[0] // max(heads, 1)  # Dv
    expected = [(output.shape[1], n) for n in (heads * own.dim, groups * own.dim, groups * wide)]
    fits = groups > 0 and heads % groups == 0 and output.shape[0] == heads * wide
    if not fits or [tuple(m.shape) for m in (query, key, value)] != expected:
        raise ValueError(
            f"model has an attention of {[tuple(m.shape) for m in own.matrices]} with head "
            f"dimension {own.dim}, but (E, H·D), (E, G·D), (E, G·D), (H·D, E) are expected, H a "
            f"multiple of G: its heads are of another kind; {SUPPORTED}"
        )
    _check_index("head", head, heads)
    shared = head // (heads // groups)
    query, key = query.split(own.dim, dim=1)[head], key.split(own.dim, dim=1)[shared]
    value, output = value.split(wide, dim=1)[shared], output.split(wide)[head]
    return _Head(LowRank(query, key.mT), LowRank(value, output), own)


def require_plain(model: Any) -> Any:
    """Return the module inside wrappers, whose weights can be read.

    Raises:
        TypeError: for weights in int8 or blocks.
        ValueError: for a model that is sharded.
    """
    model = unwrapped(model)
    require_whole(model)
    kept = getattr(model, "weights", None)
    if isinstance(kept, str):
        raise TypeError(
            f"model has weights in {kept}, which are near those that it was trained with; load it "
            f'without weights="{kept}"'
        )
    return model


def output_of(attention: Any) -> nn.Module | None:
    """Return the module W_O inside an attention module, or None.

    It is ``c_proj`` in GPT-2 and regard.gpt, ``o_proj`` in Llama-like models, ``out_proj`` in
    `torch.nn.MultiheadAttention`, ``output`` in `regard.nn.MultiHeadAttention`.
    """
    found = _first(attention, "c_proj", "o_proj", "out_proj", "output")
    return found if isinstance(found, nn.Module) else None


def _vocabulary(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the embedding ``(V, E)`` and the unembedding ``(E, V)``."""
    model = unwrapped(model)
    paths = ("wte", "transformer.wte", "embed_tokens", "model.embed_tokens")
    embedding = matrix_of("embedding", _first(model, *paths))
    if _get(model, "config.tied") is True:  # a GPT
        return embedding, embedding.mT
    if (last := _get(model, "lm_head")) is None:
        raise TypeError(
            f"model is {type(model).__name__}, which has no unembedding (lm_head); take the one "
            "with a language head, such as GPT2LMHeadModel or LlamaForCausalLM"
        )
    unembedding = matrix_of("lm_head", last)
    if unembedding.shape != embedding.shape[::-1]:
        raise ValueError(
            f"model has an embedding {tuple(embedding.shape)} and an unembedding "
            f"{tuple(unembedding.shape)}, but (V, E) and (E, V) are expected; resize one"
        )
    return embedding, unembedding


def matrix_of(name: str, module: Any) -> Tensor:
    """Return a module's weight in the layout of ``x @ weight``."""
    weight = getattr(module, "weight", None)
    plain = isinstance(module, nn.Linear | nn.Embedding) or type(module).__name__ == "Conv1D"
    dtype = getattr(weight, "dtype", "no weight")
    if not plain or not isinstance(weight, Tensor) or dtype not in _DTYPES:
        raise TypeError(
            f"model has a {name} of {type(module).__name__}, {dtype}; expected a plain matrix "
            "of floating point: merge adapters, load without quantisation"
        )
    if weight.is_meta:
        raise ValueError(f"model has a {name} without values (device meta); load it whole")
    return weight.detach().mT if isinstance(module, nn.Linear) else weight.detach()


def _refuse(extras: Sequence[str], cure: str) -> None:
    if extras:
        raise TypeError(
            f"model has {', '.join(extras)} inside its attention, but a map is the product of two "
            f"matrices alone; {cure}"
        )


def _check_index(name: str, index: int, count: int) -> None:
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"{name} must be an integer from 0 to {count - 1}, but is {index!r}")
    if not 0 <= index < count:
        raise IndexError(f"{name} is {index}, but there are {name}s 0 to {count - 1}")


def _get(module: Any, path: str) -> Any:
    return reduce(lambda owner, name: getattr(owner, name, None), path.split("."), module)


def _first(module: Any, *paths: str) -> Any:
    return next((part for path in paths if (part := _get(module, path)) is not None), None)
