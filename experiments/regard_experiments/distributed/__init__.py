"""Attention over a sequence that no single machine holds.

Each rank of a process group holds a share of the positions. Keys and values go round the ring of
ranks, each rank computes what its queries see of them, and partial results are merged by their
log-sum-exps: the outcome is that of a single process, to rounding.
"""

from regard_experiments.distributed._attention import attention, attention_with_pattern
from regard_experiments.distributed._context import context_parallel
from regard_experiments.distributed._layout import Layout
from regard_experiments.distributed._pattern import ShardedPattern
from regard_experiments.distributed._shards import layout, positions, shard, unshard

__all__ = [
    "Layout",
    "ShardedPattern",
    "attention",
    "attention_with_pattern",
    "context_parallel",
    "layout",
    "positions",
    "shard",
    "unshard",
]
