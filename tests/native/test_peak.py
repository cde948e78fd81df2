"""The measured peak rates are positive numbers."""

import pytest
import torch

from regard.backends.native.library import why_missing
from regard.backends.native.peak import peak_bandwidth, peak_flops

pytestmark = pytest.mark.skipif(why_missing() is not None, reason="measured by the library")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_dtype_has_a_peak(dtype):
    assert 1e6 < peak_flops(dtype) < 1e15


def test_memory_has_a_bandwidth():
    assert 1e6 < peak_bandwidth() < 1e14
