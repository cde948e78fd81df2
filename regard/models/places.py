"""The places of a language model where its parts meet, found by running it, not by its name.

The residual stream x starts as the embedding of a token; each block adds to it what its attention
and its MLP compute; after the last block a norm and the unembedding make logits of it. Which
modules do this is seen in one run over a few tokens: by what they take, what they return, and what
sums up to what.

Axes: T tokens, E model dimension, H heads, Dv head dimension of values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard._modules import of_this_thread
from regard._shapes import Float
from regard.intercept import Call, observe_calls
from regard.record import Recording, record

__all__ = ["Block", "Places", "Run", "find_places", "run_once", "unembedded"]

_CAP = re.compile(r"(final_|output_)?logits?_soft_?cap(ping)?")
"""What configurations call the softcap of logits."""
_SUMMANDS = 3  # at most: attention, MLP, and a second mixer beside the attention, as in hybrids


@dataclass(frozen=True, kw_only=True)
class Block:
    """Where a block adds to the residual stream; names are paths of modules in the model.

    Example:
        >>> import regard
        >>> block = regard.models.open().places.blocks[0]
        >>> block.output, block.mlp_adds
        ('h.0.attn.c_proj', 'h.0.mlp')
    """

    name: str
    attention: str | None
    """The module that calls attention; None for a layer that has no weights."""
    output: str | None
    """W_O: the linear map of the heads' contexts side by side."""
    attention_adds: str | None
    """The module whose output is added for the attention: W_O, or a norm or the like behind it."""
    mlp_adds: str | None
    """The module whose output is added for the MLP; None for a block without one."""
    others: tuple[str, ...] = ()
    """Further modules whose outputs are added, such as a mixer beside the attention."""
    scale: float = 1.0
    """The factor on what is added, such as a residual multiplier."""
    norms: tuple[str, str] | None = None
    """Norms of the two sums, where a block normalises them, as BERT's do."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """The six places of a language model; names are paths of modules in the model.

    What attention and MLP add stand in each `Block`.

    Example:
        >>> import regard
        >>> places = regard.models.open().places
        >>> places.embed, len(places.blocks), places.norm
        ('wte', 4, 'ln_f')
    """

    embed: str | None
    blocks: tuple[Block, ...]
    norm: str | None
    """The norm behind the last block; None for a model without one."""
    unembed: str | None
    scale: float = 1.0
    """Logits are the softcap of the scale times the unembedding's output."""
    softcap: float | None = None


@dataclass(eq=False)
class _Visit:
    """One call of a module: its first tensor and its result, each ``(T, any)``."""

    path: str
    module: nn.Module
    begin: int
    taken: Tensor | None
    end: int = 0
    given: Tensor | None = None


@dataclass(eq=False)
class Run:
    """What happened in one run over a few tokens."""

    visits: list[_Visit]
    """In the order in which they ended."""
    calls: list[tuple[str, int, Call]]
    """The attention calls: the module's path, the time, and the call."""
    recording: Recording
    logits: Float[Tensor, "T V"] | None
    _by_path: dict[str, _Visit] = field(default_factory=dict)

    def visit(self, path: str | None) -> _Visit | None:
        """Return the only call of a module; None if it was not called once."""
        if not self._by_path:
            counts: dict[str, int] = {}
            for one in self.visits:
                counts[one.path] = counts.get(one.path, 0) + 1
                self._by_path[one.path] = one
            self._by_path = {p: v for p, v in self._by_path.items() if counts[p] == 1}
        return None if path is None else self._by_path.get(path)


@torch.no_grad()
def run_once(module: nn.Module, inputs: Mapping[str, Any]) -> Run:
    """Run a model once and keep what each of its modules took and gave.

    Args:
        module: the model, in evaluation mode.
        inputs: its arguments: one sequence of a few tokens.
    """
    clock = itertools.count()
    visits: list[_Visit] = []
    calls: list[tuple[str, int, Call]] = []
    paths = {id(one): path for path, one in module.named_modules()}

    def see(call: Call) -> None:
        path = next((paths[id(m)] for m in reversed(call.modules) if id(m) in paths), "")
        calls.append((path, next(clock), call))

    with ExitStack() as stack:
        for path, part in module.named_modules():
            stack.enter_context(_watched(path, part, clock, visits))
        recording = stack.enter_context(record(module))
        stack.enter_context(observe_calls(see))
        output = module(**inputs)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    return Run(visits, calls, recording, None if logits is None else logits[0])


