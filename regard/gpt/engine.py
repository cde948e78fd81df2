"""Fast generation: an `Engine` has fixed weights, and computes a step in one native call.

In a small model, Python takes more time between the layers than their computation. Recordings,
interventions and hooks, which observe or change a layer, need the model itself.

Axis letters: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function

from regard._contexts import is_transformed
from regard._modules import has_own_hooks, unwrapped_name
from regard._shapes import Float, Int
from regard.backends import native
from regard.errors import Error
from regard.gpt._step_readings import StepReadings
from regard.gpt.blocks import BlockMatrix, blocks_of, to_blocks
from regard.gpt.cache import GPTCache
from regard.gpt.config import GPTConfig
from regard.gpt.ids import check_tokens
from regard.gpt.int8 import Int8Matrix, to_int8
from regard.gpt.layers import Embedding, Linear
from regard.gpt.model import GPT, Block, rotations_of
from regard.gpt.unwrap import as_gpt
from regard.intercept import is_observed
from regard.nn import KVCache
from regard.nn.cache import rollback_on_error
from regard.pattern.readout import Readout, check_readout
from regard.record import record


class Engine:
    """A GPT for generation, on a CPU: each step of up to 32 sequences is one native call.

    Pass it to `generate` and the other functions of generation instead of the model. It shares the
    model's memory, and depends only on its configuration and weights: a mask that was set on a
    layer, or a global module hook, has no effect on it. Once the weights have changed it refuses to
    go on. Its logits differ from the model's only by rounding, since sums have another order.

    Args:
        model: the model, maybe wrapped.
        read: readouts to take of the pattern of each last token.

    Attributes:
        config: the model's configuration.
        readings: after each call of `next_logits`, for each layer the result of each readout, whose
            leading dimensions are ``(B, H)``, or ``(H,)`` without a batch, for the last token's
            query; empty without readouts.

    Raises:
        ValueError: if the native library does not support the model; `objection` says why.
        TypeError: if `model` is not a GPT, or for what is not a readout.

    Example:
        >>> from regard.gpt import Engine, Sampling, generate_texts, load
        >>> model, tokenizer = load()
        >>> greedy = Sampling(temperature=0.0)
        >>> generate_texts(Engine(model), tokenizer, ["Once upon a"], tokens=1, sampling=greedy)
        [' time']

        What each new token attends to while a text is generated:

        >>> import regard
        >>> from regard.gpt import stream
        >>> engine = Engine(model, read=[regard.readouts.Entropy()])
        >>> ids = torch.tensor(tokenizer.encode("Once upon a"))
        >>> for token in stream(engine, ids, tokens=2, sampling=greedy):
        ...     print([entropy.shape for (entropy,) in engine.readings][0])
        torch.Size([1, 5, 1])
        torch.Size([1, 5, 1])
    """

    def __init__(self, model: nn.Module, *, read: Sequence[Readout[Any, Any]] = ()) -> None:
        model = as_gpt(model)
        for readout in read:
            check_readout(readout)
        why = self.objection(model)
        if why is not None:
            raise ValueError(
                f"an Engine can't compute this model: {why}; generate with the model itself"
            )
        self.config: GPTConfig = model.config
        self._model = _copy(model)
        self._weights = _Weights(model)
        self._readouts = tuple(read)
        self.readings: tuple[tuple[Any, ...], ...] = ()
        self._steps: WeakKeyDictionary[GPTCache, _Step] = WeakKeyDictionary()

    @staticmethod
    def objection(model: nn.Module) -> str | None:
        """Return why a model is not supported; None if it is.

        Args:
            model: the model.

        Example:
            >>> from regard.gpt import GPT, Engine, GPTConfig
            >>> Engine.objection(GPT(GPTConfig(layers=1, heads=2, dim=8)).double())
            'its weights are torch.float64, expected float32, bfloat16 or float16'
        """
        model = as_gpt(model)
        config = model.config
        if (missing := native.why_missing()) is not None:
            return missing
        if type(model) is not GPT:
            return f"it is a {type(model).__name__}, expected a GPT"
        if config.head_dim > native.WIDEST:
            return f"its heads have {config.head_dim} channels, expected at most {native.WIDEST}"
        if config.heads // config.group_count > native.MAX_HEADS_OF_GROUP:
            return f"more than {native.MAX_HEADS_OF_GROUP} of its heads share keys"
        if model.dtype not in native.DTYPES:
            return f"its weights are {model.dtype}, expected float32, bfloat16 or float16"
        if any(parameter.dtype != model.dtype for parameter in model.parameters()):
            return "its weights have several dtypes"
        if any(not tensor.is_cpu for tensor in model.state_dict().values()):
            return f"it is on {model.device}, expected the CPU"
        return _objection_to_modules(model)

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self._model.device

    @torch.inference_mode()
    def next_logits(self, ids: Int[Tensor, "*b T"], cache: GPTCache) -> Float[Tensor, "*b V"]:
        """Compute the logits at the last token, as `GPT.next_logits`, without gradients.

        Args:
            ids: ``(B, T)`` or ``(T,)`` token ids, T at least 1.
            cache: the cache of earlier tokens, which this engine read.

        Raises:
            TypeError: if `ids` is not a tensor of int64 or int32.
            ValueError: if it has another number of dimensions, no token, more than fit into the
                cache, or an id outside the vocabulary; or if the cache is another model's.
            IndexError: if a single token is outside the vocabulary.
            Error: if a recording, an intervention or a transform is active in this thread, which
                would not observe the call; or if the model's weights have changed since the engine
                was made.
        """
        check_tokens(ids)
        self._weights.require_unchanged(replaced=cache.length == 0)
        if is_transformed() or is_observed() or has_torch_function((ids,)):
            raise Error(
                "an Engine computes outside of torch, and a recording, an intervention or another "
                "mode that sees torch's calls is on: generate with the model itself, or read by "
                "Engine(model, read=[…])"
            )
        if ids.shape[-1] > 1 or cache.length == 0 or ids.numel() > native.MAX_SEQUENCES:
            return self._read_many(ids, cache)
        step = self._step_of(ids, cache)
        logits = step.logits(ids, cache)
        if self._readouts:
            self.readings = step.read(cache)
        return logits

    def _read_many(self, ids: Tensor, cache: GPTCache) -> Tensor:
        """Compute the logits by the modules: of several tokens, or of many sequences."""
        with torch.autocast("cpu", enabled=False):
            if not self._readouts:
                return self._model.next_logits(ids, cache)
            with record(self._model, rows=-1) as recording:
                logits = self._model.next_logits(ids, cache)
        self.readings = tuple(pattern.read(*self._readouts) for pattern in recording)
        return logits

    def _step_of(self, ids: Tensor, cache: GPTCache) -> _Step:
        step = self._steps.get(cache)
        if step is None or not step.is_current(cache):
            step = _Step(self._model, ids, cache, self._readouts)
            self._steps[cache] = step
        return step


def _objection_to_modules(model: GPT) -> str | None:
    """Describe the first module that differs from the configuration's; None without one."""
    expected = {name: type(module) for name, module in _skeleton(model).named_modules()}
    if model.weights == "blocks" and model.dtype != torch.float32:
        return f"its matrices are in blocks, its other weights {model.dtype}, expected float32"
    for name, module in model.named_modules():
        if model.weights == "blocks" and isinstance(module, Linear):
            return f"{name} is no matrix in blocks, as the others are"
        if type(module) is not expected.get(name):
            return f"{name} is a {type(module).__name__}, which a GPT does not have there"
        if has_own_hooks(module):
            return f"{name or 'the model'} has hooks, or a forward method of its own"
    return None


