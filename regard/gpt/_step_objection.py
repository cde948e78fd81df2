"""Why a step of generation is not one call of the native library, in plain words.

The call computes what a model made by its configuration computes, from the memory of parameters and
cache. Whatever else a module does, or has, is left to the modules.

Axis letters: B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.overrides import has_torch_function

from regard._contexts import must_dispatch
from regard.backends import native
from regard.gpt._block_shapes import NAMES, block_shapes, fits
from regard.gpt._linear import Embedding, Linear
from regard.gpt._pointwise import LayerNorm, RMSNorm
from regard.gpt.cache import GPTCache
from regard.gpt.config import GPTConfig
from regard.gpt.int8 import Int8Embedding, Int8Linear, Int8Matrix
from regard.gpt.mlp import MLP, SwiGLU
from regard.gpt.model import GPT, Block
from regard.gpt.self_attention import Attention
from regard.nn import KVCache

_MODULES = (
    *(GPT, Block, Attention, MLP, SwiGLU, Linear, Embedding, Int8Linear, Int8Embedding),
    *(LayerNorm, RMSNorm, nn.RMSNorm, nn.Dropout, nn.ModuleList),
)


def objection_to_call(ids: Tensor, cache: GPTCache) -> str | None:
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


def objection_to_model(model: GPT, ids: Tensor, cache: GPTCache) -> str | None:
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
        if any(hooks_of(module)):
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
        if module is not None and not _has_width(module, config.dim):
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
    shapes = block_shapes(widths, config.dim, config.hidden_dim, gated=config.mlp == "swiglu")
    expected = dict(zip(NAMES, shapes, strict=True))
    if attn.q_norm is not None:
        expected |= {f"attn.{name}": (config.head_dim,) for name in ("q_norm", "k_norm")}
    for name, shape in expected.items():
        if not _fits(block.get_submodule(name), shape):
            return f"{name} has parameters of another shape than {shape}"
    return None


def _fits(module: nn.Module, shape: tuple[int, ...]) -> bool:
    if isinstance(module, Int8Matrix) and module.scale.shape != shape[:1]:
        return False
    return fits(_matrix(module), getattr(module, "bias", None), shape)


def _has_width(module: nn.Module, dim: int) -> bool:
    """Whether the rows of embeddings, or a norm, have so many numbers."""
    weight = _matrix(module)
    return weight is not None and _fits(module, (*weight.shape[:-1], dim))


def _matrix(module: Any) -> Tensor | None:
    """Its weight; None of a norm without one."""
    weight: Tensor | None = module.int8_weight if isinstance(module, Int8Matrix) else module.weight
    return weight


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


def hooks_of(module: nn.Module) -> tuple[Mapping[int, object], Mapping[int, object]]:
    """Tables of the hooks that a call of a module runs, which others may fill later."""
    return module._forward_hooks, module._forward_pre_hooks  # noqa: SLF001 - torch has no public way