@contextmanager
def _watched(
    path: str, module: nn.Module, clock: Iterator[int], visits: list[_Visit]
) -> Iterator[None]:
    entered: list[_Visit] = []

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next(filter(_is_stream, (*args, *kwargs.values())), None)
        entered.append(_Visit(path, module, next(clock), _rows(given)))

    def leave(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 - torch's
        one = entered.pop()
        first = output if isinstance(output, Tensor) else None
        if isinstance(output, (tuple, list)) and output:
            first = output[0]
        elif first is None:
            first = getattr(output, "last_hidden_state", None)
        one.end, one.given = next(clock), _rows(first if _is_stream(first) else None)
        visits.append(one)

    before = module.register_forward_pre_hook(of_this_thread(enter), with_kwargs=True)
    after = module.register_forward_hook(of_this_thread(leave))
    try:
        yield
    finally:
        before.remove()
        after.remove()


def _is_stream(value: Any) -> bool:
    """Whether a value may be of the residual stream: (1, T, any) or (T, any) floats."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and (value.ndim == 2 or (value.ndim == 3 and value.shape[0] == 1))
    )


def _rows(tensor: Tensor | None) -> Tensor | None:
    """Return a copy ``(T, any)``, since a later module may write to the tensor."""
    return None if tensor is None else tensor.flatten(0, -2).clone()


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative error that rounding explains.

    A stream is rounded at each of two sums, and a map to a vector once: a few units in the last
    place in half precision. In float32 the products over some thousand numbers weigh more.
    """
    return max(512 * torch.finfo(torch.float32).eps, 4 * torch.finfo(dtype).eps)


def relative_error(found: Tensor, expected: Tensor, beside: Tensor | None = None) -> float:
    """Return the largest |found − expected| / |expected| of a token; inf for other shapes.

    Args:
        found: ``(T, any)``.
        expected: likewise.
        beside: in place of expected in the denominator: what was summed, in whose last places the
            sum is rounded.
    """
    if found.shape != expected.shape:
        return float("inf")
    error = (found.double() - expected.double()).norm(dim=-1)
    size = (expected if beside is None else beside).double().norm(dim=-1)
    return float(torch.where(error == 0, 0, error / size).max())


def find_places(module: nn.Module, run: Run, stated: Mapping[str, str | None]) -> Places:
    """Find the places of a model from one run.

    What is not found is None; nothing is guessed.

    Args:
        module: the model.
        run: its run over a few tokens.
        stated: by the names of the fields of `Places`, paths that are taken as they are.
    """
    blocks: list[Block] = []
    for path in _block_paths(module, run):
        blocks.append(_block(path, run, blocks))
    found: dict[str, str | None] = {
        "embed": _path_of(module, "get_input_embeddings"),
        "unembed": _path_of(module, "get_output_embeddings"),
        **stated,
    }
    last = run.visit(blocks[-1].name) if blocks else None
    if "norm" not in found:
        found["norm"] = None if last is None else _norm(run, last, found["unembed"])
    places = Places(
        embed=found["embed"], blocks=tuple(blocks), norm=found["norm"], unembed=found["unembed"]
    )
    return replace(places, **_logit_options(module, run, places))


def _path_of(module: nn.Module, method: str) -> str | None:
    try:
        part = getattr(module, method)()
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return next((path for path, one in module.named_modules() if one is part), None)


def _block_paths(module: nn.Module, run: Run) -> list[str]:
    """Return the modules of the outermost list in which attention is called."""
    lists = {
        path: [f"{path}.{name}" for name, _ in part.named_children()]
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList)
    }
    for path in sorted(lists, key=lambda one: one.count(".")):
        if any(called.startswith(f"{path}.") for called, _, _ in run.calls):
            return [block for block in lists[path] if run.visit(block) is not None]
    return []


