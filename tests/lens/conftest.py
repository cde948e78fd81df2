"""Every test starts from the same random numbers, and leaves no hook and no mode behind."""

import pytest
import torch
from support.interception import check_nothing_left_behind


@pytest.fixture(autouse=True)
def nothing_left_behind():
    torch.manual_seed(0)
    yield
    check_nothing_left_behind()
