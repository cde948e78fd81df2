"""`toward`: the logit of a token as a sum over embedding, heads, source tokens and MLPs.

The stream behind the last block is the sum of what the embedding and each block added to it. With
the final norm's scale frozen at each position, the logit is linear in that sum: each part has a
share, and the shares add up to the logit. This is direct logit attribution (Elhage et al. 2021,
https://transformer-circuits.pub/2021/framework; Wang et al. 2022, arXiv:2211.00593, section 3). A
share says what a part writes into the stream for the token, not what the model would do without it:
`effects` measures that.

Axes: N blocks, H query heads, G key/value heads, T tokens, S source tokens, R positions, E model
dimension, Dv of value, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard._arguments import check_indices, check_whole, chosen
from regard._display import show
from regard._modules import of_this_thread
from regard._shapes import Float, Int
from regard.errors import Error
from regard.intercept import Call, observe_calls
from regard.lens._norm import LinearNorm
from regard.lens.effect import effects
from regard.lens.targets import Answer, LogProbability
from regard.pattern import Pattern
from regard.record import record, token_names

__all__ = ["LeadingHead", "LogitParts", "Part", "leading_head", "toward"]

_TOLERANCE = 1e-3
"""Of the parts' sum, relative to the sum of their magnitudes: beyond it the split is refused."""
_DECIDES = 0.1  # nats, of a prediction's log-probability and of its logit's margin
_ROUNDING = 1e-5
"""Of the sum of a block's heads, relative to their magnitudes, in float32."""


@runtime_checkable
class PlacedModel(Protocol):
    """A language model whose places are known, as a `regard.models.LanguageModel`."""

    module: nn.Module
    tokenizer: Any

    @property
    def places(self) -> Any:
        """Where its parts meet."""

    @property
    def device(self) -> torch.device:
        """The device of its input."""

    def read(self, text: str) -> Any:
        """Return what it reads of a text, with its token ``ids``."""

    def token(self, text: str) -> int:
        """Return the id of a token by its text."""

    def logits_at(self, ids: Tensor, positions: Sequence[int]) -> Tensor:
        """Return the logits after some tokens, ``(R, V)``."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one part of the model adds to the logit.

    Attributes:
        name: such as ``head 23.3``, ``MLP 29``, ``embedding``.
        value: its share, in logits.
        place: layer and head of a head; else None.
        source: of a head, the index of the token from which most of the share comes.
        from_source: what comes from that token.

    Example:
        >>> import regard
        >>> parts = regard.lens.toward(regard.models.open(), "Tom had a red", " kite")
        >>> parts.parts()[0].name
        'embedding'
    """

    name: str
    value: float
    place: tuple[int, int] | None = None
    source: int | None = None
    from_source: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitParts:
    """A logit, and the parts that add up to it.

    Attributes:
        logit: as the model computes it, before a final softcap; over several positions the sum.
        target: its token, as text.
        tokens: the text's tokens.
        embedding: share of the embedding.
        sources: of each head and source token, ``(N, H, S)``, in float64; 0 in a block without
            weights and one that could not be split.
        mlps: share of each block's MLP, ``(N,)``.
        others: of each block, what is neither head nor MLP: W_O's bias, a further mixer, and the
            whole attention of a block that could not be split into heads, ``(N,)``.
        constant: share of the biases of the final norm and the unembedding.
        unsplit: the blocks whose attention could not be split into heads.

    Example:
        >>> import regard
        >>> model = regard.models.open()
        >>> parts = regard.lens.toward(model, "Tom had a red kite. Tom wanted the red", " kite")
        >>> abs(parts.logit - parts.total) < 1e-3, parts.heads.shape
        (True, torch.Size([4, 5]))
    """

    logit: float
    target: str
    tokens: tuple[str, ...]
    embedding: float
    sources: Float[Tensor, "N H S"]
    mlps: Float[Tensor, " N"]
    others: Float[Tensor, " N"]
    constant: float
    unsplit: tuple[int, ...] = ()

    @property
    def heads(self) -> Float[Tensor, "N H"]:
        """Share of each head, over all its source tokens."""
        return self.sources.sum(-1)

    @property
    def total(self) -> float:
        """Sum of all parts, which is the logit up to rounding."""
        blocks = self.sources.sum() + self.mlps.sum() + self.others.sum()
        return self.embedding + self.constant + float(blocks)

    def parts(self) -> list[Part]:
        """Return every part, in the order of the computation."""
        heads, place = self.heads, self.sources.abs().argmax(-1)
        listed = [Part(name="embedding", value=self.embedding)]
        for block in range(len(self.mlps)):
            for head in range(heads.shape[1]):
                source = int(place[block, head])
                listed.append(
                    Part(
                        name=f"head {block}.{head}",
                        value=float(heads[block, head]),
                        place=(block, head),
                        source=source,
                        from_source=float(self.sources[block, head, source]),
                    )
                )
            listed.append(Part(name=f"MLP {block}", value=float(self.mlps[block])))
            if float(self.others[block]):
                is_whole = block in self.unsplit
                name = f"attention {block}, not split" if is_whole else f"other in block {block}"
                listed.append(Part(name=name, value=float(self.others[block])))
        return [*listed, Part(name="biases at the end", value=self.constant)]

    def largest(self, k: int) -> list[Part]:
        """Return the k parts of largest magnitude, largest first."""
        return sorted(self.parts(), key=lambda part: -abs(part.value))[:k]

    def __str__(self) -> str:
        text: str = show("logit_parts_text", self)
        return text


