"""Attention written out with dense masks, and the changes of an intervention made in it by hand.

It shares no code with `regard`. A test states its changes once, as edits: they are handed to
`regard.intervene`, and made here.

Axes: B batch, H query heads, L queries, S keys, D head dimension.
"""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Edit:
    """A change: a method of `Intervention` and its arguments."""

    method: str
    options: dict
    weights: torch.Tensor | None = None
    """Of a patched pattern, (B, H, L, S)."""

    def state(self, change):
        """State it to `regard`."""
        getattr(change, self.method)(**self.options)

    def concerns(self, kind, layer):
        layers = self.options.get("layers")
        return self.options.get("kind", "self") == kind and layer in picked(layers, 1000)

    def heads(self, batch, heads):
        """Which heads it is made in, (B, H, 1, 1)."""
        result = torch.zeros(batch, heads, dtype=torch.bool)
        for b in picked(self.options.get("batch"), batch):
            result[b, picked(self.options.get("heads"), heads)] = True
        return result[..., None, None]

    def rows(self, lengths):
        """Which rows of the matrix it names, (L, 1); as for `entries`."""
        queries = self.options.get("queries")
        named = [i in picked(queries, length) for i, length in enumerate(lengths)]
        return torch.tensor(named)[:, None]

    def entries(self, lengths, keys):
        """Which entries of the matrix it names, (L, S).

        Args:
            lengths: how long the text was when each query was read.
            keys: the number of keys, or None where it is that length.
        """
        result = torch.zeros(len(lengths), max(lengths) if keys is None else keys).bool()
        for i, length in enumerate(lengths):
            if i in picked(self.options.get("queries"), length):
                count = length if keys is None else keys
                result[i, picked(self.options["keys"], count)] = True
        return result


def edit(method, **options):
    return Edit(method, options)


def picked(numbers, count):
    """The numbers of 0 … count − 1 that are named, by Python's own indexing."""
    everything = range(count)
    if numbers is None:
        return [*everything]
    if isinstance(numbers, slice):
        return [*everything[numbers]]
    listed = [numbers] if isinstance(numbers, int) else numbers
    return [everything[n] for n in listed if -count <= n < count]


class ChangedAttention:
    """Attention as a model computes it, changed.

    Args:
        edits: the changes.
        prompt: how many tokens were read at once before the others one by one; None for all.
    """

    def __init__(self, edits=(), prompt=None):
        self.edits = edits
        self.prompt = prompt
        self.weights = {}
        """Of each kind and layer, (B, H, L, S)."""
        self.contexts = {}
        """Before they are replaced, (B, H, L, Dv)."""
        self.values = {}
        """Before they are replaced, (B, G, S, Dv)."""

    def attend(
        self, site, query, key, value, *, hidden, bias=None, scale=None, softcap=None, sink=None
    ):
        """Compute the context (B, H, L, Dv) of one call.

        Args:
            site: kind and layer.
            query: (B, H, L, D).
            key: (B, G, S, D).
            value: (B, G, S, Dv).
            hidden: broadcastable to (B, H, L, S), True for keys that are hidden.
            bias: likewise, added to the scores after softcap.
            scale: factor on the scores; None is 1/√D.
            softcap: None for none.
            sink: the logit of each head that takes weight away, (H,).
        """
        edits = [each for each in self.edits if each.concerns(*site)]
        self.values[site] = value.detach()
        group = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        if bias is not None:
            scores = scores + bias
        scores, hidden = self._changed(edits, site, scores, hidden.expand(scores.shape))
        weights = masked_softmax(scores, hidden, sink)
        heads, lengths = weights.shape[:2], self._lengths(weights.shape[2])
        for each in _patches("pattern", edits):
            other = each.weights[..., : weights.shape[2], : weights.shape[3]]
            weights = torch.where(each.heads(*heads) & each.rows(lengths), other, weights)
        for each in _patches("value", edits):
            other = each.options["value"]
            if 1 < other.shape[-3] < heads[1]:
                other = other.repeat_interleave(group, -3)
            named = torch.zeros(value.shape[2], 1, dtype=torch.bool)
            named[picked(each.options.get("keys"), value.shape[2])] = True
            other = other[..., : value.shape[2], :]
            value = torch.where(each.heads(*heads) & named, other, value)
        context = weights @ value
        self.weights[site], self.contexts[site] = weights.detach(), context.detach()
        for each in _only("ablate", edits):
            replacement = self._replacement(each, context, hidden.all(-1))
            context = torch.where(each.heads(*heads), replacement, context)
        for each in _patches("context", edits):
            other = each.options["context"][..., : context.shape[2], :]
            context = torch.where(each.heads(*heads) & each.rows(lengths), other, context)
        return context

    def _lengths(self, queries):
        """How long the text was when each query was read."""
        return [max(self.prompt or queries, i + 1) for i in range(queries)]

    def _changed(self, edits, site, scores, hidden):
        """Hide, add, and then multiply."""
        batch, heads, queries, keys = scores.shape
        lengths = self._lengths(queries)
        count = None if site[0] == "self" and keys == max(lengths) else keys
        for each in _only("knock_out", edits):
            hidden = hidden | (each.heads(batch, heads) & each.entries(lengths, count))
        for each in _only("steer", edits):
            entries = each.heads(batch, heads) & each.entries(lengths, count)
            scores = torch.where(entries, scores + each.options["by"], scores)
        for each in _only("temper", edits):
            scores = torch.where(each.heads(batch, heads), scores * each.options["by"], scores)
        return scores, hidden

    def _replacement(self, each, context, sees_nothing):
        by = each.options.get("by", "zero")
        if by == "zero":
            return torch.zeros_like(context)
        result = torch.empty_like(context)
        prompt = self.prompt or context.shape[2]
        calls = [slice(0, prompt), *(slice(i, i + 1) for i in range(prompt, context.shape[2]))]
        for rows in calls:
            present = ~sees_nothing[:, :, rows, None]
            total = (context[:, :, rows] * present).sum(2, keepdim=True)
            result[:, :, rows] = total / present.sum(2, keepdim=True).clamp(min=1)
        return result


def _only(method, edits):
    return [each for each in edits if each.method == method]


def _patches(what, edits):
    return [each for each in _only("patch", edits) if what in each.options]


def masked_softmax(scores, hidden, sink=None):
    """Softmax over the keys that are not hidden; 0 where all are."""
    empty = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden & ~empty, -math.inf)
    if sink is not None:
        extra = sink[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, extra], -1)
    return scores.softmax(-1)[..., : hidden.shape[-1]].masked_fill(empty, 0)


def causal(queries, keys, window=None):
    """True for keys that are hidden from queries at the end of the text, (L, S)."""
    query, key = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
    hidden = key > query
    return hidden if window is None else hidden | (key <= query - window)
