"""A step of generation in one call of the native library, where nothing has to see its modules.

Between the layers of a small model, Python takes more time than the computation.

Axis letters: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import is_
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.backends import native
from regard.gpt._linear import Embedding, Linear
from regard.gpt._step_objection import hooks_of, objection_to_call, objection_to_model
from regard.gpt.cache import GPTCache
from regard.gpt.int8 import Int8Matrix
from regard.gpt.model import GPT, Block
from regard.gpt.unwrap import as_gpt
from regard.nn import KVCache, Rotation
from regard.nn.cache import rollback_on_error

Value = TypeVar("Value")

_READ_ONCE = ("mask", "heads", "groups", "widths", "eps")  # of a module, beside its parameters


def step_objection(model: GPT, ids: Int[Tensor, "*b T"], cache: GPTCache) -> str | None:
    """Say why `next_logits` calls the modules one by one, or None where it is one native call.

    Args:
        model: the model.
        ids: as for `GPT.next_logits`.
        cache: likewise.

    Example:
        >>> from regard.gpt import GPTCache, load, step_objection
        >>> model, _ = load()
        >>> step_objection(model, torch.tensor([7]), GPTCache(model.config))
        'gradients may be wanted outside of torch.inference_mode()'
    """
    model = as_gpt(model, whole=False)
    return objection_to_call(ids, cache) or objection_to_model(model, ids, cache)


def step_logits(
    model: GPT, ids: Int[Tensor, "*b 1"], cache: GPTCache, *, unchanged: bool = False
) -> Float[Tensor, "*b V"] | None:
    """Compute `GPT.next_logits` in one call, or None where `step_objection` has a reason.

    Args:
        model: the model.
        ids: as for `GPT.next_logits`.
        cache: likewise.
        unchanged: whether the model and the state of torch are what they were at the cache's last
            step, so that they need no look: the weights have pushed them out of the processor's
            caches, and to look takes a twentieth of a step.

    Raises:
        IndexError: a token lies outside the vocabulary.
        ValueError: the cache is full.
    """
    step = _STEPS.get(cache)
    if step is not None and unchanged:
        return step.logits(ids, cache)
    if objection_to_call(ids, cache) is not None:
        return None
    if step is None or not step.is_current(model, ids):
        if objection_to_model(model, ids, cache) is not None:
            return None
        step = _STEPS[cache] = _Step(model, cache)
    return step.logits(ids, cache)


class _Step:
    """What is known of a model and a cache that have a native step, until they change.

    It holds the memory of the cache and not the cache, with which it is forgotten.

    Args:
        model: the model.
        cache: the cache, into which something was read.
    """

    def __init__(self, model: GPT, cache: GPTCache) -> None:
        self._config = model.config
        self._vocabulary = len(_linear_map(model.wte, None).weight)
        self._cache_layers = cache.layers
        self._modules = list(model.modules())
        self._hooks = [hooks for module in self._modules for hooks in hooks_of(module)]
        self._attributes = [vars(module) for module in self._modules]
        self._settings_of = [
            (table, name) for table in self._attributes for name in _READ_ONCE if name in table
        ]
        self._settings = [table[name] for table, name in self._settings_of]
        self._children = [module._modules for module in self._modules]  # noqa: SLF001 - torch has no public table
        self._submodules = _values(self._children)
        self._tables = [
            table
            for module in self._modules
            for table in (module._parameters, module._buffers)  # noqa: SLF001 - likewise
            if table or table is module._parameters  # noqa: SLF001 - likewise
        ]
        self._parameters = _values(self._tables)
        self._tensors = [t for t in self._parameters if t is not None]
        self._pointers = list(map(Tensor.data_ptr, self._tensors))
        self._strides = list(map(Tensor.stride, self._tensors))
        # Another thread may convert the model during a step, which frees what is not held here.
        self._storages = [t.untyped_storage() for t in self._tensors]
        self._memory = [layer.memory for layer in cache.layers]
        self._kernel = native.GPTStep(_weights(model, cache))

    def is_current(self, model: GPT, ids: Tensor) -> bool:
        """Whether model and cache are what they were, and nothing has come to see the modules."""
        if any(self._hooks) or model is not self._modules[0]:
            return False
        if any(map(_is_changed, self._attributes)):
            return False
        if not _same([table[name] for table, name in self._settings_of], self._settings):
            return False
        if not _same(_values(self._children), self._submodules):
            return False
        if not _same(_values(self._tables), self._parameters):
            return False
        if list(map(Tensor.data_ptr, self._tensors)) != self._pointers:
            return False
        if list(map(Tensor.stride, self._tensors)) != self._strides:
            return False
        memory = self._memory[0]
        assert memory is not None
        batch = memory[0].shape[:-3]
        return ids.shape[:-1] == batch and _same(
            [layer.memory for layer in self._cache_layers], self._memory
        )

    def logits(self, ids: Tensor, cache: GPTCache) -> Tensor:
        """Compute a step: ``(B, 1)`` or ``(1,)`` ids to ``(B, V)`` or ``(V,)`` logits."""
        tokens = ids.flatten().tolist()
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                raise IndexError(
                    f"ids holds {token}; expected 0 to {self._vocabulary - 1}, the vocabulary"
                )
        cache.require_room(1)
        layers, config = self._cache_layers, self._config
        padding, length = layers[0].padding, layers[0].length
        before = [0] * len(tokens) if padding is None else padding.tolist()
        positions = [max(0, length - count) for count in before]
        rotation = None
        if config.positions == "rotary":
            places = torch.tensor(positions, device="cpu")
            rotation = _rotation(places, config.head_dim, config.rotary_base)
        with rollback_on_error(cache):
            stored = []
            for layer in layers:
                keys = layer.extend()
                stored.append((keys, length + 1 - keys))
            logits = self._kernel.logits(
                stored,
                tokens,
                positions,
                padding=None if padding is None else before,
                rotation=rotation,
            )
            return logits.view(*ids.shape[:-1], self._vocabulary)


_STEPS: WeakKeyDictionary[GPTCache, _Step] = WeakKeyDictionary()


def _is_changed(attributes: dict[str, object]) -> bool:
    return "forward" in attributes or bool(attributes["training"])


def _values(tables: Sequence[Mapping[str, Value]]) -> list[Value]:
    return list(chain.from_iterable(table.values() for table in tables))


def _same(now: Sequence[object], before: Sequence[object]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _rotation(positions: Tensor, dim: int, base: float) -> tuple[Tensor, Tensor]:
    rotation = Rotation.of(positions, dim, base=base)  # (B, D/2)
    return rotation.cos.contiguous(), rotation.sin.contiguous()


def _weights(model: GPT, cache: GPTCache) -> native.Weights:
    config = model.config
    return native.Weights(
        heads=config.heads,
        groups=config.group_count,
        dim=config.head_dim,
        hidden=config.hidden_dim,
        gated=config.mlp == "swiglu",
        dtype=model.dtype,
        tokens=_linear_map(model.wte, None),
        learned=None if model.wpe is None else model.wpe.weight,
        norm=_norm(model.ln_f),
        layers=[
            _layer(block, layer)
            for block, layer in zip(model.h, cache.layers, strict=True)
            if isinstance(block, Block)
        ],
    )


def _layer(block: Block, cache: KVCache) -> native.Layer:
    attention, mlp = block.attn, block.mlp
    maps = (attention.c_attn, attention.c_proj, mlp.c_fc, mlp.c_proj)
    assert cache.memory is not None
    return native.Layer(
        attention_norm=_norm(block.ln_1),
        query_norm=None if attention.q_norm is None else _norm(attention.q_norm),
        key_norm=None if attention.k_norm is None else _norm(attention.k_norm),
        mlp_norm=_norm(block.ln_2),
        maps=tuple(_linear_map(linear, linear.bias) for linear in maps),
        memory=cache.memory,
        window=cache.window,
    )


def _linear_map(matrix: Linear | Embedding | Int8Matrix, bias: Tensor | None) -> native.LinearMap:
    if isinstance(matrix, Int8Matrix):
        return native.LinearMap(weight=matrix.int8_weight, bias=bias, scale=matrix.scale)
    return native.LinearMap(weight=matrix.weight, bias=bias, scale=None)


def _norm(norm: nn.Module) -> native.Norm:
    if isinstance(norm, nn.RMSNorm):
        assert norm.eps is not None
        return native.Norm(weight=norm.weight, bias=None, rms=True, epsilon=norm.eps)
    assert isinstance(norm, nn.LayerNorm)
    return native.Norm(weight=norm.weight, bias=norm.bias, rms=False, epsilon=norm.eps)
