"""Cells of a window are means of weights, whether computed or taken from the cache."""

from functools import partial
from threading import Event

import pytest
import torch
from support.explorer import Once

import regard
from regard.page import _windows
from regard.page._windows import Window, Windows, average_window
from regard.page._work import ReplacedError

L, D = 2311, 5  # above 2²² weights, so that it comes in bands; a prime, so that last cells are cut


@pytest.fixture(scope="module")
def operands():
    return torch.randn(2, L, D, generator=torch.Generator().manual_seed(6)).unbind()


@pytest.fixture(scope="module")
def pattern(operands):
    return regard.Pattern(*operands, mask=regard.causal())


@pytest.fixture(scope="module")
def weights(operands):
    query, key = (part.double() for part in operands)
    hidden = ~torch.ones(L, L, dtype=torch.bool).tril()
    return (query @ key.T / D**0.5).masked_fill(hidden, -torch.inf).softmax(-1)


def cells(weights, queries, keys, block):
    window = weights[slice(*queries), slice(*keys)]
    bands = [[part.mean() for part in band.mean(0).split(block)] for band in window.split(block)]
    return torch.tensor(bands, dtype=torch.float64)


def near(actual, expected):
    # Sums of up to 128² float32 weights, relative to the largest mean.
    most = float(expected.max())
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6 * most)


def read(windows, head, pattern, *window):
    return windows.read(
        head, pattern.shape[-1], partial(average_window, pattern), Window(*window), Event()
    )


@pytest.mark.parametrize(
    ("queries", "keys", "block"),
    [
        ((0, L), (0, L), 64),
        ((0, L), (0, L), 128),
        ((64, 2240), (0, 1024), 32),
        ((1984, L), (1536, L), 16),
        ((17, 2293), (3, 2292), 64),  # a window that begins anywhere
        ((7, 8), (0, 11), 1),
        ((2310, L), (2304, L), 8),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_a_cell_is_the_mean_of_its_weights(
    pattern, weights, monkeypatch, queries, keys, block, kept
):
    monkeypatch.setattr(_windows, "_FINEST", 128)  # so that cells of 16 tokens are kept
    windows = Windows()
    if kept:
        read(windows, "a head", pattern, (0, L), (0, L), 128)
        held = windows.hold("a head", L, Window(queries, keys, block))
        assert held == (block >= 16 and queries[0] % 16 == 0)
        if held:
            pattern = regard.Pattern(torch.full((L, D), torch.nan), torch.zeros(L, D))  # not asked
    else:
        assert not windows.hold("a head", L, Window(queries, keys, block))
    actual = read(windows, "a head", pattern, queries, keys, block)
    near(actual, cells(weights, queries, keys, block))


def test_another_head_has_another_pattern(pattern, weights):
    windows = Windows()
    read(windows, "a head", pattern, (0, L), (0, L), 128)
    other = regard.Pattern(torch.zeros(L, D), torch.zeros(L, D))
    even = read(windows, "another", other, (0, L), (0, L), 128)
    torch.testing.assert_close(even, torch.full_like(even, 1 / L))


def test_a_window_can_be_cancelled_between_bands(pattern):
    cancelled = Once(3)
    with pytest.raises(ReplacedError):
        average_window(pattern, Window((0, L), (0, L), 64), cancelled)
    assert cancelled.looks == -1


def test_the_cache_of_whole_patterns_is_bounded():
    windows = Windows()
    small = regard.Pattern(torch.zeros(3, D), torch.zeros(3, D))
    for head in range(9):
        read(windows, head, small, (0, 3), (0, 3), 1)
    assert len(windows._wholes) == _windows._KEPT