def _skeleton(model: GPT) -> GPT:
    """Make a model of the configuration, without weights."""
    with torch.device("meta"):
        skeleton = GPT(model.config).to(model.dtype)
    if model.weights == "int8":
        to_int8(skeleton)
    elif model.weights == "blocks":
        to_blocks(skeleton, blocks_of(model))
    return skeleton.eval()


def _copy(model: GPT) -> GPT:
    """Make a model that shares the memory of contiguous weights."""
    state = {
        unwrapped_name(name): weight.detach().contiguous()
        for name, weight in model.state_dict().items()
    }
    copied = _skeleton(model)
    try:
        copied.load_state_dict(state, assign=True)
    except RuntimeError as error:  # a missing weight, or one of another shape
        reason = " ".join(str(error).split())
        raise ValueError(
            f"model's weights are not those that its configuration says: {reason}"
        ) from None
    return copied.requires_grad_(requires_grad=False)


class _Weights:
    """The weights of a model as they were, to tell whether they have changed.

    torch counts what is written to a tensor, but for writes to its ``data`` and in inference mode.
    """

    def __init__(self, model: GPT) -> None:
        self._model = model
        self._tensors = _tensors(model)
        self._counted = [one for one in self._tensors if not one.is_inference()]
        self._versions = self._count()

    def require_unchanged(self, *, replaced: bool) -> None:
        """Raise Error if a weight was written to.

        Args:
            replaced: also if another tensor has taken its place, which takes longer to find out.
        """
        same = self._count() == self._versions
        if same and replaced:
            same = all(map(operator.is_, _tensors(self._model), self._tensors))
        if not same:
            raise Error(
                "the model's weights have changed since the Engine was made; make a new one: "
                "Engine(model)"
            )

    def _count(self) -> list[int]:
        return [one._version for one in self._counted]  # noqa: SLF001 - torch has no public way


