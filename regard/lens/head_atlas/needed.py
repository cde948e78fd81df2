"""What breaks without a head: the loss on the tokens that it is named for, with the head off.

A name says where a head looks. Whether the model needs that is another number: the mean −log p, in
nats, of the tokens for which the head has something to do, with the head switched off, beside the
same without any change, and beside the same with another head off that does not have the name: one
of its layer, drawn at random, or of the nearest layer with one where all heads have it. The tokens:

- `induction` and `duplicate token`: those that follow a token which stood before, so that the head
  has a target (`naming.repeats.with_targets`);
- `previous token`, `next token`, `current token`, `separator` and `first token`: all that are
  predicted, since such a head has a target everywhere.

Names that are no relation, such as `nearby tokens`, are named for no tokens and not measured.

**Off** is mean ablation: the head's context is replaced by its mean over the documents. Zeros, or a
mean over all positions, would take from a head what every text has at that position and later
layers rely on (`regard.lens.effects`), so the mean is of positions alike; and since a mean over few
documents of one position would be mostly noise, positions are taken together in ranges that double:
0, 1, 2 to 3, 4 to 7, and so on. The documents should be several: of one alone, the mean at the
first two positions is its own.

The effect is of one head alone. Where several heads do one thing, each may be off at no cost.

Axes: H heads, R ranges of positions, Q queries of a document, D documents, K places.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._arguments import check_whole
from regard._shapes import Bool, Float, Int
from regard.intervene import Intervention
from regard.lens.effect.contexts import Replacement, contexts
from regard.lens.effect.measure import Progress, no_grad, reports
from regard.lens.effect.runs import ModelRuns
from regard.lens.naming.evidence import beside_control
from regard.lens.naming.heads import Heads, HeadScores
from regard.lens.naming.repeats import with_targets
from regard.lens.naming.roles import Role
from regard.lens.targets import TextModel, read_in

__all__ = ["Needed", "needed"]

Place = tuple[int, int]
"""Layer and head."""

_REPEATS = "tokens after one that stood before"
_EVERY = "all tokens"


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What it costs to switch a named head off; made by `needed`.

    Example:
        >>> one = Needed(tokens="all tokens", loss=1.5, without=2.25, control="5.3",
        ...              without_control=1.75, queries=300, margin=0.125)
        >>> one.cost, one.beside
        (0.75, 0.5)
        >>> one
        Needed(loss 1.50, without it 2.25, without 5.3 1.75; 0.50 ± 0.12 more, over 300 queries)
    """

    tokens: str
    """The tokens whose loss it is, in words."""
    loss: float
    """Mean −log p of these tokens, in nats, without any change."""
    without: float
    """The same with the head off."""
    control: str | None
    """Another head that does not have the name, such as ``5.3``; None where all heads have it."""
    without_control: float | None
    """The loss of the same tokens with that head off."""
    queries: int
    """Number of these tokens."""
    margin: float | None
    """Half width of the 95 % interval of `beside`, from the variance between documents; None for
    fewer than four documents, or without a control."""

    @property
    def cost(self) -> float:
        """How much the loss rises with the head off, in nats."""
        return self.without - self.loss

    @property
    def beside(self) -> float | None:
        """How much more it rises than with the control off."""
        return None if self.without_control is None else self.without - self.without_control

    def __repr__(self) -> str:
        words = f"loss {self.loss:.2f}, without it {self.without:.2f}"
        if self.beside is None:
            return f"Needed({words}, over {self.queries} queries)"
        margin = "" if self.margin is None else f" ± {self.margin:.2f}"
        return (
            f"Needed({words}, without {self.control} {self.without_control:.2f}; "
            f"{self.beside:.2f}{margin} more, over {self.queries} queries)"
        )


