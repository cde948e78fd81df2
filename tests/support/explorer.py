"""Addresses of the explorer's interface, comparing what it answers, and its event loop."""

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import torch

TRAINED = "the cat sat on the mat. the dog sat on the log. " * 30


def address(name, what="", **fields):
    return f"/api/runs/{name}{what and '/' + what}?{urlencode(fields)}".removesuffix("?")


def near(result, expected):
    torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=2e-6)


def in_loop(test):
    """Run it on a thread of its own: on this one a browser's loop may be running."""

    @functools.wraps(test)
    def run(**fixtures):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, test(**fixtures)).result()

    return run


class Once:
    """An event that is set after it was looked at so often."""

    def __init__(self, looks):
        self.looks = looks

    def is_set(self):
        self.looks -= 1
        return self.looks < 0
