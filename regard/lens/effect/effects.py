"""`effects`: which heads, tokens, passages or edges a number that a model computes depends on.

Axes: N layers, H heads, T tokens, K heads, spans of keys or edges, R replacements of contexts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regard._arguments import Indices, check_choice, check_indices, check_whole
from regard._shapes import Float, Int
from regard.intercept import change_calls
from regard.intervene import Intervention
from regard.lens.effect.attribution import ContextGradients, Gradients, derivatives
from regard.lens.effect.caveats import warn_of_hybrid
from regard.lens.effect.contexts import By, Contexts, Replacement, name_of, replacements_by
from regard.lens.effect.edges import Derivative, edges_table
from regard.lens.effect.hidden import From, Hidden, hidden_spans, length_of, spans_table
from regard.lens.effect.measure import Progress, grid, measured, no_grad, reports, selected
from regard.lens.effect.runs import ModelRuns, Unchanged
from regard.lens.effect.table import Effects, Method, Place
from regard.lens.spans.links import Span
from regard.lens.spans.passages import Passage
from regard.lens.targets import Target, TextModel, in_tokens
from regard.record.layer import Layer
from regard.record.sites import AttentionKind


def effects(
    model: nn.Module | TextModel,
    run: str | Int[Tensor, "*b T"] | Mapping[str, Any] | Callable[[nn.Module], Any],
    target: Target,
    *,
    over: Literal["heads", "keys", "edges"] | Sequence[Span | Passage] = "heads",
    hidden_from: From = "later",
    method: Method | None = None,
    by: By = "zero",
    layers: Indices | None = None,
    heads: Indices | None = None,
    tokens: Any = None,
    batch_size: int | None = None,
    progress: Progress = None,
    k: int = 20,
    seed: int = 0,
) -> Effects:
    """Measure which heads, tokens, passages or edges a number that a model computes depends on.

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
            of equal size; spans to hide, each ``(first, stop)`` in tokens or a passage of
            `split_passages`; or ``"edges"``: hide each key from each query in each head, which is
            estimated for all, and measured for the 20 largest estimates and 20 edges drawn at
            random (`Effects.checks`). In a hybrid model, which also has recurrent or convolutional
            layers, tokens are hidden from attention alone, and a `RuntimeWarning` says so.
        hidden_from: the queries that a span is hidden from: ``"later"``, all after it; its own
            queries still see it, so the effect of the last token is 0, and so do earlier queries if
            attention is not causal. ``"question"``: all after the last span, so other spans may
            already contain its information. ``"answer"``: only those that predict the target, which
            must be tokens. With the last two, a model of transformers that is given ids reads the
            tokens before those queries only once.
        method: ``"ablation"``; or ``"gradient"``, attribution patching: one forward and one
            backward pass of the model give an approximation, exact if the number is linear in the
            contexts that change. `Effects.check` compares it with ablation. Over heads NaN in a
            layer that the number depends on, but that no gradient reaches; over keys and spans all
            are NaN then, and over edges those of the layer are left out. None is ``"ablation"``,
            over edges ``"gradient"``, the only one there.
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
        k: number of edges with the largest estimates.
        seed: seed of the edges drawn at random, each as likely as any other that masks let be seen.

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
    method = method or ("gradient" if over == "edges" else "ablation")
    _check_arguments(over, hidden_from, method, by)
    _check_numbers(batch_size=batch_size, k=k, seed=seed)
    replacements = _Replacements.by(by)
    if not isinstance(model, nn.Module):
        model, run, target, tokens = in_tokens(model, run, target, tokens)
    only = check_indices("layers", layers), check_indices("heads", heads)
    if over != "heads":
        warn_of_hybrid(model)
    runs = ModelRuns(model, run, target, tokens)
    if method == "gradient":
        derived = _Derived.of(runs, replacements, only, batch_size, progress)
        if over == "heads":
            return _heads_by_gradient(derived, replacements)
        if over == "edges":
            return _edges_by_gradient(derived, k, seed)
        return _spans_by_gradient(derived, only[1], over, hidden_from, target)
    hidden = None
    if over != "heads" and hidden_from != "later" and runs.length is not None:
        hidden = hidden_spans(over, hidden_from, target, runs.length)
    with no_grad(), runs.open():
        unchanged = runs.unchanged(start=hidden.start if hidden else 0)
        size = batch_size or unchanged.batch_size
        table = selected(unchanged, *only)
        if over != "heads":
            length = length_of([layer for layer, _ in table])
            if hidden is None or hidden.length != length:
                hidden = hidden_spans(over, hidden_from, target, length)
            return _over_spans(runs, unchanged, table, only[1], hidden, size, progress)
        places = [(layer.index, head) for layer, numbers in table for head in numbers]
        replacements.require([layer for layer, _ in table])
        with reports(len(replacements.each) * len(places), progress) as report:
            values = _ablated(runs, unchanged, places, replacements, size, report)
        return _over_heads(runs, unchanged, table, values, replacements, "ablation")


