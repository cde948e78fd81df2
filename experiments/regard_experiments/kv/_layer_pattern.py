"""The pattern of a layer of `transformers`, from its input and the keys in its cache.

So no attention implementation has to hand its weights out. The layers known are those that project
their input to queries, normalise each head of them where they have a ``q_norm``, and rotate them.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension; T tokens of
the input, P of them with position embeddings, E its width, R channels that are rotated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.inputs import ScoringOptions
from regard.masks import Mask, causal, dense, intervals, padding, window
from regard.pattern import Pattern

_AT_ONCE = 2**24  # entries of a mask that are evaluated at a time


def layer_pattern(
    layer: Any,
    hidden_states: Float[Tensor, "B T E"],
    keys: Float[Tensor, "B G S D"],
    arguments: Mapping[str, Any],
    *,
    last: int | None = None,
) -> Pattern:
    """Make the pattern of the last queries of a layer: ``(B, H, L, S)``.

    Args:
        layer: of attention, such as ``LlamaAttention``.
        hidden_states: what it was called with.
        keys: in its cache after the call, rotated.
        arguments: what else it was called with, by name.
        last: how many queries; None is all of them.

    Raises:
        ValueError: if keys were evicted before, if positions are missing, and for a layer whose
            keys are computed in another way.
        TypeError: for one without the modules that project to queries.
    """
    tokens, kept = hidden_states.shape[1], keys.shape[-2]
    last = tokens if last is None else last
    given, positions = arguments.get("attention_mask"), arguments["position_embeddings"]
    if tokens == kept:
        mask = _mask(layer, given, last, kept)
    elif last == 1 and given is None and _window(layer) is None:
        mask = Mask()
    else:
        raise ValueError(
            f"{type(layer).__name__} has {kept} keys in its cache after {tokens} tokens, so that "
            "those that its queries saw are not known; score before keys are evicted or windows "
            "roll on, and not in chunks or while a text grows"
        )
    query = layer_queries(layer, hidden_states, positions, last)
    _require_known(layer, hidden_states, keys, positions)
    return Pattern(query, keys, **layer_scoring(layer, mask))


def layer_queries(
    layer: Any,
    hidden_states: Float[Tensor, "B T E"],
    positions: tuple[Float[Tensor, "b P R"], Float[Tensor, "b P R"]],
    last: int | None = None,
) -> Float[Tensor, "B H L D"]:
    """Compute the last queries of a layer as it does.

    Args:
        layer: as for `layer_pattern`.
        hidden_states: likewise.
        positions: cosine and sine of the last P tokens' angles.
        last: as for `layer_pattern`.

    Raises:
        ValueError: if they are not those of all these queries.
        TypeError: for a layer without the modules that project to queries.
    """
    tokens, angles = hidden_states.shape[1], positions[0].shape[1]
    last = tokens if last is None else last
    if not last <= angles <= tokens:
        raise ValueError(
            f"{type(layer).__name__} was called with the positions of {angles} tokens, but the "
            f"last {last} of {tokens} are to be scored by; score the whole text, not in chunks"
        )
    cosine, sine = (part[:, angles - last :] for part in positions)
    return _rotated(_projected(layer, hidden_states[:, tokens - last :], "q"), cosine, sine)


def layer_scoring(layer: Any, mask: Mask) -> ScoringOptions:
    """What a layer scores by: a mask, and its own scale, softcap and sink."""
    options: ScoringOptions = {"mask": mask, "scale": float(layer.scaling)}
    if (softcap := getattr(layer, "attn_logit_softcapping", None)) is not None:
        options["softcap"] = float(softcap)
    if (sinks := getattr(layer, "sinks", None)) is not None:
        options["sink"] = sinks
    return options


def _projected(layer: Any, hidden_states: Tensor, which: str) -> Float[Tensor, "B _ T D"]:
    """Compute queries or keys, ``"q"`` or ``"k"``, before they are rotated."""
    joint, own = (getattr(layer, name, None) for name in ("qkv_proj", f"{which}_proj"))
    size = layer.head_dim
    if joint is not None:
        queries, keys = (
            size * getattr(layer.config, name)
            for name in ("num_attention_heads", "num_key_value_heads")
        )
        start, stop = (0, queries) if which == "q" else (queries, queries + keys)
        states = joint(hidden_states)[..., start:stop]
    elif own is not None:
        states = own(hidden_states)
    else:
        raise TypeError(
            f"{type(layer).__name__} has no {which}_proj and no qkv_proj; its queries can't be "
            "computed from its input"
        )
    states = states.unflatten(-1, (-1, size)).transpose(1, 2)
    norm = getattr(layer, f"{which}_norm", None)
    return states if norm is None else norm(states)


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first R channels, each of their first half together with one of the second."""
    cosine, sine = cosine[:, None], sine[:, None]
    own, rest = states[..., : cosine.shape[-1]], states[..., cosine.shape[-1] :]
    first, second = own.chunk(2, dim=-1)
    return torch.cat((own * cosine + torch.cat((-second, first), dim=-1) * sine, rest), dim=-1)


