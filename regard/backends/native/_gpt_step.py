"""Generation: one step of a GPT in one call, and products of a matrix with a few vectors.

Both are bound by memory bandwidth, with which the weights are read.

Axes: B batch, G key/value heads, S positions of the cache, E model dimension, D head dimension,
V vocabulary; I inputs and O outputs of a matrix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.native import library
from regard.backends.native._arguments import CODES, pointers
from regard.backends.native._structs import BLOCKS, GPT, LAYER, MATVEC, pack_integer_into

MAX_VECTORS = {torch.float32: 32, torch.bfloat16: 32, torch.float16: 64}
"""Maximum number of vectors of `matvec`: products with more are bound by arithmetic, for which
matrix libraries are faster.

In float16 torch is slower on processors without float16 arithmetic: this takes a sixth of the time.
"""
_KEYS, _EVICTED = LAYER.offset("keys"), LAYER.offset("evicted")
_UNLIMITED = 2**62

MAX_SEQUENCES = min(MAX_VECTORS.values())
"""Maximum batch of `GPTStep`."""
MLPS = "gelu", "swiglu", "geglu"
"""The MLPs of `GPTStep`, by their numbers."""
MAX_HEADS_OF_GROUP = 16
"""Maximum number of query heads per key/value head of `GPTStep`."""


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A layer norm or RMS norm."""

    weight: Tensor
    bias: Tensor | None
    rms: bool
    epsilon: float


Blocks = Sequence[tuple[int, Tensor]]
"""Rows in the blocks of a GGUF, part by part: the number of the format there, and bytes
``(rows, bytes)``, contiguous."""


@dataclass(frozen=True, kw_only=True)
class LinearMap:
    """A linear map, maybe quantized."""

    weight: Tensor | None
    """``(O, I)``, in the model's dtype, or int8 with a scale; None if it is in blocks."""
    bias: Tensor | None = None
    scale: Tensor | None = None
    """Scale of each row, ``(O,)`` float32."""
    blocks: Blocks | None = None

    @cached_property
    def table(self) -> ctypes.Array[ctypes.c_char] | None:
        """The kernel's list of the parts; None without blocks."""
        return None if self.blocks is None else ctypes.create_string_buffer(_table(self.blocks))


@dataclass(frozen=True, kw_only=True)
class GPTLayer:
    """The parameters and the cache of a layer."""

    attention_norm: Norm
    query_norm: Norm | None
    key_norm: Norm | None
    mlp_norm: Norm
    attention_output_norm: Norm | None
    mlp_output_norm: Norm | None
    maps: tuple[LinearMap, ...]
    """The QKV projection, the output projection, and the MLP's up and down projections."""
    memory: tuple[Tensor, Tensor]
    """The cached keys and values, ``(B, G, S, D)`` or ``(G, S, D)``."""
    window: int | None
    rotation: int
    """The number of its table of cosines and sines."""
    query: Tensor | None = None
    """A buffer for the queries of each step, ``(B, H, D)``; None if nobody reads them."""
    scores: Tensor | None = None
    """Likewise for their scores, ``(B, H, room)`` float32, −∞ where a key is hidden."""


@dataclass(frozen=True, kw_only=True)
class GPTWeights:
    """The parameters and caches of a model, which all its steps share."""

    width: int
    heads: int
    groups: int
    dim: int
    hidden: int
    mlp: str
    """A key of `MLPS`."""
    dtype: torch.dtype
    """Dtype of all tensors, except for quantized weights and their scales; either all maps and the
    token embeddings are int8, or in blocks, which need float32, or none."""
    tokens: LinearMap
    """Token embeddings ``(V, E)``."""
    factor: float
    """What they are multiplied by where they are read."""
    scale: float
    """Of scores."""
    softcap: float
    """Likewise; 0 for none."""
    logit_softcap: float
    unembedding: LinearMap
    """``(V, E)``, of which the logits are made; often the token embeddings."""
    vocabulary: int
    learned: Tensor | None
    norm: Norm
    layers: Sequence[GPTLayer]


