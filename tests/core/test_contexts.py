"""Whether tensors are plain in the context of a call."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regard import _contexts
from regard._contexts import are_plain


@pytest.mark.parametrize("context", ["a transform", "fake tensors"])
def test_what_is_plain_does_not_depend_on_the_context_of_the_first_call(context):
    _contexts._plain_keys.cache_clear()

    def first_call(x):
        assert not are_plain(x)
        return x.sum()

    if context == "a transform":
        torch.func.grad(first_call)(torch.randn(3))
    else:
        with FakeTensorMode():
            first_call(torch.randn(3))
    assert are_plain(torch.randn(3), torch.nn.Parameter(torch.randn(3)))
    with torch.inference_mode():
        assert are_plain(torch.randn(3))
