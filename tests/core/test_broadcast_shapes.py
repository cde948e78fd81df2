"""Shapes broadcast as torch's own function says, which imports sympy and is not called."""

from itertools import product

import pytest
import torch
from support.processes import run_script

from regard._tensors import broadcast_shapes, broadcasts_to

SHAPES = [(), (1,), (3,), (5, 1), (5, 3), (1, 1, 3), (7, 1, 1), (0,), (0, 1), (7, 5, 2)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shapes_broadcast_as_torchs_do(count):
    for shapes in product(SHAPES, repeat=count):
        try:
            expected = tuple(torch.broadcast_shapes(*shapes))
        except RuntimeError:
            with pytest.raises(ValueError, match="do not broadcast"):
                broadcast_shapes(*shapes)
        else:
            assert broadcast_shapes(*shapes) == expected
            assert broadcasts_to(shapes[0], expected)


def test_a_shape_that_would_shrink_does_not_broadcast():
    assert not broadcasts_to((7, 3), (1, 3))
    assert not broadcasts_to((2, 3), (5, 3))


SCRIPT = """
import sys, torch, regard
query, key = torch.randn(2, 1, 3, 5, 7).unbind()
_, pattern = regard.attention_with_pattern(query, key, key, mask=regard.causal())
pattern.without(0).topk(2)
print("sympy" in sys.modules)
"""


def test_a_call_does_not_import_sympy():
    assert run_script(SCRIPT).split() == ["False"]
