"""One document of an atlas: one forward pass, in which each layer's pattern is read and released.

Everything is exact, in memory O(heads × length): of a matrix of weights only single rows are
formed, for examples. What is measured depends on the model's places: the norm moved needs each
head's slice of W_O, the logit toward the next token an unembedding with W_O before it.

Axes: N heads of all layers, H heads of a layer, T tokens of a window, Dv dimension of a value,
E model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from regard._modules import of_this_thread
from regard._shapes import Float, Int
from regard.errors import Error
from regard.intercept import Call, observe_calls
from regard.lens._kept import norms, unembedding_rows
from regard.lens._norm import LinearNorm
from regard.lens.circuits import matrix_of
from regard.lens.head_atlas.examples import SAMPLED, Examples, hashes
from regard.lens.head_atlas.layer_reading import LISTS, LayerReading, WindowTokens
from regard.record import Layer

__all__ = ["Document", "DocumentRead", "Reader"]

_TOWARD = 2  # of an example's numbers


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text of the corpus, as the model reads it.

    Attributes:
        number: its place in the corpus.
        source: where it comes from.
        windows: its tokens, cut where they are more than the atlas' length.
    """

    number: int
    source: str
    windows: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, number: int, source: str, ids: Sequence[int], length: int) -> Self:
        """Cut a text's tokens into windows, one behind the other."""
        cut = tuple(tuple(ids[at : at + length]) for at in range(0, len(ids), length))
        return cls(number=number, source=source, windows=cut)

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return sum(map(len, self.windows))


@dataclass(kw_only=True, eq=False)
class DocumentRead:
    """What one document adds to an atlas.

    Attributes:
        number: the document's.
        clustered: numbers of each head under a name, whose products are summed too.
        plain: likewise, without products.
        best: of each list, each head's best places, one a window.
        sampled: the rows of the uniform sample, with the hash of each.
    """

    number: int
    clustered: dict[str, Float[Tensor, "N w"]] = field(default_factory=dict)
    plain: dict[str, Float[Tensor, "N w"]] = field(default_factory=dict)
    best: dict[str, Examples] = field(default_factory=dict)
    sampled: list[tuple[Int[Tensor, " r"], Examples]] = field(default_factory=list)


