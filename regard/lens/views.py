"""Four views of a layer's pattern: the weight, what it moves, what it adds to the answer, no sink.

A view is a function from a pattern to a pattern, as lazy and as exact as the weights; whatever
reads the one reads the other.

Axes: H query heads, G key/value heads, S keys, Dv dimension of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import Error
from regard.lens._kept import Keep, directions, norms
from regard.lens.sink_keys import resting
from regard.lens.toward import toward
from regard.lens.view_names import VIEWS, View
from regard.pattern import Pattern
from regard.pattern.weighted import WeightedPattern
from regard.record import Layer

__all__ = ["Views", "views"]

_FITS = 1e-2
"""Largest difference of a head's sources from those of `toward`, relative to their size."""


class Views:
    """The layers of one text in each view; made by `views`, or of a recording.

    Args:
        layers: the layers of self-attention of one run, of all rows. What `norms` kept of them is
            taken; else the norms are computed of the values.
        model: the `regard.models.LanguageModel` that ran; None if it is not known.
        values: the values of each layer, ``(G, S, Dv)``; None for one whose are not known.
        ids: the text.
        answer: the token whose logit the view ``"toward"`` is about; None if there is none.
        sequence: which sequence of the batch is meant.

    Example:
        >>> import regard, torch
        >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer, keep=regard.lens.norms(layer)) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> seen = regard.lens.Views(recording.layers)
        >>> seen.of("moved", 0)
        WeightedPattern(2 × 5 queries × 5 keys, float32, cpu)
        >>> seen.objection("toward")
        'a recording has no model, of which the view needs W_O and the unembedding'
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        model: Any = None,
        values: Sequence[Float[Tensor, "G S Dv"] | None] = (),
        ids: Int[Tensor, " S"] | None = None,
        answer: int | None = None,
        sequence: int = 0,
    ) -> None:
        self.layers = tuple(layers)
        self._model = model
        self._values = tuple(values)
        self._ids = ids
        self._answer = answer
        self._sequence = sequence
        self._norms: dict[int, Tensor] = {}

    def objection(self, name: str) -> str | None:
        """Say why there is no such view, in a clause; None if there is, as far as that is known.

        For ``"toward"`` the model is run once more, when it is first asked for by `of`.

        Raises:
            ValueError: for a name that is none of the four.
        """
        if _named(name).name == "moved":
            return self._without_norms
        return self._without_answer if name == "toward" else None

    def of(
        self, name: str, layer: int, pattern: Pattern | None = None, head: int | None = None
    ) -> Pattern | WeightedPattern:
        """Return a layer in a view, ``(H, L, S)``, or one of its heads, ``(L, S)``.

        Args:
            name: ``"weight"``, ``"moved"``, ``"toward"`` or ``"without"``.
            layer: its place among the layers.
            pattern: its weights, if they are at hand with their log-sum-exps; of a head, the
                head's.
            head: the place of a head in the layer; None is all.

        Raises:
            Error: for a view that there is not; see `objection`.
            ValueError: for a name that is none of the four.
        """
        if pattern is None:
            whole = self.layers[layer].pattern
            whole = whole[self._sequence] if whole.ndim == 4 else whole
            pattern = whole if head is None else whole[head]
        if _named(name).name == "weight":
            return pattern
        if name == "without":
            return pattern.without(resting(pattern))
        factors = self._factors(name, layer)
        return pattern.weighted(key=factors if head is None else factors[head])

    def _factors(self, name: str, layer: int) -> Float[Tensor, "H S"]:
        """Return what multiplies the weights of a layer."""
        why = self.objection(name)
        if why is None:
            if name == "moved":
                return self._norm(layer)
            found = self._toward
            if not isinstance(found, str):
                return found[layer]
            why = found
        raise Error(why)

    @cached_property
    def _keep_norms(self) -> Keep:
        return norms(self._model)

    def _norm(self, layer: int) -> Float[Tensor, "H S"]:
        """Return ‖v W‖ of each head and key: as it was kept, or of the values."""
        own = self.layers[layer]
        if layer not in self._norms:
            kept = own.kept.get("norm")
            if kept is None:
                value = self._value(layer)
                self._norms[layer] = self._keep_norms(own.name, value[None])["norm"][0]
            else:
                self._norms[layer] = kept[self._sequence] if kept.ndim == 3 else kept
        return self._norms[layer]

    def _value(self, layer: int) -> Float[Tensor, "G S Dv"]:
        value = self._values[layer] if self._values else None
        if value is None:
            raise Error(f"the values of {self.layers[layer].name or f'layer {layer}'} are not kept")
        return value

    @cached_property
    def _without_norms(self) -> str | None:
        """Why norms behind W_O are not known of every layer."""
        if all("norm" in layer.kept for layer in self.layers):
            return None
        if self._model is None:
            return (
                "the recording holds no norms of values behind W_O; record with "
                "keep=regard.lens.norms(model)"
            )
        return self._without_values

    @cached_property
    def _without_values(self) -> str | None:
        """Why values behind W_O are not known of every layer."""
        try:
            for layer, own in enumerate(self.layers):
                self._keep_norms(own.name, self._value(layer)[None, :, :1])
        except (Error, TypeError, ValueError) as error:
            return _clause(error)
        return None

    @property
    def _without_answer(self) -> str | None:
        """Why what a key adds to the answer is not known; whether it fits is known once tried."""
        if self._model is None:
            return "a recording has no model, of which the view needs W_O and the unembedding"
        if self._ids is None or self._answer is None:
            return "there is no next token whose logit it could be"
        tried = self.__dict__.get("_toward")
        return tried if isinstance(tried, str) else self._without_values

    @cached_property
    def _toward(self) -> list[Float[Tensor, "H S"]] | str:
        """Return what each key adds to the logit per weight, by layer; or why it is not known."""
        assert self._ids is not None, "`objection` is asked first"
        assert self._answer is not None, "likewise"
        try:
            parts = toward(self._model, self._ids, self._answer)
            keep = directions(self._model, [self._answer])
            along = [
                keep(own.name, self._value(layer)[None])["direction"][0, ..., 0]
                for layer, own in enumerate(self.layers)
            ]
        except (Error, TypeError, ValueError) as error:
            return _clause(error)
        blocks = [block.attention for block in self._model.places.blocks]
        found = []
        for layer, (own, factors) in enumerate(zip(self.layers, along, strict=True)):
            last = self.of("weight", layer)[:, -1].double().cpu()
            sources = parts.sources[blocks.index(own.name), : len(last)]
            # The norm's scale and a residual multiplier are one number, which fits all heads; a
            # gate, or a norm behind W_O, is not.
            entries = last * factors.double().cpu()
            scale = (entries * sources).sum() / entries.square().sum().clamp_min(1e-300)
            if (sources - scale * entries).norm() > _FITS * sources.norm():
                return (
                    f"what stands between the values of {own.name} and the logit is not one scale"
                )
            found.append(factors * scale.to(factors))
        return found


def views(model: Any, text: str | Int[Tensor, " T"], answer: int | None = None) -> Views:
    """Run a language model over a text, for its layers in each of the four views.

    ``"weight"`` is the pattern; ``"moved"`` α·‖v W_O‖, norm-based attention (Kobayashi et al. 2020,
    arXiv:2004.10102); ``"toward"`` what each key adds to the logit of the answer, signed, whose
    last row is that of `toward`; ``"without"`` the weights beside the head's own `sinks`.

    Args:
        model: a `regard.models.LanguageModel`.
        text: the text, or its ids.
        answer: the id of a token; None is the likeliest next one.

    Raises:
        RecordError: as `LanguageModel.record`.

    Example:
        >>> import regard
        >>> text = "Tom had a kite and Ella had a drum. Tom lost the"
        >>> model = regard.models.open()
        >>> text = "Tom had a red kite and a blue drum. Tom wanted the blue"
        >>> tokens = model.tokenizer.tokens(model.read(text).ids)
        >>> seen = regard.lens.views(model, text)
        >>> for name in ("weight", "moved", "toward", "without"):  # head 2.2, at the last token
        ...     print(name, tokens[int(seen.of(name, 2)[2, -1].abs().argmax())])
        weight  kite
        moved  drum
        toward  drum
        without  kite
    """
    ids = (
        torch.tensor(model.read(text).ids, device="cpu")
        if isinstance(text, str)
        else text.flatten()
    )
    ids = ids.to(model.device)
    run = model.record(ids)
    if answer is None and run.logits is not None:
        answer = int(run.logits.argmax())
    return Views(run.layers, model=model, values=run.values, ids=ids, answer=answer)


def _named(name: str) -> View:
    if name not in VIEWS:
        raise ValueError(f"view is {name!r}, but there are {', '.join(VIEWS)}")
    return VIEWS[name]


def _clause(error: Exception) -> str:
    return str(error).split("\n")[0]