def _tensors(model: GPT) -> list[Tensor]:
    return list(model.state_dict(keep_vars=True).values())


class _Step:
    """The native step of a model with a cache.

    It references the cache's memory, not the cache, so it is freed with the cache.
    """

    def __init__(
        self, model: GPT, ids: Tensor, cache: GPTCache, readouts: Sequence[Readout[Any, Any]]
    ) -> None:
        _check_cache(model, ids, cache)
        config = self._config = model.config
        self._memory = [layer.memory for layer in cache.layers]
        self._readings = StepReadings(config, cache, ids.shape[:-1], model.dtype, readouts)
        self._stored: list[tuple[int, int]] = []
        self._kernel = native.GPTStep(_weights(model, cache, self._readings))

    def is_current(self, cache: GPTCache) -> bool:
        """Return True if the cache still has the same memory."""
        memory = zip(cache.layers, self._memory, strict=True)
        return all(layer.memory is before for layer, before in memory)

    def logits(self, ids: Tensor, cache: GPTCache) -> Tensor:
        """Compute a step: ``(B, 1)`` or ``(1,)`` ids to ``(B, V)`` or ``(V,)`` logits."""
        config = self._config
        assert self._memory[0] is not None, "the cache has keys"
        if ids.shape[:-1] != self._memory[0][0].shape[:-3]:
            raise _other_cache(ids)
        tokens = ids.flatten().tolist()
        for token in tokens:
            if not 0 <= token < config.vocab_size:
                raise IndexError(
                    f"ids holds {token}; expected 0 to {config.vocab_size - 1}, the vocabulary"
                )
        cache.require_room(1)
        padding, length = cache.layers[0].padding, cache.length
        before = [0] * len(tokens) if padding is None else padding.tolist()
        positions = [max(0, length - count) for count in before]
        rotation = None
        if config.positions == "rotary":
            rotation = _rotation(positions, config)
        with rollback_on_error(cache):
            stored = []
            for layer in cache.layers:
                keys = layer.extend()
                stored.append((keys, length + 1 - keys))
            self._stored = stored
            logits = self._kernel.logits(
                stored,
                tokens,
                positions,
                padding=None if padding is None else before,
                rotation=rotation,
            )
            return logits.view(*ids.shape[:-1], config.vocab_size)

    def read(self, cache: GPTCache) -> tuple[tuple[Any, ...], ...]:
        """Take the readouts of the last token's pattern in each layer."""
        return self._readings.read(cache, self._stored)


def _rotation(positions: list[int], config: GPTConfig) -> tuple[Tensor, Tensor]:
    indices = torch.tensor(positions, device="cpu")
    rotations = rotations_of(config, indices, torch.float32)  # (B, D/2) each
    return torch.stack([one.cos for one in rotations]), torch.stack([one.sin for one in rotations])