class Reader:
    """Reads documents with one model.

    Args:
        model: a `regard.models.LanguageModel`.
        seed: of the uniform sample.

    Attributes:
        heads: layer and head of each of the N heads; known after the first document.
        unmeasured: what the model's places do not allow to measure, and why.
        knows_outputs: whether W_O of each layer was found.
    """

    def __init__(self, model: Any, *, seed: int) -> None:
        self.model = model
        self._seed = seed
        self.heads: tuple[tuple[int, int], ...] = ()
        self.unmeasured: dict[str, str] = {}
        self._norms: Callable[[str, Tensor], dict[str, Tensor]] | None = None
        self._toward: _Toward | None = None
        try:
            self._norms = norms(model)
        except (Error, TypeError, ValueError) as error:
            self.unmeasured["moved"] = str(error)
        self.knows_outputs = self._norms is not None
        try:
            self._toward = _Toward(model)
        except (Error, TypeError, ValueError) as error:
            self.unmeasured["toward"] = str(error)

    def read(
        self,
        document: Document,
        *,
        lowest: Mapping[str, Float[Tensor, " N"]],
        below: int,
        effects: Sequence[Float[Tensor, "N T"]] | None = None,
    ) -> DocumentRead:
        """Read a document, window by window.

        Args:
            document: the document.
            lowest: of each list, the value above which a head's place is kept; missing keeps all.
            below: rows with a hash below this are sampled.
            effects: of each window, the effect of each head at each position; None if the document
                is not in the sample for effects.
        """
        found, start = DocumentRead(number=document.number), 0
        every = hashes(self._seed, document.number, document.tokens)
        most = SAMPLED + len(document.windows)  # the first row of each is left out
        if len(every) > most:  # more of one document are in no sample
            below = min(below, int(every.sort().values[most]))
        for number, ids in enumerate(document.windows):
            own = every[start : start + len(ids)]
            if len(ids) > 1:
                tokens = WindowTokens(
                    ids,
                    self.model.tokenizer.tokens(ids),
                    document=document.number,
                    start=start,
                    device=self.model.device,
                )
                chosen = (own[1:] < below).nonzero().flatten() + 1  # row 0 has no choice
                better = _highest(lowest, found.best)
                layers, toward = self._run(
                    tokens, better, chosen.tolist(), None if effects is None else effects[number]
                )
                self.heads = self.heads or tuple(
                    (layer.index, head) for layer in layers for head in layer.heads
                )
                _add(found, layers, tokens, toward)
                if len(chosen):
                    rows = _joined([layer.sampled for layer in layers])
                    found.sampled.append((own[chosen], _with_toward(rows, toward, start)))
            start += len(ids)
        return found

    def _run(
        self,
        tokens: WindowTokens,
        lowest: Mapping[str, Tensor],
        sampled: Sequence[int],
        effects: Float[Tensor, "N T"] | None,
    ) -> tuple[list[LayerReading], Float[Tensor, "N t"] | None]:
        """Run over a window; return what was read of each layer, and the logits toward."""
        values: list[Tensor | None] = [None]
        first = 0

        def see(call: Call) -> None:
            values[0] = call.value

        counts: list[int] = []

        def read(layer: Layer) -> LayerReading | None:
            nonlocal first
            if layer.kind == "cross":
                return None
            counts.append(len(layer.heads))
            pattern = layer.pattern[0] if layer.pattern.ndim == 4 else layer.pattern
            own = slice(first, first + len(layer.heads))
            first = own.stop
            (value,), norm = values, None
            if self._norms is not None and value is not None:
                value = value if value.ndim == 4 else value[None]
                norm = self._norms(layer.name, value)["norm"][0]
            none = torch.full((len(layer.heads),), -torch.inf, dtype=torch.float64, device="cpu")
            return LayerReading.of(
                pattern,
                tokens,
                index=layer.index,
                heads=layer.heads,
                norm=norm,
                effects=None if effects is None else effects[own],
                lowest={name: lowest[name][own] if name in lowest else none for name in LISTS},
                sampled=sampled,
            )

        ids = torch.tensor(tokens.ids, device=self.model.device)
        with ExitStack() as stack:
            if self._toward is not None:
                stack.enter_context(self._toward.watching(ids, counts))
            stack.enter_context(observe_calls(see))  # before the layer is read
            results, _ = self.model.read_layers(ids, read)
        layers = [result for _, result in results if result is not None]
        if self._toward is None:
            return layers, None
        toward = self._toward.result(sum(counts))
        if toward is None:
            self.unmeasured["toward"] = (
                "something stands between W_O and the residual stream, or the final norm does not "
                "see every token of the text"
            )
        return layers, toward


def _highest(
    lowest: Mapping[str, Float[Tensor, " N"]], best: Mapping[str, Examples]
) -> dict[str, Float[Tensor, " N"]]:
    """Return the values above which a place is kept: a document has one a head and list."""
    limits = dict(lowest)
    for name, own in best.items():
        value = own.value[:, 0]
        limits[name] = torch.maximum(limits[name], value) if name in limits else value
    return limits


def _add(
    found: DocumentRead,
    layers: Sequence[LayerReading],
    tokens: WindowTokens,
    toward: Float[Tensor, "N t"] | None,
) -> None:
    clustered = _rows_of([layer.clustered for layer in layers])
    plain = _rows_of([layer.plain for layer in layers])
    if toward is not None:
        total = toward.sum(-1, keepdim=True)
        clustered["toward"] = torch.cat([torch.full_like(total, toward.shape[1]), total], dim=-1)
        plain["class_toward"] = tokens.by_class(toward)
        plain["class_predictions"] = tokens.by_class(torch.ones_like(toward))
    for mine, theirs in ((found.clustered, clustered), (found.plain, plain)):
        for name, values in theirs.items():
            mine[name] = mine[name] + values if name in mine else values
    for name in layers[0].best if layers else ():
        best = _with_toward(_joined([one.best[name] for one in layers]), toward, tokens.start)
        if name in found.best:
            found.best[name].merge(best)  # the best place of the document
        else:
            found.best[name] = best


