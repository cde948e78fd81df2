"""`record`: keep the queries and keys of a model's attention calls while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import nn

from regard._arguments import Indices
from regard._decorators import block
from regard._modules import HasModule
from regard.intercept import observe_calls
from regard.record._kept import Keep, check_keep
from regard.record._pattern_builder import PatternBuilder
from regard.record._recorder import Recorder, check_model, layers_of, observed
from regard.record._recording import Recording
from regard.record._selection import Selection, selection_of
from regard.record._tokens import Labeller


def record(
    model: nn.Module | HasModule | None = None,
    *,
    tokens: Any = None,
    layers: Indices | None = None,
    heads: Indices | None = None,
    rows: Indices | None = None,
    keep: Keep | Sequence[Keep] = (),
    offload: str | None = None,
) -> AbstractContextManager[Recording]:
    """Record the attention of all models that run in the ``with`` block, on this thread.

    The models compute their results with their own kernels. Their queries and keys are kept, from
    which weights are computed on request. Recorded are calls of
    ``torch.nn.functional.scaled_dot_product_attention``, of torch's transformer layers, of
    `regard.attention`, ``flex_attention``, ``flash_attn_func`` and its variants, and of xformers'
    ``memory_efficient_attention``. A compiled model runs eagerly inside the block. Other tasks of
    an event loop are not recorded unless they are started inside the block; plain generators
    stepped on the same thread are, since they have no context of their own.

    A model of `transformers` with "eager" attention must be passed as ``model``. Inside the block
    it computes with `regard.attention`, with the same results up to rounding; so do models with
    "flex_attention" and flash kernels if they are passed. A class whose own attention cannot be
    replaced is refused.

    In a call of ``generate`` with a key/value cache each layer has one growing pattern: the rows of
    the prompt, then one row per step.

    Args:
        model: record only the calls of this model, a module or a `regard.models.LanguageModel`, and
            name layers by their paths in it.
        tokens: labels of the positions: a list of strings, one list per sequence of the batch, or
            a tokenizer, which labels the ids passed to the model (see `token_names`).
        layers: indices of the layers to keep, in the order of their first calls.
        heads: indices of the query heads to keep.
        rows: indices of the queries to keep, counted over all steps of a generation, or, if
            negative, from the end of each call.
        keep: functions ``(path, value) -> {name: tensor}`` that keep something of the values, such
            as `regard.lens.norms`. Each is called with the path of a layer and the values
            ``(B, G, s, Dv)`` of the s keys that are new in a call, and returns numbers
            ``(B, H or G, s)`` or vectors ``(B, H or G, s, n)``; all keys' are in `Layer.kept`.
            Torch's transformer layers then run without fused operators.
        offload: "cpu" copies everything that is kept to main memory.

    Returns:
        A context manager of the `Recording`, which grows while the block runs.

    Warns:
        RuntimeWarning: once, if a compiled model runs eagerly.

    Raises:
        RecordError: if no call was seen, inside a compiled function, or if a call cannot be
            represented exactly; if a function of ``keep`` returns another number of keys; also
            in a backward pass after the block in which checkpoints recompute calls that
            `regard.attention` made inside it.
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid index, and for tokens whose number is not that of the positions.
            After several calls, as in a generation, that is only a warning, and positions have no
            labels.

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
    module = check_model(model)
    selection = selection_of(layers, heads, rows, offload=offload, keep=check_keep(keep))
    return _recording(module, selection, Labeller(module, tokens))


@block("record(...)")
def _recording(
    model: nn.Module | None, selection: Selection, labeller: Labeller
) -> Iterator[Recording]:
    recorder = Recorder(model, selection, partial(PatternBuilder, selection=selection))
    recording = Recording(partial(layers_of, recorder), labeller.labels)
    calls = observe_calls(recorder)
    values = bool(selection.keep_of_values)
    with observed(recorder, model, labeller, calls, recording.finish, values=values):
        yield recording
    labeller.check(
        lambda: (
            (layer.name, layer.pattern.shape[:-2], layer.pattern.shape[-1])
            for layer in recording.of_kind().layers
        ),
        several=recorder.has_several_calls,
    )