def toward(
    model: PlacedModel,
    text: str | Int[Tensor, " T"],
    target: str | int | Answer,
    *,
    against: str | int | None = None,
    position: int | Sequence[int] = -1,
) -> LogitParts:
    """Split the logit of a token into what embedding, heads, source tokens and MLPs add to it.

    In one forward pass. What stands behind a part, W_O, norms, gates and multipliers, is applied
    as the pass applied it at that position, so that the parts add up to the logit.

    Args:
        model: a `regard.models.LanguageModel` with a next token, whose residuals add up.
        text: the text, or its ids.
        target: a token, by its text or its id; or an `Answer`, tokens of the text: the sum of
            their logits, each at the position before it.
        against: another token, whose logit is subtracted.
        position: the position whose logit it is, or several, whose logits are summed; of an
            `Answer` it follows from the tokens.

    Raises:
        Error: for a model without a next token, or whose parts do not add up to its logit.
        ValueError: for a text that is not one token.
        IndexError: for a position that does not exist.

    Example:
        >>> import regard
        >>> parts = regard.lens.toward(regard.models.open(), "Tom had a red", " kite")
        >>> parts.sources.shape, len(parts.largest(3))  # 4 blocks of 5 heads, 4 tokens
        (torch.Size([4, 5, 4]), 3)
    """
    require_placed(model)
    places = model.places
    if places.unembed is None or not places.blocks:
        raise Error(f"{model!r} has no next token, or its places were not found: {places}")
    ids = (
        torch.tensor(model.read(text).ids, device="cpu")
        if isinstance(text, str)
        else text.flatten().cpu()
    )
    rows, wanted = _rows(model, ids, target, against, position)
    trace = _Trace(model, rows)
    logits = trace.run(ids.to(model.device))
    direction, constant = _direction(model, places, wanted)
    measured = _before_softcap(logits.double(), places.softcap)
    logit = float((measured * wanted.to(measured)).sum())
    split = _split(trace, places, direction)
    names = tuple(token_names(model.tokenizer, ids.tolist()))
    parts = LogitParts(
        logit=logit,
        target=_name(model, target, against),
        tokens=names,
        constant=constant + split.pop("constant"),
        **split,
    )
    size = float(parts.sources.abs().sum() + parts.mlps.abs().sum()) + abs(parts.embedding)
    if not abs(parts.total - logit) <= _TOLERANCE * max(size, abs(logit)):
        raise Error(
            f"the parts add up to {parts.total:.4f}, but the logit is {logit:.4f}: {model!r} does "
            "something between its last block and its logits that was not found"
        )
    return parts


