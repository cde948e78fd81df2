"""`record`: observe a model while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from regard.record._errors import RecordError
from regard.record._recorder import Recorder
from regard.record._recording import Recording
from regard.record._selection import selection_of
from regard.record._tokens import Labeller
from regard.record.intercept import (
    observe_calls,
    observe_contexts,
    replace_attention,
    require_eager,
)


@contextmanager
def record(
    model: nn.Module | None = None,
    *,
    tokens: Any = None,
    layers: int | slice | Sequence[int] | None = None,
    heads: int | slice | Sequence[int] | None = None,
    rows: int | slice | Sequence[int] | None = None,
    mean_contexts: bool = False,
    offload: str | None = None,
) -> Iterator[Recording]:
    """Record the attention of whatever runs inside the ``with`` block, on this thread.

    The model's own kernels compute its own results; queries and keys are kept, from which weights
    follow. Seen are calls of ``torch.nn.functional.scaled_dot_product_attention``, of torch's own
    transformer layers and of `regard.attention`. A model of `transformers` whose attention never
    calls SDPA ("eager", "flex_attention", a flash kernel) has to be given: for the time of the
    recording it computes with `regard.attention`, whose results are the same up to rounding. A
    class whose attention is its own, and can't be replaced, is refused.

    Over ``generate`` with a key/value cache each layer has one pattern that grows: the prompt's
    rows first, then a row a step.

    Args:
        model: record the calls of this model alone, and name the layers by their paths in it.
        tokens: what the positions are called: strings, one list or one a sequence of the batch, or
            a tokenizer, which then names the ids that the model is called with.
        layers: numbers of the layers to keep, in the order of their first calls.
        heads: numbers of the query heads to keep.
        rows: numbers of the queries to keep; counted over all steps of a generation, or, where
            negative, from the end of each call.
        mean_contexts: keep each head's mean context as well, which `regard.intervene` can put in a
            context's place; torch's own layers then run without their fused operators.
        offload: "cpu" copies what is kept to main memory.

    Yields:
        The `Recording`, which grows while the block runs.

    Raises:
        RecordError: if nothing was seen, if the model runs under torch.compile, or if a call can't
            be represented exactly.
        TypeError: for arguments of another kind.
        ValueError: for numbers that mean nothing, and for tokens that do not fit the positions.

    Example:
        >>> import regard, torch
        >>> model = torch.nn.TransformerEncoderLayer(12, 2, batch_first=True).eval()
        >>> with regard.record(model) as recording:
        ...     _ = model(torch.randn(1, 5, 12))
        >>> recording.layers[0].name
        'self_attn'
        >>> recording[0].topk(1).positions.shape
        torch.Size([1, 2, 5, 1])
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module or None, but is {type(model).__name__}; of a "
            "pipeline, give the module inside, such as pipeline.model or pipeline.unet"
        )
    require_eager(model)
    recorder = Recorder(model, selection_of(layers, heads, rows, offload))
    labeller = Labeller(model, tokens)

    recording = Recording(recorder.layers, labeller.labels)
    try:
        with ExitStack() as stack:
            stack.enter_context(labeller.observe_ids())
            if model is not None:
                stack.enter_context(replace_attention(model))
            if mean_contexts:
                stack.enter_context(observe_contexts(recorder.observe_context))
            stack.enter_context(observe_calls(recorder))
            yield recording
    finally:
        recording.finish()
    if recorder.calls == 0:
        raise RecordError(_nothing_seen(model))
    labeller.check(recording)


def _nothing_seen(model: nn.Module | None) -> str:
    if model is None:
        return (
            "no attention call was seen; a model of transformers with 'eager', 'flex_attention' or "
            "flash attention must be given: record(model); others must call "
            "torch.nn.functional.scaled_dot_product_attention in eager mode, on this thread"
        )
    return (
        f"no attention call of {type(model).__name__} was seen; call the model inside the with "
        "block, on this thread, in eager mode; attention that it writes out by itself can't be "
        "seen: let it call torch.nn.functional.scaled_dot_product_attention or regard.attention"
    )
