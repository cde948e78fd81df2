"""`effects`: which heads, tokens or passages a number that a model computes depends on.

Axes: N layers, H heads, T tokens, K spans of keys.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regard._arguments import Indices, check_choice, check_indices, check_whole
from regard._shapes import Float, Int
from regard.intercept import change_calls
from regard.intervene import Intervention
from regard.lens.effect.attribution import ContextGradients
from regard.lens.effect.caveats import warn_of_hybrid
from regard.lens.effect.contexts import By, Contexts, Replacement, name_of, replacements_by
from regard.lens.effect.measure import Progress, grid, measured, no_grad, reports, selected
from regard.lens.effect.runs import ModelRuns, Unchanged, chunks
from regard.lens.effect.table import Effects, Method, Place
from regard.lens.spans.links import Span
from regard.lens.spans.passages import Passage, check_spans
from regard.lens.targets import Answer, Logit, LogProbability, Target, TextModel, in_tokens
from regard.record.layer import Layer
from regard.record.sites import AttentionKind

From = Literal["later", "question", "answer"]

_BLOCKS = 64  # maximum number of blocks of keys that a text is divided into


def effects(
    model: nn.Module | TextModel,
    run: str | Int[Tensor, "*b T"] | Mapping[str, Any] | Callable[[nn.Module], Any],
    target: Target,
    *,
    over: Literal["heads", "keys"] | Sequence[Span | Passage] = "heads",
    hidden_from: From = "later",
    method: Method = "ablation",
    by: By = "zero",
    layers: Indices | None = None,
    heads: Indices | None = None,
    tokens: Any = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> Effects:
    """Measure which heads, tokens or passages a number that a model computes depends on.

    Each head in turn is ablated, or each token or passage knocked out (Geva et al. 2023,
    arXiv:2304.14767, section 5), and the number computed again; each entry of a batch is a copy of
    the text with its own intervention. A weight says where a head looks, an effect how the number
    changes without it; they often differ. An effect is of one intervention alone: if two heads or
    passages are redundant, both effects may be 0.

    The mode of the model is not changed: call ``model.eval()`` first if it has dropout, whose noise
    would be part of the effects.

    Args:
        model: the model, as for `intervene`; with a `regard.models.LanguageModel` the text and the
            target's token may be strings.
        run: token ids of one text, ``(T,)`` or ``(1, T)``; a mapping of the model's inputs by name,
            as a tokenizer of `transformers` returns; or a function that is called with the model
            once per intervention, runs it and returns the output.
        target: the number: a `LogProbability` or `Logit` of a token; the log-probability of an
            `Answer`, tokens of the text; ``"loss"``, the mean negative log-likelihood of each next
            token; or a function of the model's output that returns a number for each sequence,
            ``(B,)``. For an answer or a negative position, a `GPT` or a model of
            `transformers` computes no earlier logits (``logits_to_keep``), unless `run` is a
            function or has labels, or hooks or your own code may read them.
        over: ``"heads"``; ``"keys"``: hide each token, or of more than 64 tokens, at most 64 blocks
            of equal size; or spans to hide, each ``(first, stop)`` in tokens or a passage of
            `split_passages`. In a hybrid model, which also has recurrent or convolutional layers,
            tokens are hidden from attention alone, and a `RuntimeWarning` says so.
        hidden_from: the queries that a span is hidden from: ``"later"``, all after it; its own
            queries still see it, so the effect of the last token is 0, and so do earlier queries if
            attention is not causal. ``"question"``: all after the last span, so other spans may
            already contain its information. ``"answer"``: only those that predict the target, which
            must be tokens. With the last two, a model of transformers that is given ids reads the
            tokens before those queries only once.
        method: ``"ablation"``; or, over heads, ``"gradient"``, attribution patching: one forward
            and one backward pass give an approximation, exact if the number is linear in the
            head's context. `Effects.check` compares it with ablation. NaN in a layer that the
            number depends on, but that no gradient reaches.
        by: what replaces the context of an ablated head. ``"zero"``; ``"mean"``, its mean over the
            text; contexts of each layer, ``(H, L, Dv)`` or ``(H, 1, Dv)``, such as the ``mean()``
            of `regard.lens.contexts` over prompts; or these `Contexts` themselves, for resampling:
            each prompt's contexts in turn, of which the effect is the mean (`Effects.by_prompt` has
            each). Zeros, and a mean over all positions, take from a head of an early layer what
            every text has at that position, which later layers rely on.
        layers: layers of self-attention to measure, or, over keys, to hide keys in; None is all.
        heads: the heads of each layer; None is all.
        tokens: names of the tokens: strings or a tokenizer, as for `record`.
        batch_size: maximum number of copies of the text in a batch; None chooses one. If a call's
            batch is something else, such as windows, each intervention has a run of its own. Pass 1
            for a model in which the texts of a batch depend on each other.
        progress: whether to show a progress bar (needs rich); None shows it on a terminal. Or a
            function that is called with the number of interventions done and their total; an
            exception in it ends the measurement.

    Returns:
        The `Effects`: the number under each intervention − the number without any.

    Warns:
        RuntimeWarning: for a hybrid model, for a model that draws random numbers, and for layers
            that no gradient reaches.

    Raises:
        Error: for an intervention that is not possible.
        RecordError: for a model that cannot be recorded.
        TypeError: for arguments of the wrong type.
        ValueError: for invalid values, a method that does not support ``over``, and spans that
            reach beyond the text or, with ``hidden_from``, into the answer.
        IndexError: for layers or heads that the model does not have.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> x = torch.randn(1, 5, 6)
        >>> regard.lens.effects(layer, lambda layer: layer(x), lambda y: y[:, -1].norm(dim=-1)).axes
        ('layer', 'head')
    """
    _check_arguments(over, hidden_from, method, by, batch_size)
    replacements = _Replacements.by(by)
    if not isinstance(model, nn.Module):
        model, run, target, tokens = in_tokens(model, run, target, tokens)
    only = check_indices("layers", layers), check_indices("heads", heads)
    if over != "heads":
        warn_of_hybrid(model)
    runs = ModelRuns(model, run, target, tokens)
    if method == "gradient":
        return _by_gradient(runs, replacements, only, batch_size, progress)
    hidden = None
    if over != "heads" and hidden_from != "later" and runs.length is not None:
        hidden = _hidden(over, hidden_from, target, runs.length)
    with no_grad(), runs.open():
        unchanged = runs.unchanged(start=hidden.start if hidden else 0)
        size = batch_size or unchanged.batch_size
        table = selected(unchanged, *only)
        if over != "heads":
            length = _length([layer for layer, _ in table])
            if hidden is None or hidden.length != length:
                hidden = _hidden(over, hidden_from, target, length)
            return _over_spans(runs, unchanged, table, only[1], hidden, size, progress)
        places = [(layer.index, head) for layer, numbers in table for head in numbers]
        values = _ablated(runs, unchanged, places, replacements, size, progress)
        return _over_heads(runs, unchanged, table, values, replacements, "ablation")


def _check_arguments(over: Any, hidden_from: Any, method: Any, by: Any, batch_size: Any) -> None:
    """Check the arguments that do not depend on the model.

    Raises:
        TypeError: for a batch size that is not an integer.
        ValueError: for other invalid arguments.
    """
    check_choice("hidden_from", hidden_from, get_args(From))
    check_choice("method", method, get_args(Method))
    if isinstance(over, str) and over not in ("heads", "keys"):
        raise ValueError(
            f"over must be 'heads', 'keys' or spans of tokens, (first, stop) each, but is {over!r}"
        )
    if over == "heads":
        if hidden_from != "later":
            raise ValueError(
                f"hidden_from={hidden_from!r} is for tokens that are hidden: give over='keys' or "
                "spans with it"
            )
    elif method == "gradient":
        raise ValueError(
            "method='gradient' approximates the ablation of heads; over keys or spans take "
            "method='ablation'"
        )
    elif not (isinstance(by, str) and by == "zero"):
        raise ValueError(
            "by is for heads, which are ablated; keys and spans are hidden: leave by out"
        )
    if batch_size is not None:
        check_whole(batch_size, "batch_size")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}")


@dataclass(frozen=True, kw_only=True)
class _Hidden:
    """Spans to hide, and the first query that each is hidden from."""

    spans: tuple[Passage, ...]
    starts: tuple[int, ...]
    queries: Span | None
    """The queries that all spans are hidden from, if they are the same for all."""
    length: int
    of_choice: bool
    """True if the caller gave the spans."""

    @property
    def start(self) -> int:
        """Return the first query that any span is hidden from."""
        return min(self.starts)

    @property
    def present(self) -> list[int]:
        """Return the indices of the spans that are hidden from some query of the text."""
        return [number for number, start in enumerate(self.starts) if start < self.length]


def _hidden(over: Any, hidden_from: From, target: Target, length: int) -> _Hidden:
    """Check the spans, and find the queries that they are hidden from.

    Raises:
        TypeError: for spans of the wrong type.
        ValueError: for spans that reach too far, and for a target without positions.
    """
    queries = None
    if hidden_from != "later":
        if not isinstance(target, (LogProbability, Logit, Answer)):
            raise ValueError(
                f"hidden_from={hidden_from!r} needs a target that is predicted at known positions: "
                "a regard.lens.LogProbability, Logit or Answer"
            )
        queries = target.queries(length)
    if over == "keys":
        size = -(-length // _BLOCKS)
        blocks = range(0, length, size)
        spans = tuple(Passage(tokens=(first, min(first + size, length))) for first in blocks)
    else:
        spans = check_spans(over, length if queries is None else queries[0] + 1, "over")
    stops = tuple(span.tokens[1] for span in spans)
    if queries is not None:
        first = queries[0] if hidden_from == "answer" else min(max(stops), queries[0])
        queries = first, queries[1]
    return _Hidden(
        spans=spans,
        starts=stops if queries is None else (queries[0],) * len(spans),
        queries=queries,
        length=length,
        of_choice=over != "keys",
    )


@dataclass(frozen=True, eq=False)
class _Replacements:
    """What takes the place of contexts; effects are averaged over it."""

    each: tuple[Replacement, ...]
    name: str
    prompts: tuple[str, ...]
    """The prompts that are resampled."""
    kind: AttentionKind | None = None
    """The kind of attention that contexts are of."""

    @classmethod
    def by(cls, by: By) -> _Replacements:
        """Check the argument of `effects`."""
        each = replacements_by(by)
        if isinstance(by, Contexts):
            return cls(each, name_of(by), by.prompts, by.kind)
        return cls(each, name_of(by), ())

    def require(self, layers: Sequence[Layer]) -> None:
        """Refuse layers whose contexts are not given.

        Raises:
            ValueError: for such a layer.
        """
        for layer in layers:
            if self.kind not in (None, layer.kind):
                raise ValueError(
                    f"by has contexts of {self.kind!r} attention, but heads of {layer.kind!r} "
                    "attention are measured; make them by regard.lens.contexts(..., "
                    f"kind={layer.kind!r})"
                )
        for one in self.each:
            one.require([layer.index for layer in layers])


def _ablated(
    runs: ModelRuns,
    unchanged: Unchanged,
    places: Sequence[Place],
    replacements: _Replacements,
    size: int,
    progress: Progress,
) -> Float[Tensor, "R K"]:
    """Measure the effect of each replacement in each of the heads."""
    layers = {layer.index: layer for layer in unchanged.layers}
    replacements.require([layers[place[0]] for place in places])

    def change(
        replacement: Replacement, place: Place, intervention: Intervention, batch: Any
    ) -> None:
        layer, head = place
        replacement.state(intervention, layer, layers[layer].kind, head, batch)

    changes = [
        (place[0], partial(change, replacement, place))
        for replacement in replacements.each
        for place in places
    ]
    with reports(len(changes), progress) as report:
        values = measured(runs, unchanged, changes, size, report)
    return values.reshape(len(replacements.each), len(places))


def _over_spans(
    runs: ModelRuns,
    unchanged: Unchanged,
    table: Sequence[tuple[Layer, tuple[int, ...]]],
    heads: tuple[int, ...] | slice | None,
    hidden: _Hidden,
    size: int,
    progress: Progress,
) -> Effects:
    """Measure the effect of hiding each span and, for the caller's own spans, all together."""
    indices, first = [layer.index for layer, _ in table], table[0][0]
    number, present = unchanged.number, hidden.present

    def hide(some: Sequence[int], intervention: Intervention, batch: int | None) -> None:
        for span in some:
            intervention.knock_out(
                keys=slice(*hidden.spans[span].tokens),
                queries=slice(hidden.starts[span], None),
                layers=indices,
                heads=heads,
                kind=first.kind,
                batch=batch,
            )

    together = hidden.of_choice and bool(present)
    changes = [partial(hide, [span]) for span in present] + [partial(hide, present)] * together
    changed = torch.zeros(len(changes), dtype=torch.float64, device="cpu")
    skipped = len(hidden.spans) - len(present)  # no later query is there to hide them from
    with reports(skipped + len(changes), progress) as report:
        report(skipped)
        for chunk in chunks(len(changes), size if runs.batches else 1):
            some = [changes[entry] for entry in chunk]
            changed[chunk.start : chunk.stop] = runs.changed(first, some) - number
            report(len(chunk))
    values = torch.zeros(len(hidden.spans), dtype=torch.float64, device="cpu")
    values[present] = changed[: len(present)]
    without_all = float(changed[-1]) if together else 0.0
    return Effects(
        values=values,
        unchanged=number,
        target=runs.target,
        over="spans" if hidden.of_choice else "keys",
        method="ablation",
        axes=("span" if hidden.of_choice else "keys",),
        labels=(tuple(_name(span, unchanged.tokens) for span in hidden.spans),),
        places=tuple(span.tokens for span in hidden.spans),
        without_all=without_all if hidden.of_choice else None,
        hidden_from=hidden.queries,
    )