def require_placed(model: object) -> None:
    """Refuse what is no language model of `regard.models`, with the cure."""
    if not isinstance(model, PlacedModel):
        raise TypeError(
            f"model must be a regard.models.LanguageModel, but is {type(model).__name__}; "
            "regard.models.open(...) makes one"
        )


@dataclass(frozen=True, kw_only=True)
class LeadingHead:
    """The head that adds most to a prediction against the next likeliest token, and its loss.

    Attributes:
        part: the head, its share of the margin, and the token from which most of that comes.
        token: the likeliest token, as text.
        against: the next likeliest one.
        source: the text of the token from which most of the share comes.
        margin: the difference of their logits.
        loss: by how much the log-probability of the token falls without the head, measured by
            switching it off, in nats.

    Example:
        >>> import regard
        >>> model = regard.models.open()
        >>> ids, logits = model.read("Tom had").ids, model("Tom had")[-1]
        >>> by = regard.lens.leading_head(model, ids, logits)
        >>> by.part.place is not None, by.token != by.against
        (True, True)
    """

    part: Part
    token: str
    against: str
    source: str
    margin: float
    loss: float

    @property
    def decides(self) -> bool:
        """Whether the head adds at least 0.1 to the margin, and the prediction loses as many nats.

        A head that adds less is needed for something else than for writing the token.
        """
        return min(self.part.value, self.loss) >= _DECIDES


def leading_head(
    model: PlacedModel, ids: Sequence[int], logits: Float[Tensor, " V"]
) -> LeadingHead:
    """Find the head that writes a prediction, and measure what is lost without it.

    Two forward passes and two of the text's end: one for `toward`, the others with and without the
    head.

    Args:
        model: as for `toward`.
        ids: the text.
        logits: after its last token.

    Raises:
        Error: as for `toward`, and for a model of which no head's share is known.

    Example:
        >>> import regard
        >>> model, text = regard.models.open(), "Tom had a red kite. Tom wanted the red"
        >>> best = regard.lens.leading_head(model, model.read(text).ids, model(text)[-1])
        >>> best.token, best.loss > 0
        (' kite', True)
    """
    token, other = (int(number) for number in logits.topk(2).indices)
    text = torch.tensor(list(ids), device=model.device)
    parts = toward(model, text, token, against=other)
    heads = [part for part in parts.parts() if part.place is not None]
    if not heads:
        raise Error(f"no head's share of a logit is known in {model!r}")
    best = max(heads, key=lambda part: part.value)
    assert best.place is not None
    assert best.source is not None
    layer, head = best.place
    target = LogProbability(token)
    measured = effects(model.module, text, target, layers=layer, heads=head, progress=False)
    names = token_names(model.tokenizer, [token, other])
    return LeadingHead(
        part=best,
        token=names[0],
        against=names[1],
        source=parts.tokens[best.source],
        margin=parts.logit,
        loss=-float(measured.values.sum()),
    )


def _rows(
    model: PlacedModel, ids: Tensor, target: Any, against: Any, position: Any
) -> tuple[list[int], Tensor]:
    """Return the positions, and a factor for the logit of each token there, ``(R, V)``."""
    size = len(_weight(model.module.get_submodule(model.places.unembed or "")))

    def number(token: Any, name: str) -> int:
        if isinstance(token, str):
            return model.token(token)
        check_whole(token, name)
        if not 0 <= token < size:
            raise ValueError(f"{name} is {token}, but the vocabulary ends at {size - 1}")
        return int(token)

    if isinstance(target, Answer):
        first, stop = target.queries(len(ids))
        rows = list(range(first, stop))
        tokens = ids[first + 1 : stop + 1].tolist()
    else:
        rows = list(chosen(check_indices("position", position), len(ids), "position"))
        tokens = [number(target, "target")] * len(rows)
    wanted = torch.zeros(len(rows), size, dtype=torch.float64, device="cpu")
    wanted[range(len(rows)), tokens] += 1
    if against is not None:
        wanted[:, number(against, "against")] -= 1
    return rows, wanted


