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
from torch.nn.modules import module as torch_modules
from torch.overrides import has_torch_function

from regard._contexts import must_dispatch
from regard._shapes import Float, Int
from regard.backends import native
from regard.gpt._block_shapes import has_width, objection_to_shapes
from regard.gpt._linear import Embedding, Linear
from regard.gpt._pointwise import LayerNorm, RMSNorm
from regard.gpt.cache import GPTCache
from regard.gpt.config import GPTConfig
from regard.gpt.int8 import Int8Embedding, Int8Linear, Int8Matrix
from regard.gpt.mlp import MLP, SwiGLU
from regard.gpt.model import GPT, Block
from regard.gpt.self_attention import Attention
from regard.nn import KVCache, Rotation

Value = TypeVar("Value")

_READ_ONCE = ("mask", "heads", "groups", "widths", "eps")  # of a module, beside its parameters
_MODULES = (
    *(GPT, Block, Attention, MLP, SwiGLU, Linear, Embedding, Int8Linear, Int8Embedding),
    *(LayerNorm, RMSNorm, nn.RMSNorm, nn.Dropout, nn.ModuleList),
)


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
    return _objection_to_call(ids, cache) or _objection_to_model(model, ids, cache)


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
    if _objection_to_call(ids, cache) is not None:
        return None
    if step is None or not step.is_current(model, ids):
        if _objection_to_model(model, ids, cache) is not None:
            return None
        step = _STEPS[cache] = _Step(model, cache)
    return step.logits(ids, cache)


def _objection_to_call(ids: Tensor, cache: GPTCache) -> str | None:
    """What the state of torch, the ids and the cache have against it."""
    if ids.shape[-1] != 1:
        return f"ids holds {ids.shape[-1]} tokens of a sequence, and a step reads one"
    if ids.numel() > native.MAX_SEQUENCES:
        return f"there are {ids.numel()} sequences, and it computes at most {native.MAX_SEQUENCES}"
    if not torch.is_inference_mode_enabled():
        return "gradients may be wanted outside of torch.inference_mode()"
    if cache.length == 0:
        return "the cache is empty"
    if must_dispatch():
        return "a compiler, a trace, a transform or a profiler has to see every operator"
    if has_torch_function((ids,)):
        return "a recording, an intervention or another function mode has to see every call"
    if torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks:  # noqa: SLF001 - torch has no public way
        return "there are hooks on all modules"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    return native.why_missing()


def _objection_to_model(model: GPT, ids: Tensor, cache: GPTCache) -> str | None:
    """What the model's modules and parameters, and the memory of the cache, have against it."""
    return (
        _objection_to_modules(model)
        or _objection_to_parameters(model)
        or _objection_to_structure(model)
        or _objection_to_cache(model, ids, cache)
    )


def _objection_to_modules(model: GPT) -> str | None:
    for path, module in model.named_modules():
        name = path or "the model"
        if type(module) not in _MODULES:
            return f"{name} is a {type(module).__name__}"
        if "forward" in vars(module):
            return f"the forward method of {name} was replaced"
        if any(_hooks(module)):
            return f"{name} has hooks"
        if isinstance(module, nn.RMSNorm) and module.eps is None:
            return f"{name} leaves its eps to torch"
        if module.training:
            return f"{name} is in training mode"
    return None


def _objection_to_parameters(model: GPT) -> str | None:
    dtype = model.dtype
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter or not parameter.is_cpu:
            return f"{name} is not a plain tensor on the CPU"
        if parameter.dtype != dtype or dtype not in native.DTYPES:
            return f"{name} is {parameter.dtype}; it takes one of {native.DTYPES} for all"
        if not parameter.is_contiguous() or parameter.is_neg():
            return f"{name} is not contiguous"
    return _objection_to_int8(model)


