"""`record`: observe a model while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, overload

from torch import nn

from regard._arguments import Indices
from regard._decorators import block
from regard._modules import unwrapped
from regard.errors import RecordError
from regard.intercept import (
    observe_calls,
    observe_contexts,
    replace_attention,
)
from regard.pattern.readout import Readout
from regard.record._call_reader import CallReader
from regard.record._pattern_builder import PatternBuilder
from regard.record._recorder import Recorder, layers_of
from regard.record._recording import Recording
from regard.record._selection import Selection, selection_of
from regard.record._site_readings import SiteReadings, check_reading, readings_of
from regard.record._tokens import Labeller
from regard.record.readings import names_of
from regard.record.run import Run


@overload
def record(
    model: nn.Module | None = None,
    *,
    tokens: Any = None,
    layers: Indices | None = None,
    heads: Indices | None = None,
    rows: Indices | None = None,
    mean_contexts: bool = False,
    offload: str | None = None,
    read: None = None,
    every: None = None,
) -> AbstractContextManager[Recording]: ...


@overload
def record(
    model: nn.Module | None = None,
    *,
    tokens: Any = None,
    layers: Indices | None = None,
    heads: Indices | None = None,
    rows: Indices | None = None,
    read: Sequence[Readout[Any, Any]],
    every: int | None = None,
) -> AbstractContextManager[Run]: ...


def record(
    model: nn.Module | None = None,
    *,
    tokens: Any = None,
    layers: Indices | None = None,
    heads: Indices | None = None,
    rows: Indices | None = None,
    mean_contexts: bool = False,
    offload: str | None = None,
    read: Sequence[Readout[Any, Any]] | None = None,
    every: int | None = None,
) -> AbstractContextManager[Any]:
    """Record the attention of whatever runs inside the ``with`` block, on this thread.

    The model's own kernels compute its own results; queries and keys are kept, from which weights
    follow. Seen are calls of ``torch.nn.functional.scaled_dot_product_attention``, of torch's own
    transformer layers, of `regard.attention`, of ``flex_attention``, ``flash_attn_func`` and its
    kin, and of xformers' ``memory_efficient_attention``. A compiled model runs eagerly inside the
    block. Other tasks of an event loop are not recorded, unless they are started inside; plain
    generators that one thread steps in turn are, as they have no context of their own. A model of
    `transformers` whose attention is "eager" has to be given: for the time of the recording it
    computes with `regard.attention`, whose results are the same up to rounding, as do those of
    "flex_attention" and flash kernels where they are given. A class whose attention is its own, and
    can't be replaced, is refused.

    Over ``generate`` with a key/value cache each layer has one pattern that grows: the prompt's
    rows first, then a row a step.

    With ``read``, readouts are taken at each call, and its queries and keys are let go: sums over
    queries add up over the steps of a generation, rows append. The results are those of reading a
    recording of the same afterwards, to the last bit on a CPU.

    Args:
        model: record the calls of this model alone, and name the layers by their paths in it.
        tokens: what the positions are called: strings, one list or one a sequence of the batch, or
            a tokenizer, for the ids that the model is called with, named by what they spell
            (`token_names`).
        layers: numbers of the layers to keep, in the order of their first calls.
        heads: numbers of the query heads to keep.
        rows: numbers of the queries to keep; counted over all steps of a generation, or, where
            negative, from the end of each call.
        mean_contexts: keep each head's mean context as well, which `regard.intervene` can put in a
            context's place; torch's own layers then run without their fused operators.
        offload: "cpu" copies what is kept to main memory.
        read: the readouts to take at each call, in place of keeping queries and keys.
        every: with ``read``, take them of one call in so many of each layer, from its first on.

    Returns:
        A context manager of the `Recording`, which grows while the block runs; with ``read`` of the
        `Run`, whose ``readings`` are labelled by layer, batch, head and position.

    Warns:
        RuntimeWarning: once, that a compiled model runs eagerly; and that ``read`` names keys which
            no call had.

    Raises:
        RecordError: if nothing was seen, inside a compiled function, or if a call can't be
            represented exactly; and in a backward pass after the block, where checkpoints compute
            calls again that `regard.attention` made in it.
        TypeError: for arguments of another kind, and for readouts that can't be taken of a pattern
            which grows: `Image`, keys counted from the end, and classes without ``merge``.
        ValueError: for numbers that mean nothing, and for tokens that do not fit the positions.
            After several calls, as of a generation, that is a warning, and positions have no names.

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
    check_reading(read, every, mean_contexts=mean_contexts, offload=offload)
    model = None if model is None else unwrapped(model)
    selection = selection_of(layers, heads, rows, every, offload)
    labeller = Labeller(model, tokens)
    if read is None:
        return _recording(model, selection, labeller, mean_contexts=mean_contexts)
    return _reading(model, selection, labeller, tuple(read))


