"""What each readout is by definition: loops over one head's weights, in Python's own floats.

Axes: B batch, H query heads, L queries, S keys.
"""

import itertools
import math
import operator
from fractions import Fraction

import torch

from regard.pattern.readouts import Blocks, Lag, MaxScore, Received, Spans


def largest(weights, positions):
    return [max(row) for row in weights]


def entropy(weights, positions):
    return [-math.fsum(w * math.log(w) for w in row if w > 0) for row in weights]


def received(weights, positions):
    return [math.fsum(column) for column in zip(*weights, strict=True)]


def distance(weights, positions):
    means = []
    for row, p in zip(weights, positions, strict=True):
        share = math.fsum(row)
        moment = math.fsum(w * abs(p - j) for j, w in enumerate(row))
        means.append(moment / share if share else 0.0)
    return means


def offsets(weights, positions, visible, n):
    means = []
    for back in range(n):
        actual = [
            row[p - back]
            for row, p, seen in zip(weights, positions, visible, strict=True)
            if 0 <= p - back < len(row) and seen[p - back]
        ]
        means.append(math.fsum(actual) / max(len(actual), 1))
    return means


def image(weights, rows, columns):
    """The mean over rectangles of L/rows × S/columns, whose edges cut tokens in fractions."""
    queries, keys = len(weights), len(weights[0])
    rows, columns = min(rows, queries), min(columns, keys)

    def shares(pixel, pixels, tokens):
        low, high = Fraction(pixel * tokens, pixels), Fraction((pixel + 1) * tokens, pixels)
        return [float(max(Fraction(0), min(high, t + 1) - max(low, t))) for t in range(tokens)]

    area = Fraction(queries, rows) * Fraction(keys, columns)
    return [
        [
            math.fsum(
                a * b * weights[i][j]
                for i, a in enumerate(shares(r, rows, queries))
                for j, b in enumerate(shares(c, columns, keys))
            )
            / float(area)
            for c in range(columns)
        ]
        for r in range(rows)
    ]


def of_each_head(function, case, *options, per_head=()):
    """Apply a definition to every head's weights, as a tensor with leading dimensions (B, H)."""
    batch, heads = case.query.shape[:2]
    return torch.tensor(
        [
            [
                function(
                    case.exact.weights[b, h].tolist(),
                    *([case.positions[b].tolist()] if function is not image else []),
                    *(extra[b, h].tolist() for extra in per_head),
                    *options,
                )
                for h in range(heads)
            ]
            for b in range(batch)
        ],
        dtype=torch.float64,
    )


def max_score(case):
    """The largest scale · q·k over the keys that are seen, −∞ where none is: (B, H, L)."""
    batch, heads, queries, keys = case.visible.shape
    scale = case.options.get("scale", case.query.shape[-1] ** -0.5)
    group = heads // case.key.shape[1]
    query, key = case.query.tolist(), case.key.tolist()
    return torch.tensor(
        [
            [
                [
                    max(
                        (
                            scale * math.fsum(map(operator.mul, row, key[b][h // group][j]))
                            for j in range(keys)
                            if case.visible[b, h, i, j]
                        ),
                        default=-math.inf,
                    )
                    for i, row in enumerate(query[b][h])
                ]
                for h in range(heads)
            ]
            for b in range(batch)
        ],
        dtype=torch.float64,
    ).reshape(batch, heads, queries)


def received_by(case, reduce, queries, group):
    """What each key receives of some queries, reduced over these and a group of heads."""
    exact, visible = case.exact.weights, case.visible
    batch, heads, _, keys = exact.shape
    result = torch.zeros(batch, heads // group, keys, dtype=torch.float64)
    for b, g, j in itertools.product(range(batch), range(heads // group), range(keys)):
        places = itertools.product(range(g * group, (g + 1) * group), queries)
        weights = [float(exact[b, h, i, j]) for h, i in places if visible[b, h, i, j]]
        total = {"sum": math.fsum(weights), "max": max(weights, default=0.0)}
        result[b, g, j] = total.get(reduce, total["sum"] / max(len(weights), 1))
    return result


def spans(case, labels, n):
    """The weight of each row on the keys of each label: (B, H, L, n)."""
    exact = case.exact.weights
    columns = [[j for j, label in enumerate(labels) if label == span] for span in range(n)]
    return torch.stack([exact[..., keys].sum(-1) for keys in columns], -1)


def lag(case, d, key_positions, query_positions):
    """The weight on the key whose position is d before the query's, and its logarithm."""
    exact, visible = case.exact.weights, case.visible
    batch, heads, queries, _ = exact.shape
    weights = torch.zeros(batch, heads, queries, dtype=torch.float64)
    logs = weights - math.inf
    for b, h, i, j in itertools.product(*map(range, exact.shape)):
        place = query_positions[b][i] - key_positions[b][j]
        if place == d and visible[b, h, i, j]:
            weights[b, h, i] = exact[b, h, i, j]
            logs[b, h, i] = exact[b, h, i, j].log()
    return weights, logs


def blocks(case, rows, columns, reduce):
    """Each block of so many rows and columns of the weights, reduced."""
    exact = case.exact.weights
    reduced = {"mean": lambda x: x.mean((-2, -1)), "sum": lambda x: x.sum((-2, -1))}
    pick = reduced.get(reduce, lambda x: x.amax((-2, -1)))
    cells = [
        torch.stack([pick(cell) for cell in band.split(columns, -1)], -1)
        for band in exact.split(rows, -2)
    ]
    return torch.stack(cells, -2)


def defined(case, queries, *, grouped):
    """Readouts of a case, some of chosen queries or of groups of heads, with their definitions."""
    every = torch.arange(case.query.shape[-2])
    some = every if queries is None else every[queries].unique()
    group = case.query.shape[1] // case.key.shape[1] if grouped else 1
    scores, labels = max_score(case), [(j * 5) % 4 - 1 for j in range(case.key.shape[-2])]
    return {
        MaxScore(): scores,
        MaxScore("head"): scores.amax(-1),
        Received(): received_by(case, "sum", every.tolist(), 1),
        **{
            Received(reduce, tuple(some.tolist()), grouped): received_by(
                case, reduce, some.tolist(), group
            )
            for reduce in ("sum", "mean", "max")
        },
        Spans(labels, 4): spans(case, labels, 4),
        **{Blocks(3, 2, reduce): blocks(case, 3, 2, reduce) for reduce in ("sum", "mean", "max")},
        **_lags(case, every),
    }


def _lags(case, every):
    """Readouts of one token back, and of a cache of which every second position is left."""
    keys = case.key.shape[-2]
    plain = [[*range(keys)]] * len(case.query)
    positions = 2 * torch.arange(keys) + 1
    queries = 2 * every + keys
    evicted = [positions.tolist()] * len(case.query), [queries.tolist()] * len(case.query)
    return {
        Lag(1): lag(case, 1, plain, case.positions.tolist()),
        Lag(4, positions, queries): lag(case, 4, *evicted),
        Lag(3, positions, queries): lag(case, 3, *evicted),
    }