def _check_cache(model: GPT, ids: Tensor, cache: GPTCache) -> None:
    """Raise ValueError if a cache does not have this model's layout."""
    config = model.config
    windows = [config.layer_window(layer) for layer in range(config.layers)]
    if [layer.window for layer in cache.layers] != windows:
        raise _other_cache(ids)
    if cache.layers[0].capacity > config.context:
        raise _other_cache(ids)
    for memory in (part for layer in cache.layers for part in layer.memory or ()):
        shape = (*ids.shape[:-1], config.group_count, memory.shape[-2], config.head_dim)
        if memory.shape != shape or memory.dtype != model.dtype or not memory.is_cpu:
            raise _other_cache(ids)


def _other_cache(ids: Tensor) -> ValueError:
    return ValueError(
        f"the cache is another model's, or another batch's than ids of {tuple(ids.shape)}; read "
        "the text into a new one"
    )


def _weights(model: GPT, cache: GPTCache, kept: StepReadings) -> native.GPTWeights:
    config = model.config
    return native.GPTWeights(
        heads=config.heads,
        groups=config.group_count,
        width=config.dim,
        dim=config.head_dim,
        hidden=config.hidden_dim,
        mlp=config.mlp,
        dtype=model.dtype,
        tokens=_linear_map(model.wte, None),
        factor=config.embedding_factor,
        scale=config.head_dim**-0.5 if config.score_scale is None else config.score_scale,
        softcap=config.score_softcap or 0.0,
        logit_softcap=config.logit_softcap or 0.0,
        unembedding=_linear_map(model.wte if model.lm_head is None else model.lm_head, None),
        vocabulary=config.vocab_size,
        learned=None if model.wpe is None else model.wpe.weight,
        norm=_norm(model.ln_f),
        layers=[
            _layer(
                cast("Block", block),
                layer,
                rotation=int(config.rotates_apart(number)),
                query=kept.queries[number],
                scores=kept.scores[number],
            )
            for number, (block, layer) in enumerate(zip(model.h, cache.layers, strict=True))
        ],
    )


def _layer(
    block: Block, cache: KVCache, *, rotation: int, query: Tensor | None, scores: Tensor | None
) -> native.GPTLayer:
    attention, mlp = block.attn, block.mlp
    maps: tuple[Any, ...] = (attention.c_attn, attention.c_proj, mlp.c_fc, mlp.c_proj)
    assert cache.memory is not None
    return native.GPTLayer(
        attention_norm=_norm(block.ln_1),
        query_norm=_norm_or_none(attention.q_norm),
        key_norm=_norm_or_none(attention.k_norm),
        mlp_norm=_norm(block.ln_2),
        attention_output_norm=_norm_or_none(block.ln_1_out),
        mlp_output_norm=_norm_or_none(block.ln_2_out),
        maps=tuple(_linear_map(linear, linear.bias) for linear in maps),
        memory=cache.memory,
        window=cache.window,
        rotation=rotation,
        query=query,
        scores=scores,
    )


def _linear_map(
    matrix: Linear | Embedding | Int8Matrix | BlockMatrix, bias: Tensor | None
) -> native.LinearMap:
    if isinstance(matrix, BlockMatrix):
        return native.LinearMap(weight=None, bias=bias, blocks=matrix.blocks.parts)
    if isinstance(matrix, Int8Matrix):
        return native.LinearMap(weight=matrix.int8_weight, bias=bias, scale=matrix.scale)
    return native.LinearMap(weight=matrix.weight, bias=bias)


def _norm_or_none(norm: nn.Module | None) -> native.Norm | None:
    return None if norm is None else _norm(norm)


def _norm(norm: nn.Module) -> native.Norm:
    if isinstance(norm, nn.RMSNorm):
        assert norm.eps is not None
        return native.Norm(weight=norm.weight, bias=None, rms=True, epsilon=norm.eps)
    assert isinstance(norm, nn.LayerNorm)
    return native.Norm(weight=norm.weight, bias=norm.bias, rms=False, epsilon=norm.eps)