class GPTStep:
    """Generation steps of a model with a cache.

    Args:
        weights: CPU tensors, contiguous except for the cache.
    """

    def __init__(self, weights: GPTWeights) -> None:
        self._weights = weights
        self._places = (ctypes.c_int64 * (3 * MAX_SEQUENCES))()  # tokens, positions, padding
        self._layers = ctypes.create_string_buffer(b"".join(map(_packed, weights.layers)))

    def logits(
        self,
        stored: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        positions: Sequence[int],
        *,
        padding: Sequence[int] | None,
        rotation: tuple[Tensor, Tensor] | None,
    ) -> Float[Tensor, "B V"]:
        """Compute the logits after one new token per sequence, and append its keys to the cache.

        The logits of a sequence are bitwise independent of the other sequences and of the number of
        threads.

        Args:
            stored: for each layer, the numbers of keys cached after the step and evicted before it.
            tokens: the id of each sequence's new token, B of them.
            positions: the index of each in the table of learned positions.
            padding: the number of leading padding positions of each sequence; None for none.
            rotation: contiguous float32 cosines and sines, N tables ``(N, B, D/2)``; None without
                rotary.
        """
        weights, count = self._weights, len(tokens)
        vocabulary = weights.vocabulary
        places: list[ctypes.c_int64 | int] = [*tokens, *positions, *(padding or ())]
        self._places[: len(places)] = places
        ids = ctypes.addressof(self._places)
        size = count * ctypes.sizeof(ctypes.c_int64)
        for layer, (keys, evicted) in enumerate(stored):
            pack_integer_into(self._layers, layer * LAYER.size + _KEYS, keys)
            pack_integer_into(self._layers, layer * LAYER.size + _EVICTED, evicted)
        result = torch.empty((count, vocabulary), dtype=weights.dtype, device="cpu")
        library.call(
            "regard_gpt_step",
            GPT.pack(
                *(CODES[weights.dtype], torch.get_num_threads(), count, len(weights.layers)),
                *(weights.width, weights.heads, weights.groups, weights.dim, weights.hidden),
                vocabulary,
                *(MLPS.index(weights.mlp), 0, 0, weights.factor),
                *(weights.scale, weights.softcap, weights.logit_softcap, 0),
                *(ids, ids + size, ids + 2 * size if padding else 0),
                *_places_of(weights.tokens),
                *pointers(weights.learned, *(rotation or (None, None))),
                ctypes.addressof(self._layers),
                *_numbers(weights.norm),
                *_places_of(weights.unembedding),
                result.data_ptr(),
            ),
        )
        return result


def _packed(layer: GPTLayer) -> bytes:
    return LAYER.pack(
        *_numbers(layer.attention_norm),
        *_numbers(layer.query_norm),
        *_numbers(layer.key_norm),
        *_numbers(layer.mlp_norm),
        *_numbers(layer.attention_output_norm),
        *_numbers(layer.mlp_output_norm),
        *(pointer for linear in layer.maps for pointer in _places_of(linear)),
        *(number for memory in layer.memory for number in _places(memory)),
        *(0, 0, _UNLIMITED if layer.window is None else layer.window, layer.rotation),
        *(0, *pointers(layer.query, layer.scores)),  # nobody reads the residual stream
        0 if layer.scores is None else layer.scores.shape[-1],
        *[0] * 8,  # nothing is changed
    )


def _places_of(linear: LinearMap) -> Sequence[int]:
    table = linear.table
    blocks = 0 if table is None else ctypes.addressof(table)
    return *pointers(linear.weight, linear.bias, linear.scale), blocks


def _table(blocks: Blocks) -> bytes:
    return b"".join(BLOCKS.pack(rows.data_ptr(), kind, len(rows)) for kind, rows in blocks)


