"""The ways to compute on a CPU: each backend; readouts by each instruction set, or streamed."""

import contextlib

import pytest

from regard import _stream
from regard.backends.native import _library

ON_CPU = ("native", "torch_sdpa", "eager")
SETS = [] if _library.load() is None else _library.load().regard_supported().decode().split(",")


@contextlib.contextmanager
def streamed(block=2**20):
    """Leave the kernels out; a block holds so many scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_library, "why_missing", lambda: "switched off")
        patch.setattr(_stream, "_BLOCK_SCORES", block)
        yield


def way(block):
    """By the kernels where block is None, else streamed."""
    return contextlib.nullcontext() if block is None else streamed(block)


@contextlib.contextmanager
def forced(name):
    """Have the kernels of one instruction set."""
    library = _library.load()
    before = library.regard_instructions()
    assert library.regard_choose(name.encode()) == 0
    try:
        yield
    finally:
        library.regard_choose(before)
