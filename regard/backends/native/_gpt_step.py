"""Generation: one step of a GPT in one call, and products of a matrix with a few vectors.

Either is limited by the speed at which weights are read from memory.

Axis letters: B batch, G key/value heads, S positions kept, E model dimension, D head dimension,
V vocabulary; I inputs and O outputs of a matrix.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.native import library
from regard.backends.native._arguments import CODES, pointers

MAX_VECTORS = {torch.float32: 32, torch.bfloat16: 32, torch.float16: 64}
"""Of more, products are bound by arithmetic, which matrix libraries do better.

torch's of float16 does not where the processor has no arithmetic in it; there this takes a sixth of
the time."""
_MATVEC = struct.Struct("10q")  # regard_matvec in src/native/abi.h
_LAYER = struct.Struct("3qd3qd3qd3qd33q")  # regard_layer in src/native/abi.h
_STORED = struct.Struct("2q")  # its keys and evicted
_STORED_AT = _LAYER.size - 13 * 8
_GPT = struct.Struct("25qdq")  # regard_gpt there
_UNLIMITED = 2**62

MAX_SEQUENCES = min(MAX_VECTORS.values())
"""Of more the modules are called."""
MAX_HEADS_OF_GROUP = 16
"""For which the kernel has room."""


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A layer norm or RMS norm; None in its place is none."""

    weight: Tensor
    bias: Tensor | None
    rms: bool
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class LinearMap:
    """A linear map."""

    weight: Tensor
    """``(O, I)``, in the dtype or, with a scale, int8."""
    bias: Tensor | None
    scale: Tensor | None
    """``(O,)`` float32, by which the rows are multiplied."""


@dataclass(frozen=True, kw_only=True)
class GPTLayer:
    """A layer's parameters and the memory of its cache."""

    attention_norm: Norm
    query_norm: Norm | None
    key_norm: Norm | None
    mlp_norm: Norm
    maps: tuple[LinearMap, ...]
    """Of queries, keys and values; of contexts; into and out of the hidden channels."""
    memory: tuple[Tensor, Tensor]
    """Keys and values, ``(B, G, S, D)`` or ``(G, S, D)``."""
    window: int | None


@dataclass(frozen=True, kw_only=True)
class GPTWeights:
    """What all steps of a model with a cache share."""

    heads: int
    groups: int
    dim: int
    hidden: int
    gated: bool
    dtype: torch.dtype
    """Of all tensors, but for those of maps and tokens with a scale, which all of them have or
    none."""
    tokens: LinearMap
    """Token embeddings ``(V, E)``, which make the logits too."""
    learned: Tensor | None
    norm: Norm
    layers: Sequence[GPTLayer]


class GPTStep:
    """The steps of a model with a cache.

    Args:
        weights: tensors on the CPU, contiguous except for the cache.
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
        """Compute the logits after one new token a sequence, and add its keys to the cache.

        A sequence's logits depend, to the last bit, on nothing but the sequence, the model and the
        instruction set.

        Args:
            stored: of each layer, the keys stored when the step is done, and those evicted before.
            tokens: B of them, in the vocabulary.
            positions: of each, in the table of learned ones.
            padding: of each sequence, how many positions at the start are padding.
            rotation: contiguous float32 cosines and sines ``(B, D/2)``.
        """
        weights, count = self._weights, len(tokens)
        vocabulary = len(weights.tokens.weight)
        places: list[ctypes.c_int64 | int] = [*tokens, *positions, *(padding or ())]
        self._places[: len(places)] = places
        ids = ctypes.addressof(self._places)
        size = count * ctypes.sizeof(ctypes.c_int64)
        for layer, numbers in enumerate(stored):
            _STORED.pack_into(self._layers, layer * _LAYER.size + _STORED_AT, *numbers)
        result = weights.tokens.weight.new_empty((count, vocabulary), dtype=weights.dtype)
        library.call(
            "regard_gpt_step",
            _GPT.pack(
                *(CODES[weights.dtype], torch.get_num_threads(), count, len(weights.layers)),
                *(weights.heads, weights.groups, weights.dim, weights.hidden, vocabulary),
                *(int(weights.gated), 0, 0, 0),
                *(ids, ids + size, ids + 2 * size if padding else 0),
                *pointers(weights.tokens.weight, weights.learned, weights.tokens.scale),
                *pointers(*(rotation or (None, None))),
                ctypes.addressof(self._layers),
                *_numbers(weights.norm),
                result.data_ptr(),
            ),
        )
        return result


def _packed(layer: GPTLayer) -> bytes:
    return _LAYER.pack(
        *_numbers(layer.attention_norm),
        *_numbers(layer.query_norm),
        *_numbers(layer.key_norm),
        *_numbers(layer.mlp_norm),
        *(pointer for m in layer.maps for pointer in pointers(m.weight, m.bias, m.scale)),
        *(number for memory in layer.memory for number in _places(memory)),
        *(0, 0, _UNLIMITED if layer.window is None else layer.window),
        *[0] * 10,  # nothing is looked at or changed
    )


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
    """Whether `matvec` takes these tensors, which are in the CPU's memory."""
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:]:
        return False  # which torch refuses
    if any(t is not None and t.shape != weight.shape[:1] for t in (bias, scale)):
        return False  # or it broadcasts
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
    """Compute ``x @ weightᵀ + bias``, added up in float32; no gradient.

    With a scale the weight is int8, and each of its rows is multiplied by its scale. A vector's
    result depends, to the last bit, on nothing but the vector, the matrix and the instruction set:
    not on what is computed beside it.
    """
    outputs, inputs = weight.shape
    result = x.new_empty((*x.shape[:-1], outputs))
    library.call(
        "regard_multiply",
        _MATVEC.pack(
            CODES[x.dtype],
            torch.get_num_threads(),
            x.numel() // inputs,
            inputs,
            outputs,
            x.data_ptr(),
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if scale is None else scale.data_ptr(),
            result.data_ptr(),
        ),
    )
    return result
