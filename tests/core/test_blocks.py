"""Blocks are entered once; entering one again raises an error without side effects."""

import contextlib
import re

import pytest
import torch

import regard
from regard.record import read_while_running
from regard_experiments.distributed import context_parallel

LAYER = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
BLOCKS = {
    "record(...)": lambda: regard.record(LAYER),
    "read_while_running(...)": lambda: read_while_running(LAYER, regard.readouts.Entropy()),
    "intervene(...)": lambda: regard.intervene(LAYER),
    "update(...)": lambda: regard.Monitor(LAYER).update(),
    "context_parallel(...)": context_parallel,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_is_entered_again(name):
    block = BLOCKS[name]()
    error = f"a block is entered once.*call {re.escape(name.partition(' with')[0])} again"
    with contextlib.suppress(regard.Error), block:  # without a process group
        LAYER(torch.randn(1, 5, 6))
    for _ in range(2):
        with pytest.raises(regard.Error, match=error):
            block.__enter__()


def test_a_block_inside_itself():
    block = regard.record(LAYER)
    with block as recording:
        with pytest.raises(regard.Error, match="entered once"):
            block.__enter__()
        LAYER(torch.randn(1, 5, 6))
    assert recording[0].shape == (1, 2, 5, 5)


def test_a_decorated_function_can_be_called_several_times():
    @regard.intervene(LAYER)
    def run():
        return LAYER(torch.randn(1, 5, 6))

    assert run().shape == run().shape == (1, 5, 6)
