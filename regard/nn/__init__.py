"""Attention layers: a tutorial head, multi-head attention, KV cache, rotary."""

from regard.nn.cache import KVCache
from regard.nn.head import Head
from regard.nn.multi_head import MultiHeadAttention, merge_heads, split_heads
from regard.nn.rotary import Rotation, rotary

__all__ = [
    "Head",
    "KVCache",
    "MultiHeadAttention",
    "Rotation",
    "merge_heads",
    "rotary",
    "split_heads",
]
