"""A GPT in the layout of GPT-2, with the options of later models.

By default: pre-norm blocks, learned positions, GELU, tied embeddings; the fields of `GPTConfig` are
the options. This file depends neither on accelerators nor on files: `Engine`, `load`,
`save`, `read_gpt2` and `to_int8` are built on it.

Axis letters: B batch, T tokens, E model dimension, H heads, G key/value heads, D head dimension, V
vocabulary. Every leading dimension is optional: ``(T,)`` ids work as ``(B, T)`` ids do. The
parameters have GPT-2's names (`wte`, `h.0.attn.c_attn.weight`, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from regard._modules import (
    has_hooks,
    has_own_hooks,
    is_sharded,
    require_whole_state,
    unwrapped_name,
)
from regard._shapes import Float, Int
from regard.gpt._loss import cross_entropy, linear_cross_entropy
from regard.gpt.blocks import BlockMatrix
from regard.gpt.cache import GPTCache
from regard.gpt.config import GPTConfig
from regard.gpt.ids import check_call, check_logits_to_keep, check_tokens, checked_targets
from regard.gpt.layers import (
    MLP,
    Attention,
    Embedding,
    GeGLU,
    LayerNorm,
    Linear,
    RMSNorm,
    SwiGLU,
    add_and_normalize,
)
from regard.inputs import check_mask
from regard.masks import Mask
from regard.nn import KVCache, Rotation
from regard.nn.cache import rollback_on_error
from regard.pattern import Pattern

_MLPS: dict[str, type[MLP | SwiGLU]] = {"gelu": MLP, "swiglu": SwiGLU, "geglu": GeGLU}


def _norm(config: GPTConfig) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.dim, eps=config.norm_eps)
    return LayerNorm(config.dim, eps=config.norm_eps, bias=config.bias)


def rotations_of(config: GPTConfig, positions: Tensor, dtype: torch.dtype) -> list[Rotation]:
    """The rotation of some positions by a model with rotary positions, in a dtype.

    A second one is that of the layers that rotate apart.
    """
    dim, base, apart = config.head_dim, config.rotary_base, config.window_rotary_base
    if config.rotary_frequencies is None:
        rotations = [Rotation.of(positions, dim, base=base, dtype=dtype)]
    else:
        frequencies = torch.tensor(config.rotary_frequencies, dtype=dtype, device=positions.device)
        rotations = [Rotation.by(positions, frequencies)]
    if apart is not None:
        rotations.append(Rotation.of(positions, dim, base=apart, dtype=dtype))
    return rotations


class Block(nn.Module):
    """One layer: attention and MLP, each reading a normalised copy and adding to the stream."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.ln_1 = _norm(config)
        self.attn = Attention(config, layer)
        self.ln_2 = _norm(config)
        self.mlp = _MLPS[config.mlp](config)
        self.ln_1_out, self.ln_2_out = (
            _norm(config) if config.output_norms else None for _ in range(2)
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        patterns: list[Pattern] | None = None,
        *,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """``(B, T, E)`` to ``(B, T, E)``."""
        x, added = self.run(x, None, patterns, rotation=rotation, cache=cache, mask=mask)
        return x + added

    def run(
        self,
        x: Tensor,
        added: Tensor | None,
        patterns: list[Pattern] | None,
        *,
        rotation: Rotation | None,
        cache: KVCache | None,
        mask: Mask | None,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer on ``x + added``; return the stream, and the MLP's addition to it.

        Each addition is fused into the next norm, which reads the stream anyway.
        """
        x, normed = add_and_normalize(self.ln_1, x, added)
        attended = self.attn(normed, patterns, rotation=rotation, cache=cache, mask=mask)
        if self.ln_1_out is not None:
            attended = self.ln_1_out(attended)
        x, normed = add_and_normalize(self.ln_2, x, self._dropped(attended))
        made = self.mlp(normed)
        return x, self._dropped(made if self.ln_2_out is None else self.ln_2_out(made))

    def _dropped(self, x: Tensor) -> Tensor:
        """Apply dropout; a no-op is skipped, since the overhead of calls counts in generation."""
        drop = self.drop
        if type(drop) is nn.Dropout and not drop.training and not has_hooks(drop):
            return x
        return cast("Tensor", drop(x))


class GPT(nn.Module):
    """A GPT: token ids in, one logit per vocabulary entry and position out.

    Args:
        config: the model's shape.

    Attributes:
        has_read: a sentence on the training text; None if not known.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); the
    activation is eq. 2 of Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), in its tanh
    form.

    >>> from regard.gpt import GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=11, context=7, layers=2, heads=3, dim=12))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 11])
    >>> logits, patterns = model.with_patterns(torch.tensor([1, 2, 3]))
    >>> len(patterns), patterns[0].shape
    (2, torch.Size([3, 3, 3]))
    """

    has_read: str | None = None

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = Embedding(config.vocab_size, config.dim)
        self.wte.factor = config.embedding_factor
        learned = config.positions == "learned"
        self.wpe = Embedding(config.context, config.dim) if learned else None
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.ln_f = _norm(config)
        self.lm_head = None if config.tied else Linear(config.dim, config.vocab_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights as GPT-2 does, from torch's global generator.

        Normal with standard deviation `config.initial_std` (positions: half of it), biases 0, norms
        1. The two matrices of a block that write to the residual stream are divided by the square
        root of their number, 2 × layers, so that the stream's variance does not grow with depth.
        """
        std = self.config.initial_std
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                continue
            if parameter.ndim < 2:
                nn.init.constant_(parameter, float(name.endswith("weight")))
            elif name == "wpe.weight":
                nn.init.normal_(parameter, std=std / 2)
            elif name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=std / sqrt(2 * self.config.layers))
            else:
                nn.init.normal_(parameter, std=std)

    def forward(
        self,
        ids: Int[Tensor, "*b T"],
        *,
        cache: GPTCache | None = None,
        mask: Mask | None = None,
        patterns: list[Pattern] | None = None,
        logits_to_keep: int | Int[Tensor, " N"] = 0,
    ) -> Float[Tensor, "*b T V"]:
        """Run the model.

        Args:
            ids: ``(B, T)`` or ``(T,)`` token ids, int64 or int32, T at most `config.context`.
            cache: the cache of earlier tokens, to which the keys and values of `ids` are appended.
            mask: a mask over all tokens in the cache, combined with the causal mask, such as
                `regard.documents` for rows with several texts.
            patterns: a list to append each layer's pattern to; see `with_patterns`.
            logits_to_keep: compute only the logits of so many last tokens, 0 for all; or of the
                positions in a tensor ``(N,)``. As in transformers.

        Returns:
            Logits ``(B, T, V)``, or only those of the tokens to keep.

        Raises:
            TypeError: if `ids` is not a tensor of int64 or int32, `mask` not a `regard.Mask`, or
                `logits_to_keep` neither an integer nor a tensor of int64.
            ValueError: if `ids` has another number of dimensions, more tokens than fit into the
                context or the cache, or an id outside the vocabulary (on CUDA the device fails; see
                `check_ids`); if `mask` does not fit, or is used with a cache that evicts tokens; or
                if `logits_to_keep` is negative, or not of one dimension.
            IndexError: if `logits_to_keep` names a position out of range.
        """
        check_call(ids, self.config)
        check_logits_to_keep(logits_to_keep)
        with rollback_on_error(cache):
            x = self._run(ids, patterns, cache, mask)  # (B, T, E)
            if isinstance(logits_to_keep, Tensor):
                x = x[..., logits_to_keep, :]
            elif logits_to_keep:
                x = x[..., -logits_to_keep:, :].contiguous()
            return self._unembed(x)  # (B, T, V)

    def with_patterns(
        self,
        ids: Int[Tensor, "*b T"],
        *,
        cache: GPTCache | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "*b T V"], tuple[Pattern, ...]]:
        """Compute `forward`, and also return a lazy `Pattern` per layer.

        Each has the shape ``(B, H, T, S)``, S the tokens in the cache, `ids` included. With a cache
        their keys are views of its memory: read them before the next call with it.
        """
        patterns: list[Pattern] = []
        logits = self(ids, cache=cache, mask=mask, patterns=patterns)
        return logits, tuple(patterns)

    def loss(
        self,
        ids: Int[Tensor, "*b T"],
        targets: Int[Tensor, "*b T"],
        weights: Float[Tensor, "*b T"] | None = None,
        *,
        mask: Mask | None = None,
    ) -> Float[Tensor, ""]:
        """Return the cross-entropy of the logits of `forward`, in nats.

        On a CPU, in float32 and bfloat16, the logits are computed in chunks of positions, with
        their losses and gradients, so that a model with a large vocabulary trains in less time and
        memory; such a loss can be differentiated only once. All logits are computed at once in
        other dtypes, on other devices, with weights in int8 or blocks, with a softcap, if `weights`
        require a gradient, if this module has hooks or a subclass overrides `forward`, without the
        native kernels, and under a compiler or a transform.

        Args:
            ids: as for `forward`.
            targets: next tokens, in the shape of `ids`, int64 or int32; -100 for positions without
                one.
            weights: floating point, in the same shape; the weight of each position's loss in the
                sum. None is the mean over the positions with a target; NaN without any, as in
                `torch.nn.functional.cross_entropy`.
            mask: as for `forward`.

        Raises:
            TypeError: as for `forward`, also for `targets`; or if `weights` is not floating point.
            ValueError: as for `forward`, also for `targets`; or if `targets` or `weights` has
                another shape than `ids`, or the mean is over zero positions.

        >>> from regard.gpt import GPTConfig
        >>> model = GPT(GPTConfig(vocab_size=11, context=7, layers=2, heads=3, dim=12))
        >>> ids = torch.tensor([[1, 2, 3, 4]])
        >>> loss = model.loss(ids[:, :-1], ids[:, 1:])
        >>> loss.backward()
        """
        vocabulary = self.config.vocab_size
        if self.weights is None:
            vocabulary = min(vocabulary, len(self.wte.weight))
        targets, weights = checked_targets(targets, weights, ids, vocabulary)
        weights = weights.to(torch.promote_types(self.dtype, torch.float32))
        capped = self.config.logit_softcap is not None
        if self._is_customized() or self.weights is not None or capped:
            return cross_entropy(self(ids, mask=mask), targets, weights)
        check_call(ids, self.config)
        x = self._run(ids, None, None, mask)  # (B, T, E)
        weight = self.wte.weight if self.lm_head is None else self.lm_head.weight
        return linear_cross_entropy(x, weight, targets, weights)

    def next_logits(self, ids: Int[Tensor, "*b T"], cache: GPTCache) -> Float[Tensor, "*b V"]:
        """Return the logits of `forward` at the last token alone.

        No other logits are computed, unless hooks or a subclass's `forward` need them. A single
        token, usually sampled from the model, is not checked against the vocabulary. An `Engine` of
        the model is faster.

        Args:
            ids: as for `forward`, at least one token.
            cache: likewise.

        Raises:
            TypeError: as for `forward`.
            ValueError: likewise; or if `ids` has no token.
            IndexError: if a single token is outside the vocabulary.
        """
        check_tokens(ids)
        if ids.shape[-1] != 1:
            check_call(ids, self.config)
        with rollback_on_error(cache):
            if self._is_customized():
                return self(ids, cache=cache)[..., -1, :]
            x = self._run(ids, None, cache, None)[..., -1, :].contiguous()  # (B, E)
            return self._unembed(x)  # (B, V)

    def _unembed(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b V"]:
        logits = self.wte.unembed(x) if self.lm_head is None else self.lm_head(x)
        cap = self.config.logit_softcap
        return cast("Tensor", logits if cap is None else (logits / cap).tanh() * cap)

    def _is_customized(self) -> bool:
        """Whether hooks of this module or a subclass change `forward`; global hooks don't count."""
        return has_own_hooks(self) or type(self).forward is not GPT.forward

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return cast("Tensor", self.ln_f.weight).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its parameters except int8 matrices, in which it computes."""
        return cast("Tensor", self.ln_f.weight).dtype

    @property
    def weights(self) -> Literal["int8", "blocks"] | None:
        """How its matrices are kept: no training and no saving, unless None, as floating point.

        ``"int8"`` has a scale a row, as of ``load(weights="int8")``; ``"blocks"`` are a GGUF's own,
        as of ``regard.models.open(weights="blocks")``.
        """
        if isinstance(self.wte, Embedding):
            return None
        return "blocks" if isinstance(self.wte, BlockMatrix) else "int8"

    @property
    def has_int8_weights(self) -> bool:
        """Whether its matrices are int8, with a scale a row."""
        return self.weights == "int8"

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - nn.Module's own
        """Switch to training mode, or with False to evaluation mode.

        Raises:
            ValueError: if the weights are int8 or in blocks.
        """
        if mode and self.weights is not None:
            raise ValueError(
                f"the model has weights in {self.weights}, which can't be trained: load it without "
                f'weights="{self.weights}"'
            )
        return super().train(mode)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,  # noqa: FBT001, FBT002 - nn.Module's
        assign: bool = False,  # noqa: FBT001, FBT002 - nn.Module's
    ) -> Any:
        """Load weights as `nn.Module` does, also those of a wrapped model, under its names."""
        if not is_sharded(self):
            require_whole_state(state_dict)
        own = {unwrapped_name(name): name for name in self.state_dict()}

        def name_of(name: str) -> str:
            plain = unwrapped_name(name)
            return own.get(plain) or own.get(plain.removeprefix("module."), name)

        renamed = {name_of(name): weight for name, weight in state_dict.items()}
        return super().load_state_dict(renamed, strict=strict, assign=assign)

    def _run(
        self, ids: Tensor, patterns: list[Pattern] | None, cache: GPTCache | None, mask: Mask | None
    ) -> Float[Tensor, "*b T E"]:
        """Return the residual stream after the last norm."""
        check_mask(mask)
        if cache is None:
            positions = torch.arange(ids.shape[-1], device=ids.device)  # (T,)
        else:
            positions = cache.positions(ids)  # (T,) or (B, T)
            if mask is not None:
                cache.check_mask(mask, ids, self.config.heads)
        x = self.wte(ids)
        rotations: list[Rotation] = []
        if self.wpe is not None:
            x = x + self.wpe(positions)
        else:
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            rotations = rotations_of(self.config, positions, dtype)
        x = self.drop(x)  # (B, T, E)
        added = None
        for layer, block in enumerate(self.h):
            layer_cache = None if cache is None else cache.layers[layer]
            rotation = rotations[self.config.rotates_apart(layer)] if rotations else None
            if type(block) is Block and not has_hooks(block):
                x, added = block.run(
                    x, added, patterns, rotation=rotation, cache=layer_cache, mask=mask
                )
            else:
                x = x if added is None else x + added
                x = block(x, patterns, rotation=rotation, cache=layer_cache, mask=mask)
                added = None
        return add_and_normalize(self.ln_f, x, added)[1]
