"""Whether the batch of a model's calls is the copies of a text that it was given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from regard.intercept import Call
from regard.intervene.changer import ModelChanger


class NotCopiesError(Exception):
    """A call that is to be changed, whose batch is not the copies of the text."""


class BatchCheck:
    """Refuses to change an entry of a batch that may not be a copy of the text.

    A model may fold windows or channels into the batch, in any order. Entry i is copy i where the
    batch has one entry for one text, and as many as copies for several.

    Args:
        changer: what changes the calls.
    """

    def __init__(self, changer: ModelChanger) -> None:
        self._changer = changer
        self._alone: dict[int, set[int | None]] = defaultdict(set)  # sizes, by module
        self._copies: int | None = None

    def begin(self) -> None:
        """Take note of the batches of a run on one text, which comes next."""
        self._alone.clear()

    @contextmanager
    def of(self, copies: int) -> Iterator[None]:
        """Check the changed calls of a run on several copies."""
        self._copies = copies
        try:
            yield
        finally:
            self._copies = None

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:  # noqa: ARG002 - of a CallChanger
        """Leave torch's fused operators as they are."""
        return False

    def change(self, call: Call) -> None:
        """See a call before it is changed.

        Raises:
            NotCopiesError: if it is to be changed, and its batch may be something else.
        """
        size = call.query.shape[0] if call.query.ndim == 4 else None
        caller = id(call.modules[-1]) if call.modules else 0
        if self._copies is None:
            self._alone[caller].add(size)
            return
        if call.repeated or not self._changer.may_change(call.modules, call.run):
            return
        if size != self._copies or self._alone[caller] != {1}:
            raise NotCopiesError


def mixes_batch(model: nn.Module) -> bool:
    """Whether a model normalises or quantizes over its batch: each entry depends on the others."""
    return any(
        (isinstance(module, _BatchNorm) and (module.training or module.running_mean is None))
        or ".quantized.dynamic." in type(module).__module__
        for module in model.modules()
    )
