"""Running a model's attention over several ranks, while the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Unpack

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard._decorators import block
from regard.attention import attention, attention_with_pattern
from regard.inputs import ScoringOptions
from regard.intercept import is_observed
from regard_experiments.distributed._attention import attend
from regard_experiments.distributed._pattern import ShardedPattern


@block("context_parallel(...)")
def context_parallel(*, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Have every `regard.attention` of this thread computed over the ranks of a group.

    Layers such as `regard.nn.MultiHeadAttention` are then called with this rank's shard of the
    sequence, and return this rank's shard. Their masks are those of the whole sequence. A pattern
    that is returned is a `ShardedPattern`. The gradients of a layer's weights are this rank's part:
    sum them over the ranks.

    The backward pass may run outside.

    Args:
        group: the ranks; None is the default group.

    Raises:
        ValueError: from an attention with an argument that a ring can't honour: a dense mask or
            bias, dropout, a backend; from one that `regard.record` is to see; and from torch's own
            attention, which would see one shard.
        Error: from an attention, if there is no group or another rank has failed.

    Example:
        A group of one rank; `torchrun` starts more.

        >>> import torch, torch.distributed as dist, regard
        >>> from regard_experiments.distributed import context_parallel, shard
        >>> from regard.nn import MultiHeadAttention
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> layer = MultiHeadAttention(12, 3, mask=regard.causal())
        >>> with context_parallel():
        ...     layer(shard(torch.randn(2, 5, 12), 1)).shape
        torch.Size([2, 5, 12])
        >>> dist.destroy_process_group()
    """
    with _ThroughRing(group):
        yield


class _ThroughRing(TorchFunctionMode):
    """Sends attention calls round the ring, and lets everything else pass."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self._group = group

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is attention:
            return self._attend(*args, **(kwargs or {}))[0]
        if function is attention_with_pattern:
            return self._attend(*args, **(kwargs or {}))
        if function in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            raise ValueError(
                f"torch's {function.__name__} would see this rank's shard alone; within "
                "context_parallel call regard.attention or regard.scaled_dot_product_attention"
            )
        return function(*args, **(kwargs or {}))

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        dropout: float,
        generator: torch.Generator | None,
        backend: str | None,
        check_finite: bool,
        **options: Unpack[ScoringOptions],
    ) -> tuple[Tensor, ShardedPattern]:
        refused = {}
        if is_observed():
            refused["a recording"] = (
                "it sees one process; take the layer's pattern by its method with_pattern"
            )
        if dropout:
            refused[f"dropout={dropout!r}"] = (
                "set it to 0; the weights to drop depend on their place in the whole pattern"
            )
        if generator is not None:
            refused["generator"] = "leave it out; without dropout it draws nothing"
        if backend is not None:
            refused[f"backend={backend!r}"] = (
                "leave it out; each block is computed by the fastest that can"
            )
        return attend(
            query,
            key,
            value,
            options,
            check_finite=check_finite,
            refused=refused,
            group=self._group,
        )
