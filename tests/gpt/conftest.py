"""Runs that several files of tests look at."""

import shutil

import pytest
from support.small_runs import go, interrupt, losses


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "m"
    go(folder)
    assert [line["step"] for line in losses(folder)] == list(range(1, 10))
    return folder


@pytest.fixture(scope="session")
def half(tmp_path_factory):
    """A run that Ctrl-C ended after five updates."""
    folder = tmp_path_factory.mktemp("half") / "m"
    interrupt(folder, 5)
    return folder


@pytest.fixture(scope="session")
def late(tmp_path_factory):
    """A run that Ctrl-C ended after seven updates."""
    folder = tmp_path_factory.mktemp("late") / "m"
    interrupt(folder, 7)
    return folder


@pytest.fixture
def cut(half, tmp_path):
    """A copy of `half`."""
    shutil.copytree(half, tmp_path / "m")
    return tmp_path / "m"
