"""`passage_effects`: which passages of a context an answer looked at, and which it needed.

Axes: B batch, T tokens, A tokens of the answer, P passages, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from regard._arguments import Indices, check_choice
from regard._display import show
from regard._modules import is_sharded, unwrapped
from regard._shapes import Float, Int
from regard.intercept import takes_logits_to_keep
from regard.intervene import intervene
from regard.lens.effect._effects import Progress, reports
from regard.lens.effect._tail_runs import TailRuns
from regard.lens.effect.draws import Draws
from regard.lens.effect.hybrid import warn_of_hybrid
from regard.lens.spans import Passage, PassageWeights
from regard.lens.spans.links import Span
from regard.lens.spans.passage_weights import answer_span, readouts_of, select, weights_of
from regard.lens.spans.passages import check_passages
from regard.record import read_while_running

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PassageEffects", "passage_effects"]

From = Literal["question", "answer"]


@dataclass(frozen=True, eq=False, kw_only=True)
class PassageEffects:
    """What an answer looked at, and what it needed; `passage_effects` makes it.

    Attributes:
        weights: the weight of each passage, of the first token, the sinks and everything else.
        values: the answer's log-probability with each passage hidden − as it is, in nats, ``(P,)``.
        without_any: the same with all passages hidden.
        unchanged: the answer's log-probability as it is, in nats: the sum over its tokens.
        hidden_from: the first query that passages are hidden from, and one past the last.

    Example:
        >>> import regard, torch
        >>> from regard.gpt import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocab_size=11, context=9, layers=1, heads=2, dim=4)).eval()
        >>> ids = torch.tensor([5, 1, 7, 3, 2, 6, 7])
        >>> effects = regard.lens.passage_effects(model, ids, [(1, 3), (3, 5)], slice(6, 7))
        >>> sorted(effects.order())
        [0, 1]
    """

    weights: PassageWeights
    values: Float[Tensor, " P"]
    without_any: float
    unchanged: float
    hidden_from: Span

    def order(self) -> list[int]:
        """The numbers of the passages, the one that is needed most first."""
        return self.values.argsort(stable=True).tolist()

    def frame(self) -> pd.DataFrame:
        """Lay weights and effects out as a pandas data frame, a row a passage."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """What there is of each passage, by name, in numbers and text that JSON can hold."""
        effects = self.values.tolist()
        return [
            {**row, "effect": effect}
            for row, effect in zip(self.weights.rows(), effects, strict=True)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything but the weights of single heads, in numbers and text that JSON can hold."""
        weights = self.weights
        return {
            "answer_tokens": list(weights.answer),
            "log_probability": self.unchanged,
            "without_any": self.without_any,
            "hidden_from": list(self.hidden_from),
            "layers": list(weights.layers),
            "heads": list(weights.heads),
            "first_token": float(weights.first.nanmean()),
            "sinks": float(weights.sinks.nanmean()),
            "sink_keys": list(weights.sink_keys),
            "elsewhere": float(weights.elsewhere.nanmean()),
            "passages": self.rows(),
        }

    def _repr_html_(self) -> str:
        html: str = show("passage_effects_html", self)
        return html

    def __repr__(self) -> str:
        text: str = show("passage_effects_text", self)
        return text


