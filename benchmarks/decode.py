"""One token against a long cache, beside torch's SDPA and beside the memory's bandwidth.

Keys and values lie as `regard.nn.KVCache` holds them.
"""

from __future__ import annotations

import torch

from benchmarks.cases import name_of
from benchmarks.report import Report, milliseconds
from regard.backends.native.peak import peak_bandwidth
from regard.cli.measure import one_query
from regard.cli.timing import interleaved
from regard.nn import KVCache

KEYS = 32_768
# Heads, key/value heads, head dimension, dtype.
ROWS = (
    (12, 12, 64, torch.float32),
    (12, 12, 64, torch.bfloat16),
    (32, 8, 128, torch.float32),
    (32, 8, 128, torch.bfloat16),
)
SHARE = 0.75  # of the bandwidth; some 5 % below the least that was seen


def decode(report: Report, keys: int = KEYS) -> None:
    """Print the table."""
    report.table(
        f"decode: one query against {keys} keys; GB/s of keys and values",
        *(("(B,H,L,D)", 28), ("ms", 9), ("GB/s", 8), ("of bandwidth", 15)),
        *(("torch ms", 9), ("× torch", 15)),
    )
    for heads, groups, dim, dtype in ROWS:
        query = torch.randn(1, heads, 1, dim, dtype=dtype)
        key, value = KVCache(keys).append(
            *torch.randn(2, 1, groups, keys, dim, dtype=dtype).unbind()
        )
        measured = interleaved(one_query(query, key, value), peak_bandwidth)
        ours, theirs = measured.seconds["ours"], measured.seconds["torch"]
        rate = (key.nbytes + value.nbytes) / ours
        shape = f"(1,{heads}{'' if heads == groups else f'/{groups}'},1,{dim}) {name_of(dtype)}"
        report.row(
            shape,
            *(milliseconds(ours), f"{rate / 1e9:.1f}"),
            report.at_least(shape, rate / measured.limit, SHARE, ".0%"),
            milliseconds(theirs),
            report.at_least(shape, theirs / ours, 1.0),
        )
