"""Callbacks in whose context each update is made."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class UpdateObserver(Protocol):
    """A callback in whose context `train` makes each update, such as a `regard.Monitor`."""

    def update(self, number: int, /) -> AbstractContextManager[object]:
        """Give the context of an update; `number` updates came before."""


class Observers:
    """The observers among some callbacks."""

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._observers = [one for one in callbacks if isinstance(one, UpdateObserver)]
        self._error: BaseException | None = None

    @contextmanager
    def update(self, number: int) -> Iterator[None]:
        """Enter the context of each; what leaving one raises after a whole update is kept.

        An error then would leave an update without its metrics and its checkpoint.
        """
        contexts = ExitStack()
        try:
            for observer in self._observers:
                contexts.enter_context(observer.update(number))
            yield
        except BaseException:
            contexts.__exit__(*sys.exc_info())
            raise
        try:
            contexts.close()
        except BaseException as error:  # noqa: BLE001 - also an interrupt
            self._error = error

    def raise_error(self) -> None:
        """Raise what was kept."""
        if self._error is not None:
            raise self._error