def _block(path: str, run: Run, before: Sequence[Block]) -> Block:
    """Find which modules of a block add up to what it adds to the residual stream.

    Args:
        path: the block.
        run: the run.
        before: earlier blocks, whose modules are tried first.
    """
    own = run.visit(path)
    assert own is not None, "blocks are those that were called once"
    calls = [(p, time, call) for p, time, call in run.calls if own.begin < time < own.end]
    name, time, call = calls[0] if len(calls) == 1 else (None, None, None)
    block = Block(name=path, attention=name, output=None, attention_adds=None, mlp_adds=None)
    if own.taken is None or own.given is None or own.taken.shape != own.given.shape:
        return block
    inside = [v for v in run.visits if v.path.startswith(f"{path}.")]
    if time is not None and call is not None:
        block = replace(block, output=_output(inside, time, call))
    every = [
        v
        for v in inside
        if v.given is not None and v.given.shape == own.given.shape and run.visit(v.path) is v
    ]
    parts = _distinct(every)
    allowed = tolerance(own.given.dtype)
    for chosen, scale in (*_as_before(parts, path, before), _best_sum(parts, own)):
        if not chosen or _error(chosen, scale, own) > allowed:
            continue
        mixed = [v for v in chosen if time is not None and v.end > time]
        first = min(mixed, key=lambda v: v.end, default=None)
        if time is not None and first is None:
            continue
        others = sorted((v for v in chosen if v is not first), key=lambda v: v.end)
        return replace(
            block,
            attention_adds=None if first is None else first.path,
            mlp_adds=others[-1].path if others else None,
            others=tuple(v.path for v in others[:-1]),
            scale=scale,
        )
    return _normed(block, every, own, time)


def _normed(block: Block, parts: Sequence[_Visit], own: _Visit, time: int | None) -> Block:
    """Find the two sums of a block that normalises each of them."""
    assert own.taken is not None
    assert own.given is not None
    last = next((v for v in parts if v.given is not None and v.given.equal(own.given)), None)
    for norm in parts:
        if time is None or last is None or norm is last or norm.begin < time or norm.given is None:
            continue
        first = _summand(norm, own.taken, [v for v in parts if time < v.end < norm.begin])
        second = _summand(last, norm.given, [v for v in parts if norm.end < v.begin])
        if first is not None and second is not None:
            names = norm.path, last.path
            return replace(block, attention_adds=first.path, mlp_adds=second.path, norms=names)
    return block


def _summand(norm: _Visit, before: Tensor, parts: Sequence[_Visit]) -> _Visit | None:
    """Return the module whose output was added to the stream before a norm took the sum."""
    for one in reversed(parts):
        if norm.taken is None or one.given is None or norm.taken.shape != one.given.shape:
            continue
        total = before.double() + one.given.double()
        if relative_error(total, norm.taken) <= tolerance(norm.taken.dtype):
            return one
    return None


def _distinct(visits: Sequence[_Visit]) -> list[_Visit]:
    """Leave one of modules that hand on the same numbers: the outermost, which ended last."""
    kept: list[_Visit] = []
    for one in visits:
        for place, other in enumerate(kept):
            if one.given is not None and other.given is not None and one.given.equal(other.given):
                kept[place] = one
                break
        else:
            kept.append(one)
    return kept


def _as_before(
    parts: Sequence[_Visit], path: str, before: Sequence[Block]
) -> Iterator[tuple[tuple[_Visit, ...], float]]:
    """Yield the modules that have the places of those of earlier blocks."""
    known = {v.path: v for v in parts}
    tried = set()
    for block in reversed(before):
        names = [name for name in (block.attention_adds, block.mlp_adds, *block.others) if name]
        own = tuple(f"{path}{name.removeprefix(block.name)}" for name in names)
        if own not in tried and all(name in known for name in own):
            tried.add(own)
            yield tuple(known[name] for name in own), block.scale


