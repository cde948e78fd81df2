"""The proof of a model's places, from one run over a few tokens.

Three equations have to hold, each up to rounding: residuals add up; logits are the unembedding of
the last residual, normed; and recorded weights × values × W_O, through what stands behind it, are
what attention added. What fails is named, and only what rests on it is withheld.

Axes: H heads, T tokens, Dv head dimension of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.models.places import (
    Block,
    Places,
    Run,
    relative_error,
    tolerance,
    unembedded,
)

__all__ = ["Check", "prove"]

Name = Literal["residuals", "logits", "attention"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One equation of a model.

    Args:
        name: which one: "residuals", "logits" or "attention".
        error: the largest relative error; None if a side of it is not known.
        allowed: the error that rounding explains.
        why: what is not known, or where the equation fails; empty if it holds.

    Example:
        >>> import regard
        >>> [check.name for check in regard.models.open().checks if check.holds]
        ['residuals', 'logits', 'attention']
    """

    name: Name
    error: float | None
    allowed: float
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether the equation holds up to rounding."""
        return not self.why and self.error is not None and self.error <= self.allowed

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.name}: not checked, {self.why}"
        measured = f"relative error {self.error:.1e}, allowed {self.allowed:.1e}"
        return f"{self.name}: {'holds' if self.holds else 'fails'}, {measured}" + (
            f"; {self.why}" if self.why else ""
        )


@torch.no_grad()
def prove(module: nn.Module, run: Run, places: Places) -> tuple[Check, ...]:
    """Check the three equations of a model's places on a run.

    Args:
        module: the model.
        run: its run over a few tokens.
        places: what was found in it, or what a user says.
    """
    return _residuals(run, places), _logits(module, run, places), _attention(module, run, places)


def _residuals(run: Run, places: Places) -> Check:
    """The stream after a block = x before it + what attention and MLP added."""
    worst, allowed = 0.0, 0.0
    before: tuple[str, Tensor] | None = None
    for block in places.blocks:
        own = run.visit(block.name)
        if own is None or own.taken is None or own.given is None:
            return _unknown("residuals", f"{block.name} gives no residual stream")
        allowed = tolerance(own.given.dtype)
        if before is not None:
            worst = max(worst, relative_error(own.taken, before[1]))
            if worst > allowed:
                why = f"{block.name} does not take what {before[0]} gives"
                return Check(name="residuals", error=worst, allowed=allowed, why=why)
        if not _added(run, block):
            return _unknown("residuals", f"no modules of {block.name} add up to what it adds")
        error = _sum_error(run, block, own.taken, own.given)
        if error > allowed:
            why = f"{block.name} adds something else"
            return Check(name="residuals", error=error, allowed=allowed, why=why)
        worst, before = max(worst, error), (block.name, own.given)
    if before is None:
        return _unknown("residuals", "attention is not called in a list of blocks")
    return Check(name="residuals", error=worst, allowed=allowed)


def _added(run: Run, block: Block) -> list[Tensor]:
    names = [block.attention_adds, block.mlp_adds, *block.others]
    return [one.given for one in map(run.visit, names) if one and one.given is not None]


def _sum_error(run: Run, block: Block, before: Tensor, after: Tensor) -> float:
    """Return the error of what a block adds up, or of both sums of one that normalises them."""
    added = [block.scale * one.double() for one in _added(run, block)]
    if block.norms is None:
        return relative_error(before.double() + sum(added), after)
    first, second = map(run.visit, block.norms)
    if first is None or second is None or len(added) != 2:
        return float("inf")
    if first.taken is None or first.given is None or second.taken is None or second.given is None:
        return float("inf")
    return max(
        relative_error(before.double() + added[0], first.taken),
        relative_error(first.given.double() + added[1], second.taken),
        relative_error(second.given, after),
    )


def _logits(module: nn.Module, run: Run, places: Places) -> Check:
    """Logits = softcap(scale · unembed(norm(x)))."""
    if run.logits is None or places.unembed is None:
        return _unknown("logits", "the model has no next token")
    raw = unembedded(module, run, places)
    if raw is None:
        return _unknown("logits", "the last residual is not known")
    logits = places.scale * raw
    if places.softcap is not None:
        logits = places.softcap * torch.tanh(logits / places.softcap)
    error, allowed = relative_error(logits, run.logits), tolerance(run.logits.dtype)
    why = "" if error <= allowed else "logits are something else than the unembedded last residual"
    return Check(name="logits", error=error, allowed=allowed, why=why)


def _attention(module: nn.Module, run: Run, places: Places) -> Check:
    """What attention added = what stands behind W_O, of W_O of recorded weights × values."""
    worst, allowed = 0.0, 0.0
    layers = {layer.name: layer for layer in run.recording.layers}
    for block in places.blocks:
        if block.attention is None:
            continue
        calls = [call for path, _, call in run.calls if path == block.attention]
        output, adds = run.visit(block.output), run.visit(block.attention_adds)
        if len(calls) != 1 or block.attention not in layers or calls[0].value is None:
            return _unknown("attention", f"weights and values of {block.attention} are not known")
        if output is None or output.taken is None or output.given is None:
            return _unknown("attention", f"W_O behind {block.attention} was not found")
        if adds is None or adds.given is None:
            return _unknown("attention", f"what {block.attention} adds was not found")
        value = calls[0].value
        weights = layers[block.attention].pattern.dense()[0]  # (H, T, T)
        value = value[0].repeat_interleave(len(weights) // value.shape[-3], 0).to(weights.dtype)
        contexts = (weights @ value).transpose(0, 1).flatten(1)  # (T, H·Dv)
        allowed = tolerance(output.taken.dtype)
        added = _behind(module, run, block, contexts)
        error = float("inf") if added is None else relative_error(added, adds.given)
        if error > allowed:
            why = f"{block.attention_adds} gives something else than weights × values × W_O"
            return Check(name="attention", error=error, allowed=allowed, why=why)
        worst = max(worst, error)
    if not allowed:
        return _unknown("attention", "no block calls attention")
    return Check(name="attention", error=worst, allowed=allowed)


def _behind(module: nn.Module, run: Run, block: Block, contexts: Tensor) -> Tensor | None:
    """Take contexts through a gate before W_O, W_O, and the modules behind it."""
    output, adds = run.visit(block.output), run.visit(block.attention_adds)
    assert output is not None
    assert output.taken is not None
    assert output.given is not None
    assert adds is not None
    if relative_error(contexts, output.taken) > tolerance(output.taken.dtype):
        found = _normed(run, block, contexts, output.taken)
        found = _gated(run, block, contexts, output.taken) if found is None else found
        if found is None:
            return None
        contexts = found
    x = module.get_submodule(block.output or "")(contexts.to(output.taken.dtype)[None])[0]
    if adds.given is not None and adds.given.equal(output.given):
        return x
    if relative_error(x, output.given) > tolerance(x.dtype):
        return None
    # What stands behind W_O: modules that each take what the one before gave.
    at = output
    while True:
        following = [
            v
            for v in run.visits
            if v.begin > at.end
            and v.taken is not None
            and at.given is not None
            and v.given is not None
            and v.taken.shape == at.given.shape
            and v.taken.equal(at.given)
        ]
        if not following:
            return None
        at = min(following, key=lambda v: v.begin)
        x = at.module(x[None])
        x = (x if isinstance(x, Tensor) else x[0])[0]
        if at.given is not None and adds.given is not None and at.given.equal(adds.given):
            return x


def _normed(run: Run, block: Block, contexts: Tensor, taken: Tensor) -> Tensor | None:
    """Return what a module of the block makes of the contexts for W_O; None if none is such."""
    for one in run.visits:
        if not one.path.startswith(f"{block.name}.") or one.given is None or one.taken is None:
            continue
        if one.given.equal(taken) and relative_error(contexts, one.taken) <= tolerance(taken.dtype):
            normed: Tensor = one.module(contexts.to(taken.dtype)[None])
            return normed[0]
    return None


def _gated(run: Run, block: Block, contexts: Tensor, taken: Tensor) -> Tensor | None:
    """Return contexts times a gate that a module of the block computes; None if none is such."""
    for one in run.visits:
        if not one.path.startswith(f"{block.name}.") or one.given is None:
            continue
        width, given = contexts.shape[-1], one.given
        heads = run.recording[block.attention or 0].shape[-3]
        if given.shape[-1] % width == 0:  # alone, or behind the queries of each head
            gate = given.unflatten(-1, (heads, -1))[..., -(width // heads) :].flatten(-2)
        elif given.shape[-1] == heads:
            gate = given.repeat_interleave(width // heads, -1)
        else:
            continue
        for form in (torch.sigmoid, nn.functional.silu, Tensor.clone):
            if relative_error(contexts * form(gate), taken) <= tolerance(taken.dtype):
                return contexts * form(gate)
    return None


def _unknown(name: Name, why: str) -> Check:
    return Check(name=name, error=None, allowed=0.0, why=why)
