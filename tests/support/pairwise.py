"""Fewer combinations of a test's parameters: every two values meet, or each value occurs.

A test that takes its cases from several lists runs each with each, and so as many as the product of
their lengths. What breaks a kernel is a value, or two that meet: a mask and a dtype, a dtype and an
instruction set. A subset in which every pair of values occurs finds these. Where each combination
takes long, a test that is marked `each_once` has those in which each value occurs.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence


def pairwise(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """Indices of rows that hold every pair of values that any row holds, in the order given.

    Greedy: the row with the most new pairs comes next, of equals the first.

    >>> pairwise([(a, b, c) for a in "xy" for b in "pq" for c in "01"])
    [0, 3, 5, 6]
    """
    missing = [set(itertools.combinations(enumerate(row), 2)) for row in rows]
    chosen = []
    while any(missing):
        best = max(range(len(rows)), key=lambda i: len(missing[i]))
        found = set(missing[best])
        missing = [pairs - found for pairs in missing]
        chosen.append(best)
    return sorted(chosen)


def each_once(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """Indices of rows that hold each value that any row holds, in the order given.

    Greedy: the row with the most new values comes next, of equals the one whose values occurred
    least, so that the values of a short list share those of a long one.

    >>> each_once([(a, b) for a in "xy" for b in "pqrs"])
    [0, 2, 5, 7]
    """
    rows = [[*enumerate(row)] for row in rows]
    uses: Counter[Hashable] = Counter()
    chosen = []
    while any(value not in uses for row in rows for value in row):
        best = max(
            range(len(rows)),
            key=lambda i: (
                sum(value not in uses for value in rows[i]),
                -sum(uses[value] for value in rows[i]),
            ),
        )
        uses.update(rows[best])
        chosen.append(best)
    return sorted(chosen)
