"""No recording leaves a hook or a mode behind."""

import pytest
from support.interception import check_nothing_left_behind


@pytest.fixture(autouse=True)
def nothing_left_behind(seed):
    yield
    check_nothing_left_behind()