def _rows_of(layers: Sequence[Mapping[str, Tensor]]) -> dict[str, Float[Tensor, "N w"]]:
    """Put the heads of all layers one below the other."""
    return {name: torch.cat([layer[name] for layer in layers]) for name in layers[0]}


def _joined(parts: Sequence[Examples]) -> Examples:
    tensors = [part.tensors() for part in parts]
    return Examples.restored({name: torch.cat([t[name] for t in tensors]) for name in tensors[0]})


def _with_toward(examples: Examples, toward: Float[Tensor, "N t"] | None, start: int) -> Examples:
    """Fill in the logit toward the next token, which is known once the model has run."""
    if toward is not None:
        place = examples.position - start
        known = (examples.position >= 0) & (place < toward.shape[1])
        values = toward.gather(1, place.clamp(0, toward.shape[1] - 1))
        examples.numbers[..., _TOWARD] = torch.where(known, values, torch.nan)
    return examples


class _Toward:
    """Sums what each head writes toward the next token: its share of that token's logit.

    As `regard.lens.toward` has it, at every position of a text at once and without its sources: the
    final norm's scale is frozen at each position, and a final softcap is left out.

    Args:
        model: a `regard.models.LanguageModel`.

    Raises:
        Error, TypeError, ValueError: if its places do not allow it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        width = unembedding_rows(model, [0]).shape[-1]
        self._norm: LinearNorm | None = None
        if model.places.norm is not None:
            self._norm = LinearNorm.of(model.module.get_submodule(model.places.norm), width)
        self._outputs: list[tuple[nn.Module, nn.Module, Tensor, float]] = []
        for block in model.places.blocks:
            if block.attention is None or block.output is None:
                continue
            output, adds = (
                model.module.get_submodule(name) for name in (block.output, block.attention_adds)
            )
            weight = matrix_of("W_O", output)
            self._outputs.append((output, adds, weight, block.scale * model.places.scale))

    def watching(self, ids: Int[Tensor, " T"], counts: Sequence[int]) -> ExitStack:
        """Return a context in which the model's run over a text is watched.

        Args:
            ids: the text.
            counts: number of heads of each layer so far; the last is that of the layer that runs.
        """
        self._counts = counts
        unique, place = ids[1:].unique(return_inverse=True)
        self._along = unembedding_rows(self._model, unique)[place].float()
        self._shares: list[Float[Tensor, "H t"]] = []
        self._scale: Float[Tensor, "t 1"] | None = None
        self._given: Tensor | None = None
        self._adds_given = True
        self._length = len(ids)
        stack = ExitStack()
        for output, adds, weight, scale in self._outputs:
            for module, see in ((output, self._see_output(weight, scale)), (adds, self._see_added)):
                stack.callback(module.register_forward_hook(of_this_thread(see)).remove)
        if self._norm is not None:
            norm = self._model.module.get_submodule(self._model.places.norm)
            stack.callback(norm.register_forward_hook(of_this_thread(self._see_norm)).remove)
        return stack

    def result(self, heads: int) -> Float[Tensor, "N t"] | None:
        """Return the share of each head at each position but the last; None if not known.

        Args:
            heads: N.
        """
        if not self._adds_given or (self._norm is not None and self._scale is None):
            return None
        joined = torch.cat(self._shares)
        if len(joined) != heads:
            return None
        return joined if self._scale is None else joined * self._scale[:, 0]

    def _see_output(
        self, weight: Float[Tensor, "HDv E"], scale: float
    ) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def see(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._given = output
            taken = args[0].detach().flatten(0, -2)[: len(self._along)].float()
            share = (self._along.to(taken) @ weight.T.to(taken)).mul_(taken).mul_(scale)
            heads = self._counts[-1] if self._counts else 1
            self._shares.append(share.unflatten(-1, (heads, -1)).sum(-1).double().T.cpu())

        return see

    def _see_added(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        """Note whether what is added is W_O's output, as it is."""
        added = output[0] if isinstance(output, (tuple, list)) else output
        assert self._given is not None
        self._adds_given &= torch.equal(added, self._given)

    def _see_norm(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        assert self._norm is not None
        taken, given = (one.detach().flatten(0, -2) for one in (args[0], output))
        if len(taken) == self._length:
            scale = self._norm.scales(taken.double().cpu(), given.double().cpu())
            self._scale = scale[:-1]
