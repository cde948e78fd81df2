"""Addresses of the explorer's interface, and comparing what it answers."""

from urllib.parse import urlencode

import torch


def address(name, what="", **fields):
    return f"/api/runs/{name}{what and '/' + what}?{urlencode(fields)}".removesuffix("?")


def near(result, expected):
    torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=2e-6)