def _name(span: Passage, tokens: tuple[str, ...] | None) -> str:
    """Name a span by its positions and its text or tokens."""
    if span.text or tokens is None:
        return str(span)
    return f"{span} {''.join(tokens[slice(*span.tokens)])}"


def _length(layers: Sequence[Layer]) -> int:
    """Return the number of keys of the layers.

    Raises:
        ValueError: if they differ from layer to layer.
    """
    sizes = sorted({layer.pattern.shape[-1] for layer in layers})
    if len(sizes) != 1:
        raise ValueError(
            f"effects over keys need layers over the same keys, but they have {sizes}; name "
            "those of the text in layers, or take over='heads'"
        )
    return sizes[0]


def _by_gradient(
    runs: ModelRuns,
    replacements: _Replacements,
    only: tuple[Any, Any],
    batch_size: int | None,
    progress: Progress,
) -> Effects:
    contexts = ContextGradients(runs.model)
    with torch.enable_grad(), runs.open(), change_calls(contexts):
        unchanged = runs.unchanged(keep=False)
        table = selected(unchanged, *only)
        kind = table[0][0].kind
        replacements.require([layer for layer, _ in table])
        indices = [layer.index for layer, _ in table]
        by_layer = contexts.effects(unchanged.target, replacements.each, kind, indices)
    with no_grad(), runs.open():
        cut = contexts.cut_layers(lambda: runs.again()[1], replacements.each[0], kind)
    if cut:
        for layer in cut:
            by_layer[layer].fill_(torch.nan)
        warnings.warn(
            f"method='gradient': no gradient came back to layer(s) {', '.join(map(str, cut))}, on "
            "which the number depends, so that their effects are NaN: a reentrant checkpoint, "
            "torch.no_grad(), detach() or a function whose backward returns None cuts the graph; "
            "run the model without it, or take method='ablation'",
            RuntimeWarning,
            stacklevel=3,
        )
    values = torch.cat([by_layer[layer.index][:, [*numbers]] for layer, numbers in table], dim=1)

    def ablate(places: Sequence[Place]) -> Float[Tensor, " K"]:
        with no_grad(), runs.open():
            start = runs.unchanged()
            size = batch_size or start.batch_size
            return _ablated(runs, start, places, replacements, size, progress).mean(dim=0)

    return _over_heads(runs, unchanged, table, values, replacements, "gradient", ablate)


def _over_heads(
    runs: ModelRuns,
    unchanged: Unchanged,
    table: Sequence[tuple[Layer, tuple[int, ...]]],
    values: Float[Tensor, "R K"],
    replacements: _Replacements,
    method: Method,
    ablate: Callable[[Sequence[Place]], Tensor] | None = None,
) -> Effects:
    columns, by_prompt = grid(table, values)
    return Effects(
        values=by_prompt.mean(dim=0),
        unchanged=unchanged.number,
        target=runs.target,
        over="heads",
        method=method,
        axes=("layer", "head"),
        labels=(tuple(layer.index for layer, _ in table), columns),
        places=tuple((layer.index, head) for layer, _ in table for head in columns),
        by=replacements.name,
        prompts=replacements.prompts,
        by_prompt=by_prompt if replacements.prompts else None,
        _ablate=ablate,
    )
