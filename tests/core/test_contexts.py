"""What the context of a call makes of tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regard import _contexts
from regard._contexts import are_plain


@pytest.mark.parametrize("context", ["a transform", "fake tensors"])
def test_who_asks_first_whether_a_tensor_is_plain_changes_nothing(context):
    _contexts._plain_keys.cache_clear()

    def asked(x):
        assert not are_plain(x)
        return x.sum()

    if context == "a transform":
        torch.func.grad(asked)(torch.randn(3))
    else:
        with FakeTensorMode():
            asked(torch.randn(3))
    assert are_plain(torch.randn(3), torch.nn.Parameter(torch.randn(3)))
    with torch.inference_mode():
        assert are_plain(torch.randn(3))