def _name(model: PlacedModel, target: Any, against: Any) -> str:
    if isinstance(target, Answer):
        name = str(target).removeprefix("log-probability of ")
    else:
        name = repr(
            target if isinstance(target, str) else token_names(model.tokenizer, [target])[0]
        )
    if against is None:
        return name
    other = against if isinstance(against, str) else token_names(model.tokenizer, [against])[0]
    return f"{name} − {other!r}"


def _direction(model: PlacedModel, places: Any, wanted: Tensor) -> tuple[Tensor, float]:
    """Return what reads the logit from the normed stream, ``(R, E)``, and the part of a bias."""
    head = model.module.get_submodule(places.unembed)
    some = wanted.any(0).nonzero()[:, 0]
    weight = _weight(head)
    rows = weight[some.to(weight.device)].double().cpu()
    direction = places.scale * (wanted[:, some] @ rows)
    bias = getattr(head, "bias", None)
    if not isinstance(bias, Tensor):
        return direction, 0.0
    own = bias[some.to(bias.device)].detach().double().cpu()
    return direction, float(places.scale * (wanted[:, some] @ own).sum())


def _weight(module: nn.Module) -> Tensor:
    """Return the matrix of a linear map or an embedding."""
    weight = module.weight
    assert isinstance(weight, Tensor), "a place is a map with a matrix"
    return weight.detach()


