"""Which runs of a model go on from a cache: what its self-attention tells of its cross-attention.

The keys of cross-attention are the same in every run over one source, so that they do not tell the
next step of a generation from a run of its own. Those of self-attention do: they are the keys of
the run before and those of the new queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.record.sites import Site


@dataclass(frozen=True, kw_only=True)
class _SelfAttention:
    """A call of self-attention."""

    run: int
    queries: int
    goes_on: bool


class RunHistory:
    """The latest calls of a model, by the runs that they were made in.

    Example:
        >>> from regard.record.sites import Site
        >>> history, cross = RunHistory(), Site((), "cross", 0)
        >>> history.follows(cross, run=0, queries=1)  # a model without self-attention
        False
        >>> history.add_self_attention(run=1, queries=1, goes_on=True)
        >>> history.follows(cross, run=1, queries=1)
        True
    """

    def __init__(self) -> None:
        self._latest: _SelfAttention | None = None
        self._others: dict[Site, tuple[int, int]] = {}
        """Run and number of queries of each site's latest call."""

    def add_self_attention(self, *, run: int, queries: int, goes_on: bool) -> None:
        """Take note of a call of self-attention.

        Args:
            run: the model's run that it was made in.
            queries: how many it had.
            goes_on: whether its first keys were those of the call before, from a cache.
        """
        self._latest = _SelfAttention(run=run, queries=queries, goes_on=goes_on)

    def follows(self, site: Site, *, run: int, queries: int) -> bool:
        """Whether the queries of a call over keys that stay come after those of the call before.

        They do if the self-attention before it in its run went on from a cache with as many. Where
        cross-attention comes before all self-attention of a run (Idefics), the run before has to
        tell: a query alone is taken for a step if that run was one, or read several tokens.
        """
        before, latest = self._others.get(site), self._latest
        self._others[site] = run, queries
        if latest is None:
            return False
        if latest.run == run:
            return latest.goes_on and latest.queries == queries
        if site.kind != "cross" or before is None or queries != 1 or latest.run != before[0]:
            return False
        return latest.goes_on or before[1] > 1
