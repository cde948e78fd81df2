"""The output of `regard explain`: all heads of a model, or one head step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from regard.lens.naming.forward_pass import ForwardPass
from regard.lens.naming.heads import HeadScores
from regard.steps import Steps
from regard.view.entries import WEIGHTS, Entries
from regard.view.head_tables import head_table, needed_table
from regard.view.listing import ALL, Listing
from regard.view.summary import (
    NextTokens,
    TokenStrip,
    every_query,
    findings,
    heading,
    strongest_keys,
    walk,
)
from regard.view.terminal import step_tables
from regard.view.tokens import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from regard.lens import Effects
    from regard.lens.effect.table import Place
    from regard.lens.toward import LeadingHead

__all__ = ["all_heads", "one_head"]

_SIDE_BY_SIDE = 3  # key tables that fit on 80 columns
_NEEDED = 8  # heads that the next token hangs on


def all_heads(
    result: ForwardPass,
    query: int,
    added: Sequence[bool] = (),
    needed: Effects | None = None,
    listing: Listing = ALL,
    leading_head: LeadingHead | str | None = None,
    entries: Entries = WEIGHTS,
) -> Iterator[RenderableType]:
    """Render the findings, the tokens, what heads do, and one query's strongest keys.

    Args:
        result: the forward pass over the text.
        query: the token to look from.
        added: True for each token that the user did not write, such as a template's.
        needed: for a model of many heads, the estimated effect of each on the next token.
        listing: which heads the tables list, and in which order.
        leading_head: the head that writes the next token, or why that was not measured.
        entries: the view of the query's keys.
    """
    yield Text()
    yield findings(result, query)
    yield heading(f"{_tokens(result)}, token {query} marked")
    yield TokenStrip(result.tokens, query, added)
    yield NextTokens(result, query)
    if leading_head is not None:
        yield _written(leading_head)
    ranked, which = result.heads.most_informative(len(result.heads)), "most informative heads"
    if needed is not None:
        own: dict[Place, HeadScores] = {(one.layer, one.head): one for one in result.heads}
        ranked = [own[one.place] for one in needed.largest(len(own))]
        which = "heads that it hangs on"
    heads = listing.of(ranked)
    if needed is not None and heads:
        yield heading(f"What comes after {_named(result, query)} hangs on these heads")
        yield needed_table(result, needed, query, heads[:_NEEDED])
    yield heading("What each head does on this text")
    yield head_table(result, listing)
    if heads:
        which = which if listing == ALL else "first of these heads"
        yield heading(f"{entries.what(_named(result, query))}, in the {which}")
        yield from _meaning(entries)
        yield strongest_keys(result, heads[:_SIDE_BY_SIDE], query, entries)


def one_head(
    result: ForwardPass, head: HeadScores, steps: Steps, query: int, entries: Entries = WEIGHTS
) -> Iterator[RenderableType]:
    """Render what every token attends to in one head, and the computation of one query.

    Args:
        result: the forward pass over the text.
        head: the head to show.
        steps: its steps, from ``(T, D)`` query, key and value.
        query: the token to follow through the computation.
        entries: the view of the keys; weights without a sink are those of the steps.
    """
    own = None if entries.read is None or entries.are_weights else entries.read(head)
    yield heading(f"{_tokens(result)}, token {query} marked")
    yield TokenStrip(result.tokens, query)
    evidence = f" ({head.evidence})" if head.evidence else ""
    yield heading(f"Layer {head.layer} head {head.head}: {head.words}{evidence}")
    yield Text(f"{head.role.meaning[0].upper()}{head.role.meaning[1:]}.")
    yield from _meaning(entries)
    yield every_query(result, steps, query, entries, own)
    yield heading(f"{_named(result, query)}, step by step")
    yield walk(steps, result, query, entries, own)
    yield heading("Every step of this head; of what is larger than the terminal, the name alone")
    yield from step_tables(steps, result.tokens, whole=True)


def _meaning(entries: Entries) -> Iterator[Text]:
    """Say what the entries are, where they are not the weights."""
    if entries.view.name != "weight":
        yield Text(entries.view.meaning, "dim")


def _written(by: LeadingHead | str) -> Text:
    """Say which head writes the next token, from where, and what is lost without it."""
    if isinstance(by, str):
        return Text(f"Which head writes it is not measured: {by}.", "dim")
    head, token = by.part.name, f"“{visible(by.token)}”"
    source = f"“{visible(by.source)}”"
    share = (
        f"adds {by.part.value:.2f} to its logit’s lead of {by.margin:.2f} over "
        f"“{visible(by.against)}”, {by.part.from_source or 0.0:.2f} of that from {source}"
    )
    change = "falls" if by.loss > 0 else "rises"
    lost = f"without it the log-probability {change} by {abs(by.loss):.2f}, measured"
    if by.decides:
        return Text(f"{head.capitalize()} writes {token} from {source}: it {share}; {lost}.")
    return Text(f"No single head decides {token}: {head} {share}; {lost}.")


def _tokens(result: ForwardPass) -> str:
    count = len(result.tokens)
    return f"{count} token{'s' if count > 1 else ''}"


def _named(result: ForwardPass, query: int) -> str:
    return f"token {query} {visible(result.tokens[query])}"
