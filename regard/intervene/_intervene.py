"""`intervene`: change what a model attends to while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from torch import nn

from regard._decorators import block
from regard._modules import unwrapped
from regard.intercept import change_calls, replace_attention
from regard.intervene._intervention import Intervention
from regard.intervene.changer import ModelChanger


@block("intervene(...)")
def intervene(model: nn.Module) -> Iterator[Intervention]:
    """Change the attention of a model for the time of the ``with`` block, on this thread.

    What `record` sees can be changed: calls of SDPA, torch's own layers, `regard.attention`,
    flex_attention, flash_attn and xformers, models of `transformers` whatever their attention. A
    compiled model runs eagerly inside the block. Calls of other tasks of an event loop are left as
    they are, unless the tasks are started inside; those of plain generators, stepped in turn, are
    not, which have no context of their own. Calls that no change concerns are computed by the
    model's own kernel; a model of `transformers` whose attention never calls SDPA computes all its
    calls with `regard.attention`, as under `record`. A recording made inside or around the block
    holds the changed attention. Gradients flow through; a backward pass that computes changed calls
    again (`torch.utils.checkpoint`) belongs inside the block. Of blocks in each other, the outer
    one's changes come first.

    Args:
        model: whose attention is changed; other models keep theirs.

    Yields:
        The `Intervention`, whose methods state the changes; each holds for the calls after it.

    Raises:
        Error: for changes that contradict each other, that name a head which a call
            does not have, or that no call met.
        RecordError: for a model that can't be recorded either, and in a backward pass after the
            block, where it computes changed calls again, or inside it, where these may be another
            thread's.
        TypeError: for a model of another kind.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.intervene(layer) as change, regard.record(layer) as recording:
        ...     change.knock_out(queries=-1, keys=slice(1, 3), heads=0)
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> recording[0][0, 0, -1, 1:3]
        tensor([0., 0.])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, but is {type(model).__name__}; of a pipeline, give "
            "the module inside, such as pipeline.model"
        )
    model = unwrapped(model)
    changer = ModelChanger(model)
    with ExitStack() as stack:
        stack.enter_context(replace_attention(model))
        stack.enter_context(change_calls(changer))
        stack.callback(changer.end)
        yield Intervention(changer)
    changer.require_all_met()