def passage_effects(
    model: nn.Module,
    ids: Int[Tensor, "*b T"],
    spans: Sequence[Span | Passage],
    answer: slice,
    *,
    hidden_from: From = "question",
    layers: Indices | None = None,
    heads: Indices | None = None,
    sinks: Sequence[int] | None = None,
    progress: Progress = None,
) -> PassageEffects:
    """Measure which passages of a context an answer looked at, and which it needed.

    Looked at is the mean weight of the queries that predict the answer, as `Recording.passages`
    has it. Needed is what becomes of the answer's log-probability where a passage is knocked out
    (Geva et al. 2023, arXiv:2304.14767, section 5): hidden in every layer and head from the queries
    after the last passage, which are those of the question and of the answer. Looked at and needed
    often differ. Each effect is of one passage alone: of two that say the same, neither may be
    missed, which `PassageEffects.without_any` shows. What a later passage has taken up of an
    earlier one can still be read from there.

    A model of transformers reads the context once, and each passage costs a run over question and
    answer. Nothing of the size of the weights is stored. The model runs in the mode that it is in:
    call ``model.eval()`` first if it has dropout, whose noise would be part of the effects. In a
    hybrid model, which also has recurrent or convolutional layers, a passage is hidden from
    attention alone.

    Args:
        model: a causal language model that can be recorded, called with token ids ``(1, T)``.
        ids: the tokens of context, question and answer.
        spans: the passages, ``(first, stop)`` in tokens, or those of `split_passages`.
        answer: the answer's tokens, such as ``slice(-4, None)``.
        hidden_from: ``"question"``, all queries after the last passage; or ``"answer"``, alone
            those that predict the answer, which may then still read from the question what it has
            taken up.
        layers: the layers whose weights are read; all by default. Passages are hidden in all.
        heads: likewise, of each layer.
        sinks: keys that are shown apart; see `Recording.passages`.
        progress: show a bar on the terminal (needs rich); None shows it where there is one. Or a
            function, which is called with how many runs are done and how many there are; what it
            raises ends the work.

    Warns:
        RuntimeWarning: for a hybrid model, and for one that draws random numbers while it runs.

    Raises:
        RecordError: for a model that can't be recorded.
        TypeError: for arguments of another kind.
        ValueError: for spans that overlap or hold no token before the answer, for more than one
            text, for an encoder-decoder, and for a model whose logits are NaN.
        IndexError: for layers or heads that the model does not have.

    Example:
        >>> import regard, torch
        >>> from regard.gpt import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocab_size=11, context=9, layers=1, heads=1, dim=4)).eval()
        >>> ids = torch.tensor([5, 1, 7, 3, 2, 6, 7])
        >>> effects = regard.lens.passage_effects(model, ids, [(1, 3), (3, 5)], slice(6, 7))
        >>> effects.values.shape, effects.hidden_from
        (torch.Size([2]), (5, 6))
    """
    check_choice("hidden_from", hidden_from, ("question", "answer"))
    model = unwrapped(model)
    text = ids[None] if ids.ndim == 1 else ids
    if text.ndim != 2 or len(text) != 1 or text.is_floating_point():
        raise ValueError(
            f"ids must be token ids (T,) or (1, T), but are {ids.dtype} of shape "
            f"{tuple(ids.shape)}; give one text at a time"
        )
    span = answer_span(answer, text.shape[-1])
    passages = check_passages(spans, span[0])
    warn_of_hybrid(model)
    last = max(passage.tokens[1] for passage in passages)
    start = span[0] - 1 if hidden_from == "answer" else min(last, span[0] - 1)
    hidden = [[passage] for passage in passages]
    keeps_logits = takes_logits_to_keep(model)
    runs_to_do = len(hidden) + 2
    # FSDP gathers weights in place, which tensors of inference mode do not allow.
    no_gradients = torch.no_grad() if is_sharded(model) else torch.inference_mode()
    with no_gradients, reports(runs_to_do, progress, "measuring passages") as step:
        readouts = readouts_of(span, range(span[1] - 1), sinks)
        draws = Draws(model)
        with read_while_running(model, *readouts) as readings:
            runs = TailRuns(model, text[:, : span[1] - 1], start, keeps_logits=keeps_logits)
            unchanged = _log_probability(runs, text, span)
        draws.warn(lambda: runs.logits(span[1] - span[0]))
        step(1)
        read = readings.of_kind().layers
        table = select([len(layer.heads) for layer in read], (layers, heads))
        weights = weights_of(
            [read[place] for place, _ in table], [own for _, own in table], passages, span, sinks
        )
        changed = []
        for some in [*hidden, list(passages)]:
            with intervene(model) as change:
                for passage in some:
                    change.knock_out(keys=slice(*passage.tokens), queries=slice(start, None))
                changed.append(_log_probability(runs, text, span) - unchanged)
            step(1)
    return PassageEffects(
        weights=weights,
        values=torch.tensor(changed[:-1], dtype=torch.float64, device="cpu"),
        without_any=changed[-1],
        unchanged=unchanged,
        hidden_from=(start, span[1] - 1),
    )


def _log_probability(runs: TailRuns, text: Int[Tensor, "1 T"], answer: Span) -> float:
    """The answer's, in nats."""
    first, stop = answer
    logits = runs.logits(stop - first)  # (A, V)
    tokens = text[0, first:stop].tolist()
    number = sum(  # row by row: in float64, those of a large vocabulary would take gigabytes
        float(row.double().log_softmax(dim=-1)[token])
        for row, token in zip(logits, tokens, strict=True)
    )
    if isnan(number):
        raise ValueError(
            "the answer's log-probability is NaN, so there is nothing to measure; check the "
            "model's weights"
        )
    return number