def _numbers(norm: Norm | None) -> tuple[int, int, int, float]:
    if norm is None:
        return 0, 0, 0, 0.0
    weight, bias = pointers(norm.weight, norm.bias)
    return weight, bias, int(norm.rms), norm.epsilon


def _places(memory: Tensor) -> tuple[int, int, int, int]:
    batch = memory.stride(0) if memory.ndim > 3 else 0
    return memory.data_ptr(), batch, memory.stride(-3), memory.stride(-2)


def supports_matvec(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None
) -> bool:
    """Whether `matvec` supports these tensors, which are on the CPU."""
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:]:
        return False  # torch raises an error
    if any(t is not None and t.shape != weight.shape[:1] for t in (bias, scale)):
        return False  # torch raises an error, or broadcasts
    if x.dtype not in CODES or weight.dtype != (x.dtype if scale is None else torch.int8):
        return False
    if scale is not None and not (scale.dtype == torch.float32 and scale.is_contiguous()):
        return False
    if not 0 < x.numel() <= MAX_VECTORS[x.dtype] * x.shape[-1]:
        return False
    if not (x.is_contiguous() and weight.is_contiguous()):
        return False
    if bias is not None and not (bias.dtype == x.dtype and bias.is_contiguous()):
        return False
    return library.why_missing() is None


def matvec(
    x: Float[Tensor, "*v I"],
    weight: Float[Tensor, "O I"] | Int[Tensor, "O I"],
    bias: Float[Tensor, "O"] | None,
    scale: Float[Tensor, "O"] | None = None,
) -> Float[Tensor, "*v O"]:
    """Compute ``x @ weightᵀ + bias``, accumulated in float32, without gradients.

    With a scale the weight is int8, and each of its rows is multiplied by its scale. The result of
    a vector is bitwise independent of the other vectors and of the number of threads.
    """
    outputs, inputs = weight.shape
    result = x.new_empty((*x.shape[:-1], outputs))
    library.call(
        "regard_multiply",
        MATVEC.pack(
            CODES[x.dtype],
            torch.get_num_threads(),
            x.numel() // inputs,
            inputs,
            outputs,
            x.data_ptr(),
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if scale is None else scale.data_ptr(),
            0,
            result.data_ptr(),
        ),
    )
    return result


def supports_blocks(x: Tensor, shape: Sequence[int], bias: Tensor | None) -> bool:
    """Whether `multiply_blocks` supports inputs and a bias on the CPU for a matrix of a shape."""
    if x.dtype != torch.float32 or x.shape[-1:] != shape[1:] or not x.is_contiguous():
        return False
    if x.numel() == 0:
        return False
    if bias is not None and (bias.dtype != x.dtype or bias.shape != shape[:1]):
        return False
    return (bias is None or bias.is_contiguous()) and library.why_missing() is None


def multiply_blocks(
    x: Float[Tensor, "*v I"], blocks: Blocks, bias: Float[Tensor, "O"] | None
) -> Float[Tensor, "*v O"]:
    """Compute ``x @ Wᵀ + bias`` for a matrix in the blocks of a GGUF, without gradients.

    The inputs are rounded to 16 bits, 32 at a time: each by at most 1/65,534 of the largest of the
    32. The result of a vector is bitwise independent of the others and of the number of threads.
    """
    inputs, outputs = x.shape[-1], sum(len(rows) for _, rows in blocks)
    result = x.new_empty((*x.shape[:-1], outputs))
    table = _table(blocks)
    library.call(
        "regard_multiply",
        MATVEC.pack(
            *(CODES[x.dtype], torch.get_num_threads(), x.numel() // inputs, inputs, outputs),
            *(x.data_ptr(), 0, 0 if bias is None else bias.data_ptr(), 0),
            ctypes.cast(ctypes.c_char_p(table), ctypes.c_void_p).value or 0,
            result.data_ptr(),
        ),
    )
    return result
