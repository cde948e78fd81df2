"""Which attention the configurations of a model name, for the time of a block.

Models of `transformers` call what is registered under the name in their configuration. A name
that a block wrote there would be in every copy made meanwhile, and on every thread. So nothing is
written: the property that models ask for the name is replaced, on the class, and answers for the
configurations of this thread's blocks. These need not end in the order of their beginning; the last
to end on any thread gives the class its property back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from regard.intercept._blocks import Block, open_block
from regard.intercept._recomputation import depends_on

NAME = "regard"
_KEPT = (None, "sdpa", NAME)
"""Implementations whose calls are seen as they are, or of a module that attends to nothing."""

_lock = threading.RLock()  # the collector may close an abandoned block while this thread has it
_replaced: dict[int, _Replaced] = {}
"""By the id of the configuration."""
_properties: dict[type, property] = {}
"""Their own, of the classes whose property is replaced."""


class _Replaced:
    """A configuration that names `regard` to some blocks."""

    def __init__(self, config: Any) -> None:
        self.config = config  # held, so that its id is given to no other
        self.own = own_name(config)
        self.blocks: list[Block] = []

    def is_seen(self) -> bool:
        """Whether the call that is being made belongs to one of the blocks."""
        return any(block.holds() for block in self.blocks)


def own_name(config: Any) -> str | None:
    """The implementation that a configuration names outside of all blocks, if it names any."""
    return getattr(config, "_attn_implementation_internal", None)  # the property is replaced


def calls_unseen(name: str | None) -> bool:
    """Whether it is known what an implementation computes, and that it never calls SDPA.

    Those of `transformers` and its kernels, which have the name of a repository; not what a user
    registered.
    """
    if name in _KEPT:
        return False
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    registered = ALL_ATTENTION_FUNCTIONS.get(name)  # "eager" is not
    return (
        registered is None
        or "/" in name
        or str(getattr(registered, "__module__", "")).startswith("transformers.")
    )


@contextmanager
def naming_regard(configs: Sequence[Any]) -> Iterator[None]:
    """Let configurations name `regard` to models that run in this block, on this thread.

    What a user sets inside the block stays; if it is seen as it is, it holds at once.
    """
    with open_block() as block:
        with _lock:
            for config in configs:
                _begin(config, block)
        try:
            yield
        finally:
            with _lock:
                for config in configs:
                    _end(config, block)


def _begin(config: Any, block: Block) -> None:
    kind = next(base for base in type(config).__mro__ if "_attn_implementation" in vars(base))
    replaced = _replaced.setdefault(id(config), _Replaced(config))
    replaced.blocks.append(block)  # first, so that no block that ends meanwhile is the last
    if kind not in _properties:
        own = _properties[kind] = vars(kind)["_attn_implementation"]
        kind._attn_implementation = property(_name, own.fset)  # type: ignore[attr-defined]  # noqa: SLF001 - its only name


def _name(config: Any) -> str | None:
    """Stand in for the property ``_attn_implementation`` of a configuration."""
    if not _names_regard(config):
        return own_name(config)
    depends_on(config, partial(_names_regard, config))
    return NAME


def _names_regard(config: Any) -> bool:
    replaced = _replaced.get(id(config))
    return replaced is not None and calls_unseen(own_name(config)) and replaced.is_seen()


def _end(config: Any, block: Block) -> None:
    replaced = _replaced[id(config)]
    replaced.blocks.remove(block)
    if not replaced.blocks:
        del _replaced[id(config)]
        if own_name(config) == NAME:  # a model made from it copied the name
            config._attn_implementation_internal = replaced.own  # noqa: SLF001 - likewise
    if not _replaced:
        for kind, own in _properties.items():
            kind._attn_implementation = own  # type: ignore[attr-defined]  # noqa: SLF001 - its only name
        _properties.clear()
