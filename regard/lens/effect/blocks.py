"""Cached outputs of a model's ordered blocks, for runs that differ from a certain block on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from regard.intercept import Call, observe_calls


@dataclass(eq=False)
class _Output:
    """The return value of a block's forward, and the number of attention calls before its end."""

    module: nn.Module
    calls: int
    value: Any
    batched: list[bool] | None = None
    """For each tensor, True if it has an entry per copy of the text; None if unknown."""


class CachedBlocks:
    """The outputs of the blocks of an unchanged run on one sequence, for changed runs on copies.

    Blocks are the modules of a `ModuleList` or `Sequential`, outermost lists alone. A model without
    such a list runs whole. A block may have side effects, so before blocks are skipped, an
    unchanged run without them has to give the same result.

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
    def skip(self, calls: int, copies: int) -> Iterator[None]:
        """Inside the block, those that ended before an attention call return cached outputs.

        Args:
            calls: the number of attention calls before that one.
            copies: the size of the batch.
        """
        with ExitStack() as stack:
            for output in self._ended(calls, copies):
                stack.enter_context(_with_forward(output.module, _returning(output, copies)))
            yield

    def can_skip(self, calls: int, copies: int) -> bool:
        """Return True if there is a block to skip; see `skip`."""
        return bool(self._ended(calls, copies))

    def _ended(self, calls: int, copies: int) -> list[_Output]:
        """Return the outputs of blocks that ended before an attention call."""
        return [
            output
            for output in (self._outputs if self._is_once else ())
            if output.calls <= calls and self._times[id(output.module)] == 1
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
            value = own(*args, **kwargs)
            if threading.get_ident() != thread:
                return value
            self._times[id(module)] += 1
            if _is_of_one_sequence(value):
                # A later module may write to the result.
                with torch._C.DisableTorchFunction():  # noqa: SLF001 - torch has no public way
                    copied = _mapped(lambda tensor: tensor.detach().clone(), value)
                self._outputs.append(_Output(module, len(self._callers), copied))
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
        value = own(*args, **kwargs)
        if threading.get_ident() == thread:
            output.batched = _batched(output.value, value, copies)
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


def _batched(one: Any, several: Any, copies: int) -> list[bool] | None:
    """For each tensor of a result, True if it has an entry per copy; None if shapes disagree."""
    alone, together = ([tensor.shape for tensor in tensors_in(value)] for value in (one, several))
    batch = [(copies, *shape[1:]) for shape in alone]
    if len(alone) != len(together) or any(
        now not in (own, copied) for own, copied, now in zip(alone, batch, together, strict=True)
    ):
        return None
    return [now == copied for now, copied in zip(together, batch, strict=True)]


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(part if part is None else _mapped(change, part) for part in value)
    return change(value)


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