def _require_known(layer: Any, hidden_states: Tensor, keys: Tensor, positions: Any) -> None:
    """Compute the last token's keys as well, and refuse a layer that has others in its cache.

    Layers that rotate or normalise in another way differ by as much as the keys' own size; a
    quantised cache by less.
    """
    last = keys[..., -1:, :]
    own = _rotated(
        _projected(layer, hidden_states[:, -1:], "k"), *(part[:, -1:] for part in positions)
    )
    if own.shape != last.shape or not (own - last).norm() <= last.norm() / 2:
        raise ValueError(
            f"the last keys in the cache of {type(layer).__name__} are not those of its last "
            "token, projected, normalised and rotated: either keys were evicted before, or this "
            "layer computes keys and queries in a way that is not known"
        )


def _mask(layer: Any, given: Any, last: int, keys: int) -> Mask:
    """Read the mask that a layer was called with: none, a tensor, or a ``BlockMask``."""
    if given is not None and not isinstance(given, Tensor):
        return _evaluated(given, last, keys)
    if given is not None and given.ndim > 2:
        return dense(given[..., -last:, :keys])
    size = _window(layer)
    own = causal() if size is None or size >= keys else window(size)
    return own if given is None else padding(given[:, -keys:].bool()) & own


def _window(layer: Any) -> int | None:
    """How many keys a query of a layer sees at most; None where there is no window."""
    return getattr(layer, "sliding_window", getattr(layer.config, "sliding_window", None))


def _evaluated(block_mask: Any, last: int, keys: int) -> Mask:
    """Evaluate a ``BlockMask``: two integers a row where all rows are one interval."""
    device = block_mask.kv_num_blocks.device
    batch = torch.arange(block_mask.shape[0], device=device)[:, None, None, None]
    key = torch.arange(keys, device=device)

    def blocks() -> Iterator[Bool[Tensor, "B 1 _ S"]]:
        queries = torch.arange(keys - last, keys, device=device)
        for rows in queries.split(max(1, _AT_ONCE // (keys * len(batch)))):
            visible = block_mask.mask_mod(batch, torch.zeros_like(batch), rows[:, None], key)
            yield visible.expand(len(batch), 1, len(rows), keys)

    starts, stops = [], []
    for visible in blocks():
        seen = visible.any(dim=-1)
        starts.append(visible.int().argmax(dim=-1))
        stops.append((keys - visible.flip(-1).int().argmax(dim=-1)) * seen)
        if not torch.equal(visible.sum(dim=-1), stops[-1] - starts[-1]):
            return dense(torch.cat([*blocks()], dim=-2))
    return intervals(torch.cat(starts, dim=-1), torch.cat(stops, dim=-1))
