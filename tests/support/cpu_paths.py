"""The ways to compute on a CPU: each backend; readouts by each instruction set, or streamed."""

import contextlib

import pytest

from regard.backends.native import library
from regard.pattern import stream as _stream

ON_CPU = ("native", "torch_sdpa", "eager")
SETS = [] if library.load() is None else library.load().regard_supported().decode().split(",")
# As parameters: those between the plainest and the processor's best take part in `make thorough`.
EACH_SET = [
    pytest.param(name, marks=[pytest.mark.thorough] if name in SETS[1:-1] else []) for name in SETS
]


@contextlib.contextmanager
def streamed(block=2**20):
    """Leave the kernels out; a block holds so many scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "why_missing", lambda: "switched off")
        patch.setattr(_stream, "_BLOCK_SCORES", block)
        yield


def way(block):
    """By the kernels where block is None, else streamed."""
    return contextlib.nullcontext() if block is None else streamed(block)


@contextlib.contextmanager
def forced(name):
    """Have the kernels of one instruction set."""
    loaded = library.load()
    before = loaded.regard_instructions()
    assert loaded.regard_choose(name.encode()) == 0
    try:
        yield
    finally:
        loaded.regard_choose(before)
