"""Forward passes of heads that are made to do one thing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import Pattern, causal
from regard.lens.naming.forward_pass import ForwardPass, forward_pass


def _scores(kind: str, ids: Tensor) -> Tensor:
    """Scores of a head that does this much of one thing and nothing else; (T, T)."""
    length = len(ids)
    i, j = torch.arange(length)[:, None], torch.arange(length)
    relation = {
        "previous": j == i - 1,
        "first": (j == 0).expand(length, length),
        "current": j == i,
        "induction": (j > 0) & (ids[:, None] == ids.roll(1)) & (j <= i - 2),
        "duplicate": (j > 0) & (ids[:, None] == ids) & (j <= i - 2),
        "nearby": (i - j) <= 3,
        "uniform": torch.zeros(length, length, dtype=torch.bool),
    }[kind]
    return 8.0 * relation


def patterns_of(tokens: Sequence[str], layers: Sequence[Sequence[str]]) -> list[Pattern]:
    """Make the patterns of tokens and, for each layer, the kinds of its heads."""
    names = list(dict.fromkeys(tokens))
    ids = torch.tensor([names.index(token) for token in tokens])
    keys = torch.eye(len(tokens))
    return [
        Pattern(
            torch.stack([_scores(kind, ids) for kind in kinds]),
            keys.expand(len(kinds), -1, -1),
            mask=causal(),
            scale=1.0,
        )
        for kinds in layers
    ]


def make_forward_pass(tokens: Sequence[str], layers: Sequence[Sequence[str]]) -> ForwardPass:
    """Make one from tokens and, for each layer, the kinds of its heads."""
    names = list(dict.fromkeys(tokens))
    ids = torch.tensor([names.index(token) for token in tokens])
    patterns = patterns_of(tokens, layers)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(tokens), len(names), generator=generator)
    return forward_pass(ids, patterns, logits, name=lambda some: [names[n] for n in some])


EACH = (
    ["the", " cat", " sat", " on", " a", " mat", "."] * 3 + [" so"],
    [["previous", "first", "uniform"], ["current", "induction", "duplicate"], ["nearby"] * 3],
)


def each_role() -> ForwardPass:
    """Heads of one role each, on a text that repeats itself."""
    return make_forward_pass(*EACH)