def _check_arguments(over: Any, hidden_from: Any, method: Any, by: Any) -> None:
    """Check the arguments that do not depend on the model.

    Raises:
        ValueError: for invalid arguments.
    """
    check_choice("hidden_from", hidden_from, get_args(From))
    check_choice("method", method, get_args(Method))
    if isinstance(over, str) and over not in ("heads", "keys", "edges"):
        raise ValueError(
            "over must be 'heads', 'keys', 'edges' or spans of tokens, (first, stop) each, but is "
            f"{over!r}"
        )
    if over in ("heads", "edges") and hidden_from != "later":
        raise ValueError(
            f"hidden_from={hidden_from!r} is for tokens that are hidden: give over='keys' or "
            "spans with it"
        )
    if over == "edges" and method == "ablation":
        raise ValueError(
            "method='ablation' over edges would take a run for each edge of each head; leave it "
            "out: all are estimated, and some of them measured"
        )
    if over != "heads" and not (isinstance(by, str) and by == "zero"):
        raise ValueError(
            "by is for heads, which are ablated; keys and edges are hidden: leave by out"
        )


def _check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        least = 0 if name == "seed" else 1
        if number is not None:
            check_whole(number, name)
            if number < least:
                raise ValueError(f"{name} must be at least {least}, but is {number}")


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
    report: Callable[[int], None],
) -> Float[Tensor, "R K"]:
    """Measure the effect of each replacement in each of the heads."""
    kinds = {layer.index: layer.kind for layer in unchanged.layers}

    def change(
        replacement: Replacement, place: Place, intervention: Intervention, batch: Any
    ) -> None:
        layer, head = place
        replacement.state(intervention, layer, kinds[layer], head, batch)

    changes = [
        (place[0], partial(change, replacement, place))
        for replacement in replacements.each
        for place in places
    ]
    values = measured(runs, unchanged, changes, size, report)
    return values.reshape(len(replacements.each), len(places))


def _over_spans(
    runs: ModelRuns,
    unchanged: Unchanged,
    table: Sequence[tuple[Layer, tuple[int, ...]]],
    heads: tuple[int, ...] | slice | None,
    hidden: Hidden,
    size: int,
    progress: Progress,
) -> Effects:
    """Measure the effect of hiding each span and, for the caller's own spans, all together."""
    groups = hidden.groups
    skipped = len(hidden.spans) - len(hidden.present)  # no later query is there to hide them from
    with reports(skipped + len(groups), progress) as report:
        report(skipped)
        indices, kind = [layer.index for layer, _ in table], table[0][0].kind
        values = _without(runs, unchanged, indices, kind, heads, hidden, groups, size, report)
    return spans_table(runs.target, unchanged, hidden, values, "ablation")


def _without(
    runs: ModelRuns,
    unchanged: Unchanged,
    layers: Sequence[int],
    kind: AttentionKind,
    heads: tuple[int, ...] | slice | None,
    hidden: Hidden,
    groups: Sequence[Sequence[int]],
    size: int,
    report: Callable[[int], None],
) -> Float[Tensor, " K"]:
    """Measure the effect of hiding each group of spans together."""

    def hide(some: Sequence[int], intervention: Intervention, batch: int | None) -> None:
        for span in some:
            intervention.knock_out(
                keys=slice(*hidden.spans[span].tokens),
                queries=slice(hidden.starts[span], None),
                layers=layers,
                heads=heads,
                kind=kind,
                batch=batch,
            )

    changes = [(layers[0], partial(hide, group)) for group in groups]
    return measured(runs, unchanged, changes, size, report)


@dataclass(frozen=True, eq=False)
class _Again:
    """What it takes to measure effects afterwards: nothing of a run is kept for it."""

    runs: ModelRuns
    batch_size: int | None
    progress: Progress

    @contextmanager
    def measuring(self, count: int) -> Iterator[tuple[Unchanged, int, Callable[[int], None]]]:
        """Run again unchanged, and yield this run, the batch size and what reports the progress."""
        with no_grad(), self.runs.open(), reports(count, self.progress) as report:
            start = self.runs.unchanged()
            yield start, self.batch_size or start.batch_size, report


