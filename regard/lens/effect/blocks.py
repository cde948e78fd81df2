"""Cached outputs of a model's ordered blocks, for runs that differ from a certain block on.

In a batch of copies of a text, each may differ from another block on: a block then runs on those
copies alone that differ before its end, which are the first of the batch.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from regard.intercept import Call, observe_calls


class NotCopiesError(Exception):
    """The entries of a batch are not the copies of the text, one for one."""


class _EndedError(Exception):
    """Ends a run of which the rest is not needed."""


@dataclass(eq=False)
class _Output:
    """The return value of a block's forward, and the number of attention calls before its end."""

    module: nn.Module
    calls: int
    value: Any
    given: list[torch.Size]
    """The shape of each tensor that it was given."""
    batched: list[bool] | None = None
    """For each tensor, True if it has an entry per copy of the text; None if unknown."""
    given_batched: list[bool] | None = None
    """The same of each tensor that it was given."""


class CachedBlocks:
    """The outputs of the blocks of an unchanged run on one sequence, for changed runs on copies.

    Blocks are the modules of a `ModuleList` or `Sequential`, outermost lists alone. A model without
    such a list runs whole. A block may have side effects, so before blocks are skipped, unchanged
    runs without them have to give the same result.

    Args:
        model: the model whose blocks are skipped.
    """

    def __init__(self, model: nn.Module) -> None:
        self._blocks = list(_blocks_of(model))
        self._outputs: list[_Output] = []
        self._times: Counter[int] = Counter()
        self._callers: list[int] = []
        self._repeated = False
        self.knows_batch = False
        """True if it is known which outputs have an entry per copy."""

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Keep the outputs of the run inside the block, on this thread."""
        self.forget()
        with ExitStack() as stack:
            stack.enter_context(observe_calls(self._see))
            for module in self._blocks:
                stack.enter_context(_with_forward(module, self._kept(module)))
            yield

    @contextmanager
    def learn(self, copies: int) -> Iterator[None]:
        """Find which outputs have an entry per copy, from the run inside the block."""
        if copies == 1 or self.knows_batch:
            yield
            return
        with ExitStack() as stack:
            for output in self._outputs if self._is_once else []:
                stack.enter_context(_with_forward(output.module, _compared(output, copies)))
            yield
        self.knows_batch = True

    @contextmanager
    def skip(
        self, starts: Sequence[int], part: Callable[[int], AbstractContextManager[None]] | None
    ) -> Iterator[None]:
        """Inside the block, those that ended before an attention call return cached outputs.

        Args:
            starts: the number of attention calls before that one, for each copy, ascending.
            part: returns the context for a block that runs on so many of the copies; None to run
                each block on all or none.
        """
        copies = len(starts)
        with ExitStack() as stack:
            for output in self._known(copies):
                count = bisect_left(starts, output.calls)
                if count == 0:
                    stack.enter_context(_with_forward(output.module, _returning(output, copies)))
                elif count < copies and part is not None and output.given_batched is not None:
                    forward = _completed(output, count, copies, part)
                    stack.enter_context(_with_forward(output.module, forward))
            yield

    @contextmanager
    def only_between(self, start: int, stop: int | None) -> Iterator[list[bool]]:
        """Inside the block, an unchanged run ends with the last block before a call.

        Blocks that ended before another call return cached outputs.

        Args:
            start: the number of attention calls before that other one.
            stop: the number of attention calls before the one; None for the end of the run.

        Yields:
            A list, into which whether the last block gave the same is put before the run is ended
            by a `_EndedError`; empty if it was not ended.
        """
        same: list[bool] = []
        with ExitStack() as stack:
            ends = [output for output in self._known(1) if stop and start < output.calls <= stop]
            for output in self._known(1):
                if output.calls <= start:
                    stack.enter_context(_with_forward(output.module, _returning(output, 1)))
                elif ends and output is ends[-1]:
                    stack.enter_context(_with_forward(output.module, _ending(output, same)))
            with suppress(_EndedError):
                yield same

    def can_skip(self, calls: int) -> bool:
        """Return True if there is a block that ended before an attention call."""
        return any(output.calls <= calls for output in self._known(1))

    def _known(self, copies: int) -> list[_Output]:
        """Return the outputs that can stand for those of so many copies."""
        return [
            output
            for output in (self._outputs if self._is_once else ())
            if self._times[id(output.module)] == 1
            if copies == 1 or output.batched is not None
        ]

    def forget(self) -> None:
        """Release the outputs."""
        self._outputs.clear()
        self._times.clear()
        self._callers.clear()
        self._repeated = self.knows_batch = False

    @property
    def _is_once(self) -> bool:
        """Return True if each module attends once per run; repeated calls are not told apart."""
        return not self._repeated and len(set(self._callers)) == len(self._callers)

    def _see(self, call: Call) -> None:
        self._callers.append(id(call.modules[-1]) if call.modules else 0)
        self._repeated |= call.repeated

    def _kept(self, module: nn.Module) -> Callable[..., Any]:
        own, thread = module.forward, threading.get_ident()

        @wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            given = [tensor.shape for tensor in _in_tuples((args, tuple(kwargs.values())))]
            value = own(*args, **kwargs)
            if threading.get_ident() != thread:
                return value
            self._times[id(module)] += 1
            if _is_of_one_sequence(value):
                # A later module may write to the result.
                with torch._C.DisableTorchFunction():  # noqa: SLF001 - torch has no public way
                    copied = _mapped(lambda tensor: tensor.detach().clone(), value)
                self._outputs.append(_Output(module, len(self._callers), copied, given))
            return value

        return forward


def _blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of the outermost lists."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            yield from child
        else:
            yield from _blocks_of(child)


def _compared(output: _Output, copies: int) -> Callable[..., Any]:
    own, thread = output.module.forward, threading.get_ident()

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given = [tensor.shape for tensor in _in_tuples((args, tuple(kwargs.values())))]
        value = own(*args, **kwargs)
        if threading.get_ident() == thread:
            alone = [tensor.shape for tensor in _in_tuples(output.value)]
            output.batched = _batched(alone, [t.shape for t in tensors_in(value)], copies)
            output.given_batched = _batched(output.given, given, copies)
        return value

    return forward


def _returning(output: _Output, copies: int) -> Callable[..., Any]:
    own, thread = output.module.forward, threading.get_ident()

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return own(*args, **kwargs)
        batched = iter(output.batched or ())

        def copied(tensor: Tensor) -> Tensor:
            if copies == 1 or not next(batched):
                return tensor.clone()
            return tensor.repeat(copies, *(1,) * (tensor.ndim - 1))

        return _mapped(copied, output.value)

    return forward


def _completed(
    output: _Output, count: int, copies: int, part: Callable[[int], AbstractContextManager[None]]
) -> Callable[..., Any]:
    """Return a forward that runs on the first copies, and returns cached outputs of the rest."""
    own, thread = output.module.forward, threading.get_ident()

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return own(*args, **kwargs)
        given = iter(output.given_batched or ())

        def first(tensor: Tensor) -> Tensor:
            return tensor[:count] if next(given) else tensor

        args, values = _mapped(first, (args, tuple(kwargs.values())))
        with part(count):
            value = own(*args, **dict(zip(kwargs, values, strict=True)))
        cached = zip(_in_tuples(output.value), output.batched or (), strict=True)

        def completed(tensor: Tensor) -> Tensor:
            kept, is_batched = next(cached)
            if not is_batched:
                return tensor
            if tensor.shape != (count, *kept.shape[1:]):
                raise NotCopiesError
            return torch.cat([tensor, kept.expand(copies - count, *kept.shape[1:])])

        return _mapped(completed, value)

    return forward


def _ending(output: _Output, same: list[bool]) -> Callable[..., Any]:
    """Return a forward that compares its result with the cached one, and ends the run."""
    own, thread = output.module.forward, threading.get_ident()

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        value = own(*args, **kwargs)
        if threading.get_ident() != thread:
            return value
        one, other = [*_in_tuples(value)], [*_in_tuples(output.value)]
        same.append(len(one) == len(other) and all(map(equal, one, other)))
        raise _EndedError

    return forward


# Held while a forward is replaced: of two threads at the same module, the one that ends last would
# put back what the other one had put there.
_replacing = threading.RLock()


@contextmanager
def _with_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    with _replacing:
        before = vars(module).get("forward")
        module.forward = forward
        try:
            yield
        finally:
            if before is None:
                del module.forward
            else:
                module.forward = before


def _is_of_one_sequence(value: Any) -> bool:
    """True if every output tensor has batch size 1."""
    if type(value) is tuple:
        return all(part is None or _is_of_one_sequence(part) for part in value)
    return isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] == 1 < value.shape[1]


def _batched(
    alone: Sequence[torch.Size], together: Sequence[torch.Size], copies: int
) -> list[bool] | None:
    """For each tensor, True if it has an entry per copy; None if shapes disagree."""
    batch = [(copies, *shape[1:]) if shape[:1] == (1,) else shape for shape in alone]
    if len(alone) != len(together) or any(
        now not in (own, copied) for own, copied, now in zip(alone, batch, together, strict=True)
    ):
        return None
    return [now != own for now, own in zip(together, alone, strict=True)]


def _in_tuples(value: Any) -> Iterator[Tensor]:
    """Yield a tensor, or those in nested tuples."""
    if type(value) is tuple:
        for part in value:
            yield from _in_tuples(part)
    elif isinstance(value, Tensor):
        yield value


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a value with each tensor that `_in_tuples` yields changed."""
    if type(value) is tuple:
        return tuple(_mapped(change, part) for part in value)
    return change(value) if isinstance(value, Tensor) else value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)


def equal(one: Tensor, other: Tensor) -> bool:
    """Return True for the same numbers, of which NaN is one."""
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