def _before_softcap(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * torch.atanh(logits / cap)


@dataclass(eq=False)
class _Trace:
    """What modules take and give at some positions, and the attention calls, of one run."""

    model: PlacedModel
    rows: list[int]
    taken: dict[str, Tensor] = field(default_factory=dict)
    given: dict[str, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    patterns: dict[str, Pattern] = field(default_factory=dict)

    def run(self, ids: Tensor) -> Tensor:
        """Run the model; return the logits after the positions, ``(R, V)``."""
        module, places = self.model.module, self.model.places
        with torch.no_grad(), ExitStack() as stack:
            for name in _modules_of(places):
                part = module.get_submodule(name)
                stack.callback(self._hooked(name, part).remove)
            recording = stack.enter_context(record(module, rows=self.rows))
            stack.enter_context(observe_calls(self._see))
            logits = self.model.logits_at(ids, self.rows)
        for layer in recording.layers:
            self.patterns.setdefault(layer.name, layer.pattern)
        return logits.cpu()

    def _hooked(self, name: str, part: nn.Module) -> Any:
        def keep(_: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
            floats = (t for t in (*args, *kwargs.values()) if isinstance(t, Tensor))
            stream = next((t for t in floats if t.is_floating_point() and t.ndim > 1), None)
            result = output[0] if isinstance(output, (tuple, list)) else output
            for kept, tensor in ((self.taken, stream), (self.given, result)):
                if isinstance(tensor, Tensor):
                    kept[name] = self._picked(tensor)

        return part.register_forward_hook(of_this_thread(keep), with_kwargs=True)

    def _picked(self, tensor: Tensor) -> Tensor:
        own = tensor.detach()
        own = own[0] if own.ndim == 3 else own
        # A module may be given the chosen positions alone, as the unembedding is.
        own = own if len(own) == len(self.rows) and len(own) <= max(self.rows) else own[self.rows]
        return own.double().cpu()

    def _see(self, call: Call) -> None:
        if call.modules and call.value is not None:
            value = call.value[0] if call.value.ndim == 4 else call.value
            self.values[id(call.modules[-1])] = value  # (G, S, Dv)


def _modules_of(places: Any) -> list[str]:
    names = [places.norm]
    for block in places.blocks:
        names += [block.name, block.output, block.attention_adds, block.mlp_adds, *block.others]
    return list(dict.fromkeys(name for name in names if name is not None))


def _split(trace: _Trace, places: Any, direction: Tensor) -> dict[str, Any]:
    """Return the shares of all parts, as the fields of `LogitParts`."""
    module = trace.model.module
    constant = 0.0
    if places.norm is not None:
        norm = LinearNorm.of(module.get_submodule(places.norm), direction.shape[-1])
        constant = float((direction * norm.bias).sum())
        scales = norm.scales(trace.taken[places.norm], trace.given[places.norm])
        direction = scales * norm.carried_back(direction)
    blocks = places.blocks
    shares = {
        name: torch.zeros(len(blocks), dtype=torch.float64, device="cpu")
        for name in ("mlps", "others")
    }
    sources: dict[int, Tensor] = {}
    unsplit = []
    for number, block in enumerate(blocks):
        back = block.scale * direction
        if block.mlp_adds is not None:
            shares["mlps"][number] = (back * trace.given[block.mlp_adds]).sum()
        for name in block.others:
            shares["others"][number] += (back * trace.given[name]).sum()
        if block.attention_adds is None:
            continue
        whole = (back * trace.given[block.attention_adds]).sum()
        heads = _heads(trace, block, back)
        if heads is None:
            unsplit.append(number)
            shares["others"][number] += whole
        else:
            sources[number] = heads
            rest = whole - heads.sum()
            if abs(rest) > _ROUNDING * heads.abs().sum():  # a bias of W_O
                shares["others"][number] += rest
    heads_of = [tuple(one.shape) for one in sources.values()] or [(0, 0)]
    most = max(shape[0] for shape in heads_of), max(shape[1] for shape in heads_of)
    table = torch.zeros(len(blocks), *most, dtype=torch.float64, device="cpu")
    for number, one in sources.items():
        table[number, : one.shape[0], : one.shape[1]] = one
    first = trace.taken[blocks[0].name]
    return {
        "embedding": float((direction * first).sum()),
        "sources": table,
        **shares,
        "unsplit": tuple(unsplit),
        "constant": constant,
    }


def _heads(trace: _Trace, block: Any, back: Float[Tensor, "R E"]) -> Float[Tensor, "H S"] | None:
    """Return what each head and source token add; None if what stands behind is not understood.

    Gates and norms before and behind W_O are factors of each channel, frozen at the position.
    """
    module = trace.model.module
    if block.output is None or block.attention not in trace.patterns:
        return None
    value = trace.values.get(id(module.get_submodule(block.attention)))
    if value is None:
        return None
    output = module.get_submodule(block.output)
    taken, given = trace.taken[block.output], trace.given[block.output]
    added = trace.given[block.attention_adds]
    if not torch.equal(given, added):
        behind = _ratio(given, added)
        if behind is None:
            return None
        back = back * behind
    weight = _weight(output).double().cpu()
    bias = getattr(output, "bias", None)
    offset = bias.detach().double().cpu() if isinstance(bias, Tensor) else 0
    is_transposed = not _close(taken @ weight.mT + offset, given)
    if is_transposed and not _close(taken @ weight + offset, given):
        return None
    channels = back @ (weight.mT if is_transposed else weight)  # (R, H·Dv)
    weights = trace.patterns[block.attention].dense().double().cpu()
    weights = weights.reshape(weights.shape[-3:])  # (H, R, S), of the chosen rows alone
    heads, groups = len(weights), len(value)
    value = value.double().cpu()
    own = value.repeat_interleave(heads // groups, 0)  # (H, S, Dv)
    context = (weights @ own).transpose(0, 1).flatten(1)  # (R, H·Dv)
    if not _close(context, taken):
        before = _ratio(context, taken)
        if before is None:
            return None
        channels = channels * before
    per_head = channels.unflatten(1, (heads, -1)).transpose(0, 1)  # (H, R, Dv)
    return (weights * (per_head @ own.mT)).sum(1)


def _ratio(x: Tensor, y: Tensor) -> Tensor | None:
    """Return y / x where x is not 0; None for other shapes, or where y is not 0 but x is."""
    if x.shape != y.shape or bool(((x == 0) & (y != 0)).any()):
        return None
    return torch.where(x == 0, 0, y / torch.where(x == 0, 1, x))


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two results are equal up to the rounding of a model's own precision."""
    if one.shape != other.shape:
        return False
    return float((one - other).norm()) <= 2e-2 * float(other.norm())
