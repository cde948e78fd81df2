"""Where the kernels of a GPU run: on one, or on the CPU under Triton's interpreter."""

import contextlib
import warnings
from types import ModuleType

import numpy as np
import pytest
import torch

from regard.backends.gpu import triton
from regard.pattern import divergence, reading

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def kernels():
    """Have readouts computed by the kernels, on a CPU too."""
    if DEVICE == "cuda":
        yield
        return
    from regard.backends.gpu.triton import _compare, _read

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
        patch.setattr(reading, "native", interpreted)
        patch.setattr(divergence, "native", interpreted)
        _mend_dot(patch)
        yield


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