@block("record(...)")
def _recording(
    model: nn.Module | None, selection: Selection, labeller: Labeller, *, mean_contexts: bool
) -> Iterator[Recording]:
    recorder = Recorder(model, selection, partial(PatternBuilder, selection=selection))
    recording = Recording(partial(layers_of, recorder), labeller.labels)
    with _observed(recorder, model, labeller, recording.finish, mean_contexts=mean_contexts):
        yield recording
    labeller.check(
        lambda: (
            (own.name, own.pattern.shape[:-2], own.pattern.shape[-1]) for own in recording.of_kind()
        ),
        several=recorder.has_several_calls,
    )


@block("record(...)")
def _reading(
    model: nn.Module | None,
    selection: Selection,
    labeller: Labeller,
    readouts: tuple[Readout[Any, Any], ...],
) -> Iterator[Run]:
    reader = CallReader()
    recorder: Recorder[SiteReadings] = Recorder(
        model,
        selection,
        partial(
            SiteReadings,
            selection=selection,
            readouts=readouts,
            reader=reader,
            order=count(),
        ),
    )
    run = Run(readouts, partial(readings_of, recorder), labeller.labels)
    with _observed(recorder, model, labeller, run.finish, reader=reader):
        yield run
    _warn_of_missing_keys(readouts, run)
    labeller.check(
        lambda: ((own.name, own.leading, own.keys) for own in run.of_kind()),
        several=recorder.has_several_calls,
    )


def _warn_of_missing_keys(readouts: tuple[Readout[Any, Any], ...], run: Run) -> None:
    """Warn of keys that readouts number or label and that did not come before the end."""
    shortest = min(run.layers, key=lambda layer: layer.keys, default=None)
    if shortest is None:
        return
    place = repr(shortest.name) if shortest.name else f"layer {shortest.index}"
    for name, readout in zip(names_of(readouts), readouts, strict=True):
        if readout.within(shortest.keys) is not readout:
            warnings.warn(
                f"{name} names or labels keys that never came: {place} had only {shortest.keys} "
                "keys, and weight on others is read as 0; leave out all keys from "
                f"{shortest.keys} on",
                RuntimeWarning,
                stacklevel=4,
            )


@contextmanager
def _observed(
    recorder: Recorder[Any],
    model: nn.Module | None,
    labeller: Labeller,
    finish: Callable[[], None],
    *,
    mean_contexts: bool = False,
    reader: CallReader | None = None,
) -> Iterator[None]:
    """Let a recorder see the calls inside the block, and fix its results at the end."""
    try:
        with ExitStack() as stack:
            stack.enter_context(labeller.observe_ids())
            if model is not None:
                stack.enter_context(replace_attention(model))
            if mean_contexts:
                stack.enter_context(observe_contexts(recorder.observe_context))
            if reader is None:
                stack.enter_context(observe_calls(recorder))
            else:
                stack.enter_context(observe_calls(reader.observing(recorder), reads=True))
            yield
    finally:
        finish()
    if recorder.calls == 0:
        raise RecordError(_nothing_seen(model))


def _nothing_seen(model: nn.Module | None) -> str:
    if model is None:
        return (
            "no attention call was seen; a model of transformers with 'eager' attention must be "
            "given: record(model); others must call "
            "torch.nn.functional.scaled_dot_product_attention, on this thread and in this task"
        )
    return (
        f"no attention call of {type(model).__name__} was seen; call the model inside the with "
        "block, on this thread and in this task; attention that it writes out by itself can't be "
        "seen: let it call torch.nn.functional.scaled_dot_product_attention or regard.attention"
    )