def needed(
    model: TextModel,
    heads: Heads,
    documents: Sequence[str | Int[Tensor, " T"]],
    *,
    places: Collection[Place] | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> dict[Place, Needed]:
    """Measure what the tokens that heads are named for lose when the heads are switched off.

    `regard.lens.head_atlas.needed` defines tokens, control and "off". Each head is off in a copy
    of the document, in batches; layers below it are not run again.

    The result of a head does not depend on `places`: so heads can be measured some at a time.

    Args:
        model: a `regard.models.LanguageModel` with a next token.
        heads: all heads with their names, such as those of `regard.lens.heads`; controls are drawn
            from them.
        documents: texts, or token ids ``(T,)``, each no longer than the model's context.
        places: layer and head of those to measure; None is all that are named after a relation.
        seed: of the draw of controls.
        progress: as for `regard.lens.effects`; the number counts the heads that were switched off
            in a document.

    Returns:
        What was measured, by layer and head, in the order of `heads`; heads whose name is no
        relation, and those that no token of the documents is for, are left out.

    Raises:
        TypeError: for a string in place of documents.
        ValueError: for no document of two tokens or more, and for ids of another shape.

    Example:
        >>> import regard
        >>> from regard.lens.head_atlas.needed import needed
        >>> model = regard.models.open(None)
        >>> names = regard.lens.probe(model)
        >>> place = next((one.layer, one.head) for one in names if one.role == "induction")
        >>> text = "The hen sat by the red barn. The cat saw the hen sit by the red barn."
        >>> needed(model, names, [text], places=[place])[place].tokens
        'tokens after one that stood before'
    """
    check_whole(seed, "seed")
    if isinstance(documents, str):
        raise TypeError("documents must be texts or token ids, such as a list of strings")
    every = _ids(model, documents)
    named = [
        head
        for head in heads
        if head.role.score is not None and (places is None or (head.layer, head.head) in places)
    ]
    controls = {(head.layer, head.head): _control(head, heads, seed) for head in named}
    off = sorted({*controls, *(place for place in controls.values() if place is not None)})
    if not off:
        return {}
    means = _means(model, every, {layer for layer, _ in off})
    with reports(len(every) * len(off), progress) as report:
        losses = [_losses(model, ids, means, off, report) for ids in every]
    found = {}
    for head in named:
        chosen = [_chosen(head.role, ids) for ids in every]
        place = head.layer, head.head
        one = _needed(head.role, place, controls[place], chosen, losses)
        if one is not None:
            found[place] = one
    return found


def _ids(model: TextModel, documents: Sequence[str | Int[Tensor, " T"]]) -> list[Int[Tensor, " T"]]:
    """Return the token ids of the documents of two tokens or more."""
    every = [read_in(model, document) for document in documents]
    for number, ids in enumerate(every):
        if not isinstance(ids, Tensor) or ids.ndim != 1 or ids.is_floating_point():
            what = tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
            raise ValueError(
                f"documents[{number}] is {what}, but must be a text, or a tensor of token ids (T,)"
            )
    every = [ids.to(model.device) for ids in every if len(ids) > 1]
    if not every:
        raise ValueError("documents holds none of two tokens or more; give at least one")
    return every


def _control(head: HeadScores, heads: Iterable[HeadScores], seed: int) -> Place | None:
    """Draw a head that neither has the name nor may have it, of the layer or the nearest one."""
    others = [
        (other.layer, other.head)
        for other in heads
        if head.role not in (other.role, other.undecided)
    ]
    if not others:
        return None
    # The later of two: on what an early layer writes, everything after it builds.
    nearest = -min((abs(layer - head.layer), -layer) for layer, _ in others)[1]
    # Of the head alone, so that it does not depend on which are measured.
    draw = random.Random(f"{seed} {head.layer}.{head.head}")
    return draw.choice([place for place in others if place[0] == nearest])


def _chosen(role: Role, ids: Int[Tensor, " T"]) -> Bool[Tensor, " Q"]:
    """Return True for the queries whose predictions a role is for."""
    if role in (Role.INDUCTION, Role.DUPLICATE):
        return with_targets(ids.cpu(), following=role is Role.INDUCTION)[:-1]
    return torch.ones(len(ids) - 1, dtype=torch.bool, device="cpu")


def _needed(
    role: Role,
    place: Place,
    control: Place | None,
    chosen: Sequence[Bool[Tensor, " Q"]],
    losses: Sequence[Mapping[Place | None, Float[Tensor, " Q"]]],
) -> Needed | None:
    """Average over the chosen queries of all documents; None without any."""

    def sums(of: Place | None) -> Float[Tensor, "1 D"]:
        pairs = zip(losses, chosen, strict=True)
        return torch.stack([own[of][queries].sum() for own, queries in pairs])[None]

    counts = torch.stack([queries.sum() for queries in chosen])[None].double()
    total = float(counts.sum())
    if not total:
        return None
    without_control = margin = None
    if control is not None:
        without_control = float(sums(control).sum()) / total
        (evidence,) = beside_control(sums(place), sums(control), counts)
        margin = None if evidence is None else evidence.margin
    return Needed(
        tokens=_REPEATS if role in (Role.INDUCTION, Role.DUPLICATE) else _EVERY,
        loss=float(sums(None).sum()) / total,
        without=float(sums(place).sum()) / total,
        control=None if control is None else "{}.{}".format(*control),
        without_control=without_control,
        queries=int(total),
        margin=margin,
    )


def _means(
    model: TextModel, documents: Sequence[Int[Tensor, " T"]], layers: Collection[int]
) -> dict[int, Float[Tensor, "H R Dv"]]:
    """Return the mean context of each head over the documents, in each range of positions.

    The contexts of one document at a time are kept.
    """
    ranges = int(_ranges(max(len(ids) for ids in documents))[-1]) + 1
    counts = torch.zeros(ranges, dtype=torch.float64, device="cpu")
    totals: dict[int, Tensor] = {}
    for ids in documents:
        place = _ranges(len(ids))
        counts += place.bincount(minlength=ranges)
        seen = contexts(model, [ids])
        for layer in layers:
            own = seen[layer][0].cpu().double()  # (H, T, Dv)
            total = totals.setdefault(layer, own.new_zeros(len(own), ranges, own.shape[-1]))
            total.index_add_(1, place, own)
    return {layer: total / counts[:, None] for layer, total in totals.items()}


def _ranges(length: int) -> Int[Tensor, " T"]:
    """Return the range of each position: 0, 1, 2 for 2 and 3, 3 for 4 to 7, and so on.

    >>> _ranges(9)
    tensor([0, 1, 2, 2, 3, 3, 3, 3, 4])
    """
    position = torch.arange(length, dtype=torch.float64, device="cpu")
    return torch.frexp(position).exponent.long()


class _Losses:
    """A target, the mean loss of a text; keeps −log p of each of its tokens too.

    Args:
        ids: the text.
    """

    def __init__(self, ids: Int[Tensor, " T"]) -> None:
        self._following = ids[1:]
        self._kept: list[Float[Tensor, "B Q"]] = []

    def __call__(self, output: Any) -> Float[Tensor, " B"]:
        logits = getattr(output, "logits", output)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        following = self._following.to(logits.device)
        losses = torch.stack(
            [  # one by one: with a large vocabulary, several in float32 would take gigabytes
                F.cross_entropy(sequence[:-1].to(dtype), following, reduction="none")
                for sequence in logits
            ]
        )
        self._kept.append(losses.cpu().double())
        return self._kept[-1].mean(dim=-1)

    def of_last(self, copies: int) -> Float[Tensor, "B Q"]:
        """Return the losses in the last so many copies that were run, and release all."""
        losses = torch.cat(self._kept)[-copies:]
        self._kept.clear()
        return losses


def _losses(
    model: TextModel,
    ids: Int[Tensor, " T"],
    means: Mapping[int, Float[Tensor, "H R Dv"]],
    off: Sequence[Place],
    report: Callable[[int], None],
) -> dict[Place | None, Float[Tensor, " Q"]]:
    """Return −log p of each token of a document with each of some heads off, and with none."""
    target = _Losses(ids)
    place_of = _ranges(len(ids))
    replacement = Replacement(given={layer: mean[:, place_of] for layer, mean in means.items()})
    runs = ModelRuns(model.module, ids, target)

    def switch_off(place: Place, intervention: Intervention, batch: int | None) -> None:
        replacement.state(intervention, place[0], "self", place[1], batch)

    with no_grad(), runs.open():
        unchanged = runs.unchanged()
        result: dict[Place | None, Tensor] = {None: target.of_last(1)[0]}
        layers = {layer.index: layer for layer in unchanged.layers}
        firsts = [layers[place[0]] for place in off]
        changes = [partial(switch_off, place) for place in off]
        for some, means_of in runs.each(firsts, changes, unchanged.batch_size):
            # Runs that check a model come before those of the copies.
            losses = target.of_last(len(some))
            assert torch.equal(losses.mean(dim=-1), means_of), "these copies are the last"
            result |= dict(zip([off[number] for number in some], losses, strict=True))
            report(len(some))
    return result
