"""Which attention the configurations of a model name, for the time of a block.

Models of `transformers` call what is registered under the name in their configuration. A name
that a block wrote there would be in every copy made meanwhile, and on every thread. So nothing is
written: the property that models ask for the name is replaced, on the class, and answers for the
configurations of this thread's blocks. They are counted, since blocks need not end in the order of
their beginning, and the last to end on any thread gives the class its property back.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

NAME = "regard"
_KEPT = (None, "sdpa", NAME)
"""Implementations whose calls are seen as they are, or of a module that attends to nothing."""

_lock = threading.RLock()  # the collector may close an abandoned block while this thread has it
_replaced: dict[int, _Replaced] = {}
"""By the id of the configuration."""
_properties: dict[type, property] = {}
"""Their own, of the classes whose property is replaced."""


class _Replaced:
    """A configuration that names `regard` to some threads."""

    def __init__(self, config: Any) -> None:
        self.config = config  # held, so that its id is given to no other
        self.own = own_name(config)
        self.blocks: Counter[int] = Counter()
        """How many blocks each thread has."""

    def is_seen(self) -> bool:
        """Whether this thread has a block, or computes calls of one that has again.

        Autograd has a thread for each device, on which checkpoints are computed again.
        """
        if threading.get_ident() in self.blocks:
            return True
        is_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - torch has no public way
        return is_backward and isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001 - what Python did not start


def own_name(config: Any) -> str | None:
    """The implementation that a configuration names outside of all blocks."""
    name: str | None = config._attn_implementation_internal  # noqa: SLF001 - the property is replaced
    return name


def calls_unseen(name: str | None) -> bool:
    """Whether a model whose configuration names this implementation never calls SDPA."""
    return name not in _KEPT


@contextmanager
def naming_regard(configs: Sequence[Any]) -> Iterator[None]:
    """Let configurations name `regard` to models that run on this thread.

    What a user sets inside the block stays; if it is seen as it is, it holds at once.
    """
    thread = threading.get_ident()
    with _lock:
        for config in configs:
            _begin(config, thread)
    try:
        yield
    finally:
        with _lock:
            for config in configs:
                _end(config, thread)


def _begin(config: Any, thread: int) -> None:
    kind = next(base for base in type(config).__mro__ if "_attn_implementation" in vars(base))
    replaced = _replaced.setdefault(id(config), _Replaced(config))
    replaced.blocks[thread] += 1  # first, so that no block that ends meanwhile is the last
    if kind not in _properties:
        own = _properties[kind] = vars(kind)["_attn_implementation"]
        kind._attn_implementation = property(_name, own.fset)  # type: ignore[attr-defined]  # noqa: SLF001 - its only name


def _name(config: Any) -> str | None:
    """Stand in for the property ``_attn_implementation`` of a configuration."""
    name, replaced = own_name(config), _replaced.get(id(config))
    return NAME if replaced is not None and calls_unseen(name) and replaced.is_seen() else name


def _end(config: Any, thread: int) -> None:
    replaced = _replaced[id(config)]
    replaced.blocks[thread] -= 1
    replaced.blocks = +replaced.blocks
    if not replaced.blocks:
        del _replaced[id(config)]
        if own_name(config) == NAME:  # a model made from it copied the name
            config._attn_implementation_internal = replaced.own  # noqa: SLF001 - likewise
    if not _replaced:
        for kind, own in _properties.items():
            kind._attn_implementation = own  # type: ignore[attr-defined]  # noqa: SLF001 - its only name
        _properties.clear()