def _best_sum(parts: Sequence[_Visit], block: _Visit) -> tuple[tuple[_Visit, ...], float]:
    """Return the modules whose outputs come nearest to what a block added, and a factor on them.

    The factor is 1 if that is near enough, else the best one.
    """
    assert block.given is not None
    assert block.taken is not None
    added = block.given.double() - block.taken.double()
    outputs = [v.given.double() for v in parts if v.given is not None]
    choices = [
        chosen
        for count in range(1, _SUMMANDS + 1)
        for chosen in itertools.combinations(range(len(parts)), count)
    ]
    for is_scaled in (False, True):
        found: list[tuple[float, tuple[int, ...], float]] = []
        for chosen in choices:
            total = torch.stack([outputs[i] for i in chosen]).sum(0)
            size = float(total.square().sum())
            scale = float((added * total).sum()) / size if is_scaled and size else 1.0
            found.append((relative_error(scale * total, added, block.given), chosen, scale))
        error, chosen, scale = min(found, default=(float("inf"), (), 1.0))
        if error <= tolerance(block.given.dtype):
            return tuple(parts[i] for i in chosen), scale
    return (), 1.0


def _error(chosen: Sequence[_Visit], scale: float, block: _Visit) -> float:
    assert block.given is not None
    assert block.taken is not None
    total = scale * torch.stack([v.given.double() for v in chosen if v.given is not None]).sum(0)
    return relative_error(block.taken.double() + total, block.given)


def _output(inside: list[_Visit], time: int, call: Call) -> str | None:
    """Return W_O: the first map after the attention that takes the heads' contexts."""
    value = call.value
    if value is None:
        return None
    width = call.query.shape[-3] * value.shape[-1]
    later = [
        v
        for v in inside
        if v.begin > time
        and v.taken is not None
        and v.taken.shape[-1] == width
        and isinstance(getattr(v.module, "weight", None), Tensor)
        and v.module.weight.ndim == 2
    ]
    return min(later, key=lambda v: v.begin).path if later else None


def _norm(run: Run, last: _Visit, unembed: str | None) -> str | None:
    """Return the module between the last block and the unembedding."""
    head = run.visit(unembed)
    stop = float("inf") if head is None or head.begin < last.end else head.begin
    after = [v for v in run.visits if last.end < v.begin and v.end < stop]
    for one in after:
        if last.given is None or one.taken is None or one.given is None:
            continue
        if one.taken.shape == last.given.shape and one.taken.equal(last.given):
            return one.path
    return None


@torch.no_grad()
def unembedded(module: nn.Module, run: Run, places: Places) -> Float[Tensor, "T V"] | None:
    """Return the unembedding of the last residual, normed; None if a part of it is not known."""
    last = run.visit(places.blocks[-1].name) if places.blocks else None
    if places.unembed is None or last is None or last.given is None:
        return None
    x = last.given[None]
    if places.norm is not None:
        x = module.get_submodule(places.norm)(x)
    head = module.get_submodule(places.unembed)
    logits: Tensor = getattr(head, "unembed", head)(x)[0].double()
    return logits


def _logit_options(module: nn.Module, run: Run, places: Places) -> dict[str, Any]:
    """Return scale and softcap, with which the unembedded residual gives the logits."""
    raw = unembedded(module, run, places)
    if raw is None or run.logits is None or raw.shape != run.logits.shape:
        return {}
    logits, size = run.logits.double(), float(raw.square().sum())
    config = text_config(module)
    names = [name for name in dir(config) if _CAP.fullmatch(name)]
    cap = next((one for name in names if isinstance(one := getattr(config, name), float)), None)
    if cap is not None:
        # Near the cap no digits of a logit are left to tell the scale by.
        inner = logits.abs() < 0.9 * cap
        logits, raw = torch.atanh(logits[inner] / cap) * cap, raw[inner]
        size = float(raw.square().sum())
    scale = float((raw * logits).sum()) / size if size else 1.0
    near = tolerance(run.logits.dtype)
    return {"softcap": cap, "scale": 1.0 if abs(scale - 1) < near else scale}


def text_config(module: nn.Module) -> Any:
    """Return the configuration of a model's language part; None for a model without one."""
    config = getattr(module, "config", None)
    whole = getattr(config, "get_text_config", None)
    return config if whole is None else whole()
