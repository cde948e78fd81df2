"""The sinks that `heads` finds are those of `sinks`, whatever was guessed from some of the rows."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.lens.naming.sink_search import _ROWS

LENGTH = 7 * _ROWS + 5  # every seventh row is looked at first, the last one included
SINK = 11


def recorded(chosen: torch.Tensor) -> regard.Recording:
    """Record two heads: one rests on key 11 in the chosen rows, the other nowhere."""
    query = torch.zeros(2, LENGTH, 2)
    query[0, chosen, 0] = 30.0
    query[..., 1] = 1.0
    key = torch.zeros(2, LENGTH, 2)
    key[:, SINK, 0] = 1.0
    tokens = [f"{place % 83} " for place in range(LENGTH)]
    with regard.record(tokens=tokens) as recording:
        regard.attention(query, key, key, mask=regard.causal(), scale=1.0)
    return recording


def rows_looked_at() -> torch.Tensor:
    return torch.arange((LENGTH - 1) % 7, LENGTH, 7)


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_that_see_other_keys_have_controls_of_their_own(batch: int) -> None:
    """Two heads of one mask each are scored as each alone: a uniform head of theirs is no other."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 61, 7, generator=generator)
    sees = torch.ones(1, 2, 61, 61, dtype=torch.bool).tril()
    sees[0, 1] &= torch.ones(61, 61, dtype=torch.bool).triu(-5)  # the last six keys
    tokens = [f"{place % 17} " for place in range(61)]

    def scored(heads: slice, copies: int) -> list[tuple[str, float | None]]:
        with regard.record(tokens=tokens) as recording:
            regard.attention(
                *(one[:, heads].repeat(copies, 1, 1, 1) for one in (query, key, key)),
                mask=regard.dense(sees[:, heads]),
            )
        return [(str(one.role), one.score) for one in regard.lens.heads(recording)]

    alone = [*scored(slice(0, 1), 1), *scored(slice(1, 2), 1)]
    together = scored(slice(0, 2), batch)
    assert [role for role, _ in together] == [role for role, _ in alone]
    for (_, one), (_, other) in zip(together, alone, strict=True):
        assert one == pytest.approx(other, rel=1e-6)  # roundings of float32 sums


@pytest.mark.parametrize(
    ("rows", "is_sink"),
    [("looked at", False), ("others", True), ("all", True), ("none", False)],
)
def test_a_wrong_guess_is_corrected(rows: str, is_sink: bool) -> None:
    """A seventh of the rows would make key 11 a sink or none; all rows decide."""
    chosen = torch.zeros(LENGTH, dtype=torch.bool)
    chosen[rows_looked_at()] = rows == "looked at"
    if rows in ("others", "all"):
        chosen |= True
    if rows == "others":
        chosen[rows_looked_at()] = False
    recording = recorded(chosen)
    (sinks,) = regard.lens.sinks(recording)
    heads = regard.lens.heads(recording)
    assert sinks.of(0, 0) == ((SINK,) if is_sink else ())
    assert [one.sinks for one in heads] == [sinks.of(0, 0), ()]
    (pattern,) = (layer.pattern for layer in recording.layers)
    weights = pattern.dense()[:, 1:].double()
    # Sums of 900 weights that are each off by some roundings of float32.
    expected = weights[..., SINK].mean(-1)[0] if is_sink else 0.0
    assert heads[0].resting == pytest.approx(float(expected), abs=1e-6)
    beside = pattern.without(SINK) if is_sink else pattern
    assert heads[0].entropy == pytest.approx(float(beside.entropy()[0, 1:].mean()), rel=1e-5)
