"""Where the kernels of a GPU run: on one, or on the CPU under Triton's interpreter."""

import contextlib
import sys
import warnings
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from regard.pattern import divergence, reading
from regard_experiments.gpu import triton
from support import fake_gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def kernels():
    """Have readouts computed by the kernels, on a CPU too."""
    if DEVICE == "cuda":
        yield
        return
    from regard_experiments.gpu.triton import _compare, _read

    interpreted = ModuleType("interpreted")
    interpreted.objection_to_reading = lambda p: "float64" * (p.query.dtype == torch.float64)
    interpreted.objection_to = triton.objection_to
    interpreted.objection_to_comparing = lambda *pair: next(
        filter(None, map(interpreted.objection_to_reading, pair)), None
    )
    # Without the self-check, which takes the interpreter seconds.
    interpreted.read, interpreted.compare = _read.read_all, _compare.compare_all
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # The interpreter computes with numpy, which warns where a GPU makes ∞ and NaN in silence.
        warnings.simplefilter("ignore", RuntimeWarning)
        for module in (reading, divergence):
            patch.setattr(module, "reader_of", lambda device: interpreted)
        _mend_interpreter(patch)
        yield


@contextlib.contextmanager
def kernels_on_fake_gpu():
    """Have a mimicked GPU whose readouts the kernels compute, under Triton's interpreter.

    Yields:
        The names of the kernels that were launched, one after the other.
    """
    from triton.runtime.interpreter import InterpretedFunction

    from regard_experiments.gpu.triton import _read

    launched = []

    class Unwrapped:
        """A kernel that is given what the tensors of the mimicked GPU hold."""

        def __init__(self, kernel):
            self._kernel = kernel

        def __getitem__(self, grid):
            def launch(**arguments):
                launched.append(self._kernel.fn.__name__)
                self._kernel[grid](**tree_map(_held, arguments))

            return launch

    package = _read.__name__.rpartition(".")[0]
    objection = triton.objection_to_reading
    with (
        fake_gpu.gpu(),
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # as above
        patch.setattr(triton, "objection_to_reading", objection)
        patch.setattr(triton, "why_no_triton", lambda: None)
        patch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        _mend_interpreter(patch)
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{package}._"):
                for attribute, kernel in list(vars(module).items()):
                    if isinstance(kernel, InterpretedFunction):
                        patch.setattr(module, attribute, Unwrapped(kernel))
        yield launched


def _held(argument):
    return argument.held if isinstance(argument, fake_gpu.FakeGPUTensor) else argument


def _mend_interpreter(patch):
    _mend_dot(patch)
    _prepare_language_once(patch)


def _prepare_language_once(patch):
    """Have the interpreter replace what Triton's language computes once a launch and module.

    It does so at each call of a function of the language or of ours, for a third of its time.
    """
    from triton.runtime.interpreter import GridExecutor, InterpretedFunction

    launch, call = GridExecutor.__call__, InterpretedFunction.__call__
    prepared = set()

    def launched(self, *arguments, **keywords):
        prepared.clear()
        return launch(self, *arguments, **keywords)

    def called(self, *arguments, **keywords):
        module = self.fn.__globals__["__name__"]
        if module in prepared:
            return self.rewrite()(*arguments, **keywords)
        prepared.add(module)
        return call(self, *arguments, **keywords)

    patch.setattr(GridExecutor, "__call__", launched)
    patch.setattr(InterpretedFunction, "__call__", called)


def _mend_dot(patch):
    """Have the interpreter multiply bfloat16, of which it takes the bits for whole numbers."""
    from triton.language import bfloat16
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

    def widened(handle):
        if handle.dtype.scalar != bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return TensorHandle(bits.view(np.float32), tl.float32)

    dot = InterpreterBuilder.create_dot
    patch.setattr(
        InterpreterBuilder,
        "create_dot",
        lambda self, a, b, *others: dot(self, widened(a), widened(b), *others),
    )


def moved(value):
    """The same tensors, alone or in a dict, where the kernels run."""
    if isinstance(value, dict):
        return {name: moved(each) for name, each in value.items()}
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value
