"""Runs compiled code eagerly inside a block, since compiled graphs hide attention calls.

The compiler's stance is global to the process, so blocks on several threads share one change: the
first block sets it, the last one restores it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from regard._modules import unwrapped
from regard.errors import RecordError
from regard.intercept._imports import forget, when_loaded

_lock = threading.RLock()
_blocks: list[EagerCode] = []
_stance = ExitStack()


def require_no_graph() -> None:
    """Refuse to run inside code that is being compiled.

    Raises:
        RecordError: if the code is being compiled.
    """
    compiles = torch._C._dynamo.eval_frame.get_eval_frame_callback() not in {None, False}  # noqa: SLF001 - nothing public says it
    if compiles or torch.compiler.is_compiling():
        raise RecordError(
            "attention calls can't be seen inside a function under torch.compile or torch.export; "
            "put the with block around the call of the compiled function, and leave the "
            "compiler's stance as it is"
        )


class EagerCode:
    """One block's request to run compiled code eagerly."""

    def __init__(self) -> None:
        self._forced = False
        self._announced = False

    def start(self) -> None:
        """Run compiled code eagerly from now on; without a compiler nothing is compiled.

        Raises:
            RecordError: inside compiled code.
        """
        when_loaded("torch._dynamo", self._force)

    def _force(self) -> None:
        require_no_graph()
        with _lock:
            if not _blocks:
                _force_eager()
            _blocks.append(self)
        self._forced = True

    def stop(self) -> None:
        """Withdraw this block's request."""
        forget(self._force)
        if not self._forced:
            return
        with _lock:
            _blocks.remove(self)
            if not _blocks:
                _stance.close()
        self._forced = False

    def announce(self, module: nn.Module) -> None:
        """Warn once that a compiled module runs eagerly.

        Warns:
            RuntimeWarning: at the first compiled module of the block.

        Raises:
            RecordError: if it does not run eagerly, since the stance was changed in the block.
        """
        if not self._forced or not _is_compiled(module):  # without a compiler nothing is compiled
            return
        if torch._dynamo.eval_frame._stance.stance != "force_eager":  # noqa: SLF001 - nothing public says it
            raise RecordError(
                f"{type(unwrapped(module)).__name__} runs under torch.compile, whose graph hides "
                "its calls, since torch.compiler.set_stance was called inside the block; call it "
                "outside"
            )
        if not self._announced:
            self._announced = True
            warnings.warn(
                f"{type(unwrapped(module)).__name__} is compiled; inside the block it runs "
                "eagerly, so that its attention calls are seen",
                RuntimeWarning,
                stacklevel=2,
            )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Context manager in which this thread compiles as before the block.

        Raises:
            RecordError: if a block on another thread needs eager code at the same time.
        """
        if not self._forced:
            yield
            return
        with _lock:
            if len(_blocks) > 1:
                raise RecordError(
                    "flex_attention with gradients compiles its score_mod, which a block on "
                    "another thread does not allow meanwhile; let one thread at a time record or "
                    "intervene, or call the model under torch.no_grad()"
                )
            _stance.close()
            try:
                yield
            finally:
                _force_eager()


def _is_compiled(module: nn.Module) -> bool:
    """Return whether a module, its call or its ``forward`` was compiled."""
    own = vars(module)  # faster than hasattr for missing attributes
    return (
        "_orig_mod" in own.get("_modules", ())
        or own.get("_compiled_call_impl") is not None
        or ("forward" in own and hasattr(own["forward"], "_torchdynamo_orig_callable"))
    )


def _force_eager() -> None:
    _stance.enter_context(torch.compiler.set_stance("force_eager"))