@dataclass(frozen=True, eq=False, kw_only=True)
class _Derived:
    """An unchanged run with the gradient of its number by each context."""

    again: _Again
    unchanged: Unchanged
    table: list[tuple[Layer, tuple[int, ...]]]
    contexts: ContextGradients
    gradients: Gradients
    cut: list[int]
    """Layers that the number depends on, but that no gradient reached."""

    @classmethod
    def of(
        cls,
        runs: ModelRuns,
        replacements: _Replacements,
        only: tuple[Any, Any],
        batch_size: int | None,
        progress: Progress,
    ) -> _Derived:
        """Run forward and backward.

        Warns:
            RuntimeWarning: for layers that no gradient reached.
        """
        contexts = ContextGradients(runs.model)
        with torch.enable_grad(), runs.open(), change_calls(contexts):
            unchanged = runs.unchanged(keep=False)
            table = selected(unchanged, *only)
            replacements.require([layer for layer, _ in table])
            kind, indices = table[0][0].kind, [layer.index for layer, _ in table]
            gradients = contexts.gradients(unchanged.target, kind, indices)
        with no_grad(), runs.open():
            cut = contexts.cut_layers(lambda: runs.again()[1], replacements.each[0], kind)
        if cut:
            warnings.warn(
                f"method='gradient': no gradient came back to layer(s) "
                f"{', '.join(map(str, cut))}, on which the number depends, so that their effects "
                "are NaN or, over edges, left out: a reentrant checkpoint, torch.no_grad(), "
                "detach() or a function whose backward returns None cuts the graph; run the model "
                "without it, or take method='ablation'",
                RuntimeWarning,
                stacklevel=3,
            )
        return cls(
            again=_Again(runs, batch_size, progress),
            unchanged=unchanged,
            table=table,
            contexts=contexts,
            gradients=gradients,
            cut=cut,
        )

    def attention(self, over: str) -> list[tuple[int, tuple[int, ...], Derivative]]:
        """Return index, heads and attention of the layers that a gradient reached."""
        found = derivatives(self.gradients, over)
        table = [(layer.index, heads) for layer, heads in self.table]
        return [(layer, heads, found[layer]) for layer, heads in table if layer in found]


def _heads_by_gradient(derived: _Derived, replacements: _Replacements) -> Effects:
    with no_grad():
        by_layer = derived.contexts.head_effects(derived.gradients, replacements.each)
    for layer in derived.cut:
        by_layer[layer].fill_(torch.nan)
    rows = [by_layer[layer.index][:, [*heads]] for layer, heads in derived.table]
    again, unchanged, table = derived.again, derived.unchanged, derived.table

    def measure(places: Sequence[Place]) -> Float[Tensor, " K"]:
        with again.measuring(len(replacements.each) * len(places)) as (start, size, report):
            return _ablated(again.runs, start, places, replacements, size, report).mean(dim=0)

    values = torch.cat(rows, dim=1)
    return _over_heads(again.runs, unchanged, table, values, replacements, "gradient", measure)


def _edges_by_gradient(derived: _Derived, k: int, seed: int) -> Effects:
    again, kind = derived.again, derived.table[0][0].kind

    def measure(places: Sequence[Place]) -> Float[Tensor, " K"]:
        with again.measuring(len(places)) as (start, size, report):
            changes = [(place[0], partial(hide, place)) for place in places]
            return measured(again.runs, start, changes, size, report)

    def hide(place: Place, intervention: Intervention, batch: int | None) -> None:
        layer, head, query, key = place
        intervention.knock_out(
            layers=layer, heads=head, queries=query, keys=key, kind=kind, batch=batch
        )

    with no_grad():
        layers = derived.attention("edges")
    return edges_table(again.runs.target, derived.unchanged, layers, k, seed, measure)


def _spans_by_gradient(
    derived: _Derived,
    heads: tuple[int, ...] | slice | None,
    over: Any,
    hidden_from: From,
    target: Target,
) -> Effects:
    again, layers = derived.again, [layer for layer, _ in derived.table]
    indices, kind = [layer.index for layer in layers], layers[0].kind
    hidden = hidden_spans(over, hidden_from, target, length_of(layers))
    spans = [(*span.tokens, start) for span, start in zip(hidden.spans, hidden.starts, strict=True)]
    groups = [[spans[number] for number in group] for group in hidden.groups]
    values = torch.zeros(len(groups), dtype=torch.float64, device="cpu")
    with no_grad():
        for _, some, attention in derived.attention("keys or spans"):
            values += attention.span_effects(groups)[:, list(some)].sum(dim=-1)
    if derived.cut:
        values.fill_(torch.nan)

    def measure(places: Sequence[Place]) -> Float[Tensor, " K"]:
        every = [hidden.numbered[place[0], place[1]] for place in places]
        here = [entry for entry, span in enumerate(every) if span in hidden.present]
        effects = torch.zeros(len(every), dtype=torch.float64, device="cpu")
        with again.measuring(len(here)) as (start, size, report):
            one_each = [[every[entry]] for entry in here]
            effects[here] = _without(
                again.runs, start, indices, kind, heads, hidden, one_each, size, report
            )
        return effects

    return spans_table(again.runs.target, derived.unchanged, hidden, values, "gradient", measure)


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
