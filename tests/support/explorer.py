"""Addresses of the explorer's interface, comparing what it answers, and its event loop."""

import functools
from urllib.parse import urlencode

import torch

from support.loop import run_in_loop

TRAINED = "the cat sat on the mat. the dog sat on the log. " * 30


def address(name, what="", **fields):
    return f"/api/runs/{name}{what and '/' + what}?{urlencode(fields)}".removesuffix("?")


def near(result, expected):
    torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=2e-6)


def in_loop(test):
    """Run it in an event loop."""

    @functools.wraps(test)
    def run(**fixtures):
        run_in_loop(test(**fixtures))

    return run


class Once:
    """An event that is set after it was looked at so often."""

    def __init__(self, looks):
        self.looks = looks

    def is_set(self):
        self.looks -= 1
        return self.looks < 0