def _objection_to_int8(model: GPT) -> str | None:
    of_other_kind = Linear if model.has_int8_weights else Int8Linear
    for name, module in model.named_modules():
        if isinstance(module, of_other_kind):
            return f"{name} is a {type(module).__name__} and other matrices are not"
        if not isinstance(module, Int8Matrix):
            continue
        for tensor, dtype in ((module.int8_weight, torch.int8), (module.scale, torch.float32)):
            if type(tensor) is not Tensor or not tensor.is_cpu or tensor.dtype != dtype:
                return f"{name} does not hold int8 numbers and their scales on the CPU"
            if not tensor.is_contiguous():
                return f"{name} is not contiguous"
    return None


def _objection_to_structure(model: GPT) -> str | None:
    """What of the model is not as its configuration says, or more than the kernel takes."""
    config = model.config
    if config.head_dim > native.WIDEST:
        return f"heads have {config.head_dim} channels, and it takes at most {native.WIDEST}"
    if config.heads // config.group_count > native.MAX_HEADS_OF_GROUP:
        return f"more than {native.MAX_HEADS_OF_GROUP} heads share their keys"
    if len(model.h) != config.layers:
        return f"there are {len(model.h)} layers, and the configuration has {config.layers}"
    if (model.wpe is None) != (config.positions == "rotary"):
        return "wpe is not as the configuration says"
    for name, module in (("wte", model.wte), ("wpe", model.wpe), ("ln_f", model.ln_f)):
        if module is not None and not has_width(module, config.dim):
            return f"{name} has parameters of another width than {config.dim}"
    for layer, block in enumerate(model.h):
        assert isinstance(block, Block), "its class was checked"
        why = _objection_to_block(block, config, layer)
        if why is not None:
            return f"h.{layer}.{why}"
    return None


def _objection_to_block(block: Block, config: GPTConfig, layer: int) -> str | None:
    attn = block.attn
    if attn.mask.affine != Attention.mask_of(config, layer).affine:
        return "attn.mask was replaced"
    kv_dim = config.group_count * config.head_dim
    widths = [config.heads * config.head_dim, kv_dim, kv_dim]
    if (attn.heads, attn.groups, attn.widths) != (config.heads, config.group_count, widths):
        return "attn has other heads than the configuration"
    if (attn.q_norm is None) != (attn.k_norm is None):
        return "attn normalizes queries or keys alone"
    if type(block.mlp) is not (SwiGLU if config.mlp == "swiglu" else MLP):
        return f"mlp is a {type(block.mlp).__name__}"
    return objection_to_shapes(block, config.dim, config.hidden_dim)


def _objection_to_cache(model: GPT, ids: Tensor, cache: GPTCache) -> str | None:
    config = model.config
    if type(cache) is not GPTCache or any(type(layer) is not KVCache for layer in cache.layers):
        return "the cache is of another class"
    if model.wpe is not None and cache.layers[0].capacity > len(model.wpe.weight):
        return "the cache has room for more tokens than there are learned positions"
    windows = [config.layer_window(layer) for layer in range(config.layers)]
    if [layer.window for layer in cache.layers] != windows:
        return "the cache is another model's"
    for memory in chain.from_iterable(layer.memory or () for layer in cache.layers):
        shape = (*ids.shape[:-1], config.group_count, memory.shape[-2], config.head_dim)
        if memory.shape != shape or memory.dtype != model.dtype or not memory.is_cpu:
            return "the cache holds keys of another shape, dtype or device"
        if memory.stride(-1) != 1 or memory.requires_grad:
            return "the memory of the cache is not plain"
    return None


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
        self._hooks = [hooks for module in self._modules for hooks in _hooks(module)]
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
        self._places = list(map(_place, self._tensors))
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
        if list(map(_place, self._tensors)) != self._places:
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
            rotation = _rotation(torch.tensor(positions), config.head_dim, config.rotary_base)
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


def _hooks(module: nn.Module) -> tuple[Mapping[int, object], Mapping[int, object]]:
    return module._forward_hooks, module._forward_pre_hooks  # noqa: SLF001 - torch has no public way


def _is_changed(attributes: dict[str, object]) -> bool:
    return "forward" in attributes or bool(attributes["training"])


def _values(tables: Sequence[Mapping[str, Value]]) -> list[Value]:
    return list(chain.from_iterable(table.values() for table in tables))


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where its numbers lie, in which order."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


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
