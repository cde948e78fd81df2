"""What a run computes before the first call that is changed, kept for runs that differ after it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor, nn

from regard.record.intercept import Call, observe_calls


@dataclass(frozen=True, eq=False)
class _Output:
    """What a module's forward returned, and how many attention calls were over then."""

    module: nn.Module
    calls: int
    value: Any


class Prefix:
    """The outputs of an unchanged run on one sequence, for changed runs on copies of it.

    Args:
        model: whose modules are skipped.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._outputs: list[_Output] = []
        self._times: Counter[int] = Counter()
        self._callers: list[int] = []
        self._repeated = False

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Keep the outputs of the run that is made inside, on this thread."""
        self.forget()
        with ExitStack() as stack:
            stack.enter_context(observe_calls(self._count))
            for module in self._model.modules():
                if module is not self._model:
                    stack.enter_context(_with_forward(module, self._kept(module)))
            yield

    @contextmanager
    def skip(self, calls: int, copies: int) -> Iterator[None]:
        """Let modules that ended before an attention call return what they did, for each copy.

        Args:
            calls: how many attention calls come before that one.
            copies: the size of the batch.
        """
        # A module that attends several times would be mistaken for its first time.
        once = not self._repeated and len(set(self._callers)) == len(self._callers)
        with ExitStack() as stack:
            for output in self._outputs if once else []:
                if output.calls <= calls and self._times[id(output.module)] == 1:
                    stack.enter_context(_with_forward(output.module, _returning(output, copies)))
            yield

    def forget(self) -> None:
        """Keep nothing any longer."""
        self._outputs.clear()
        self._times.clear()
        self._callers.clear()
        self._repeated = False

    def _count(self, call: Call) -> None:
        self._callers.append(id(call.modules[-1]) if call.modules else 0)
        self._repeated |= call.repeated

    def _kept(self, module: nn.Module) -> Callable[..., Any]:
        own, thread = module.forward, threading.get_ident()

        @wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return own(*args, **kwargs)
            inside = len(self._outputs)
            value = own(*args, **kwargs)
            self._times[id(module)] += 1
            if _is_of_one_sequence(value):
                # Whatever ended as late as this module is skipped together with it.
                calls = len(self._callers)
                earlier = [each for each in self._outputs[inside:] if each.calls < calls]
                self._outputs[inside:] = [*earlier, _Output(module, calls, _detached(value))]
            return value

        return forward


def _returning(output: _Output, copies: int) -> Callable[..., Any]:
    own, thread = output.module.forward, threading.get_ident()

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return own(*args, **kwargs)
        return _copied(output.value, copies)

    return forward


@contextmanager
def _with_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
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
    """Whether a module's result has a batch of one first, and nothing else.

    A first size of 1 is the batch's where the second one, of tokens or channels, is larger.
    """
    if type(value) is tuple:
        return all(part is None or _is_of_one_sequence(part) for part in value)
    return isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] == 1 < value.shape[1]


def _detached(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(part if part is None else _detached(part) for part in value)
    return value.detach()


def _copied(value: Any, copies: int) -> Any:
    if isinstance(value, tuple):
        return tuple(part if part is None else _copied(part, copies) for part in value)
    return value.repeat(copies, *(1,) * (value.ndim - 1))
