"""vLLM's attention layers: which can be read, how they score, and a request's rows of a step.

Axes: H query heads, G key/value heads, n queries of a step, S keys so far, D head dimension.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import Tensor

from regard import Error
from regard_vllm._cache import KeyLayout
from regard_vllm._layer_reading import Heads, Scores


class ReadableLayer:
    """A layer of vLLM's CPU attention.

    Args:
        number: its number among the model's attention layers.
        name: its path in the model.
        layer: vLLM's ``Attention``.
    """

    def __init__(self, number: int, name: str, layer: Any) -> None:
        self.number, self.name, self._layer = number, name, layer
        self.implementation = layer.impl
        self.heads: int = layer.num_heads
        self.groups: int = layer.num_kv_heads

    def scores(self) -> Scores:
        """How it makes scores."""
        own = self.implementation
        return Scores(
            scale=own.scale,
            softcap=own.logits_soft_cap or None,
            window=own.sliding_window if own.sliding_window > 0 else None,
            alibi=own.alibi_slopes,
            sink=own.sinks,
        )

    @cached_property
    def _layout(self) -> KeyLayout:
        return KeyLayout(self.implementation, self._layer, self._layer.kv_cache)

    def rows(
        self, place: int, query: Tensor, cache: Tensor, metadata: Any, heads: Heads
    ) -> tuple[Tensor, Tensor, int]:
        """Take a request's rows of a step.

        Args:
            place: its place in the batch.
            query: of all requests, ``(rows, H, D)``.
            cache: the layer's.
            metadata: what vLLM knows of the step.
            heads: which to take.

        Returns:
            The queries ``(H, n, D)`` and keys ``(G, S − shift, D)`` of these heads, and the shift:
            how many keys lie before the window, whose blocks may be freed.

        Raises:
            Error: where the rows see keys after them.
        """
        if metadata.causal is not True or metadata.dynamic_causal is not None:
            raise Error("its attention is not causal, as that of images is in some models")
        first, stop = metadata.query_start_loc[place : place + 2].tolist()
        length = int(metadata.seq_lens[place])
        position = length - (stop - first)
        window, block = self.implementation.sliding_window, self._layout.block
        blocks_before = max(0, position - window + 1) // block if window > 0 else 0
        shift = blocks_before * block
        blocks = metadata.block_table[place, blocks_before : -(-length // block)]
        key = self._layout.keys(cache, blocks, length - shift, heads.key)
        return query[first:stop, list(heads.query)].transpose(0, 1), key, shift


def readable_layers(worker: Any) -> list[ReadableLayer]:
    """Find the attention layers of a worker's model, in the order in which they attend.

    Raises:
        Error: for an engine whose attention can't be read, with the reason.
    """
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    configuration = worker.vllm_config
    _require_supported(worker)
    layers = get_layers_from_vllm_config(configuration, AttentionLayerBase)
    for name, layer in layers.items():
        if type(layer) is not Attention or type(layer.impl) is not CPUAttentionBackendImpl:
            kinds = f"{type(layer).__name__} with {type(getattr(layer, 'impl', None)).__name__}"
            raise Error(
                f"regard reads vLLM's Attention with CPUAttentionBackendImpl, but {name} is {kinds}"
            )
    if not layers:
        raise Error("the model has no attention layer")
    return [
        ReadableLayer(number, name, layer) for number, (name, layer) in enumerate(layers.items())
    ]


def _require_supported(worker: Any) -> None:
    configuration = worker.vllm_config
    parallel, cache = configuration.parallel_config, configuration.cache_config
    for option in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
    ):
        if (size := getattr(parallel, option)) != 1:
            raise Error(
                f"regard reads one worker's heads alone, but {option} is {size}; set it to 1"
            )
    if configuration.speculative_config is not None:
        raise Error(
            "regard can't tell which rows of speculative decoding are rejected; leave it out"
        )
    if cache.kv_sharing_fast_prefill:
        raise Error("kv_sharing_fast_prefill leaves rows out; leave the option out")
    if worker.use_v2_model_runner:
        raise Error("regard reads vLLM's model runner V1; set VLLM_USE_V2_MODEL_RUNNER=0")
