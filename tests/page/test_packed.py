"""Quantised numbers, decoded independently, give weights within the stated error.

Axes: H query heads, G key/value heads, L queries and keys, D head dimension, Dv of value.
"""

import zlib
from base64 import b85decode

import pytest
import torch

import regard
from regard.page.file.packed import Errors, Numbers, pack_layer

H, G, L, D, DV = 6, 3, 37, 7, 5


def unpacked(text):
    """All whole numbers, read as the format says it."""
    planes = zlib.decompress(b85decode(text.replace(".", "<")))
    many, rest = divmod(len(planes), 4)
    assert rest == 0
    folded = [sum(planes[p * many + k] << (8 * p) for p in range(4)) for k in range(many)]
    return torch.tensor([-(n + 1) // 2 if n % 2 else n // 2 for n in folded], dtype=torch.float64)


def matrix(numbers, encoded, rows):
    first = numbers[encoded["at"] :][: encoded["dim"]]
    rest = numbers[encoded["at"] + encoded["dim"] :][: rows * encoded["dim"]]
    return (rest.view(rows, encoded["dim"]) + first) * encoded["step"]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def packed(pattern, values=None, tolerance=2.0**-12):
    problems = [pattern[head].problem for head in range(len(pattern))]
    numbers = Numbers()
    heads = list(pack_layer(problems, values, tolerance, numbers))
    return unpacked(numbers.text()), heads


# The weights are sharp: a head that looks everywhere alike would forgive any error.
QUERY, KEY, VALUE = 3 * drawn(H, L, D), drawn(G, L, D, seed=1) + 2, drawn(H, L, DV, seed=2)
OPTIONS = {
    "causal": {"mask": regard.causal()},
    "window": {"mask": regard.causal() & regard.window(5)},
    "softcap": {"mask": regard.causal(), "softcap": 4.0, "scale": -0.7},
    "alibi": {"mask": regard.causal(), "alibi": torch.linspace(0.1, 1, H)},
    "sink": {"mask": regard.causal(), "sink": torch.linspace(-1, 3, H)},
    "blind rows": {"mask": regard.masks.intervals(torch.full((L,), 11), torch.arange(L))},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_and_contexts_are_as_exact_as_stated(name):
    options = OPTIONS[name]
    pattern = regard.Pattern(QUERY, KEY, **options)
    numbers, heads = packed(pattern, VALUE)
    exact = regard.Pattern(QUERY.double(), KEY.double(), **options).dense()
    rows = pattern.problem.rows
    visible = rows.visible(slice(0, L), slice(0, L)).expand(1, H, L, L)[0]
    distance = (torch.arange(L)[:, None] - torch.arange(L)).abs().double()
    for head, (encoded, errors) in enumerate((one.encoded, one.errors) for one in heads):
        query, key, value = (
            matrix(numbers, encoded[part], L) for part in ("query", "key", "value")
        )
        scores = query @ key.T * encoded["scale"]
        if encoded["softcap"]:
            scores = encoded["softcap"] * (scores / encoded["softcap"]).tanh()
        if encoded["alibi"]:
            scores -= encoded["alibi"] * distance
        logsumexp = numbers[encoded["logsumexp"]["at"] :][:L] * encoded["logsumexp"]["step"]
        weights = (scores - logsumexp[:, None]).exp().masked_fill(~visible[head], 0)
        context = exact[head] @ VALUE[head].double()
        # Told in float64 from the same numbers: only the order of the sums differs.
        assert float((weights - exact[head]).abs().max()) == pytest.approx(errors.weight, rel=1e-6)
        assert float((weights @ value - context).abs().max()) == pytest.approx(
            errors.context, rel=1e-6
        )
        assert 0 < errors.weight < 3e-4  # a quarter of a score's error, which is near 2**-12
        assert encoded["sink"] is (name == "sink")


def test_heads_of_a_group_share_their_key():
    _, heads = packed(regard.Pattern(QUERY, KEY))
    places = [one.encoded["key"]["at"] for one in heads]
    assert places[0] == places[1] != places[2] == places[3] != places[4] == places[5]


def test_finer_steps_leave_smaller_errors():
    pattern = regard.Pattern(QUERY, KEY, mask=regard.causal())
    coarse, fine = ([one.errors for one in packed(pattern, VALUE, 2.0**n)[1]] for n in (-8, -14))
    for a, b in zip(coarse, fine, strict=True):
        # 64 times finer; the greatest of many roundings varies by less than the square root of that
        for name in ("weight", "score", "product", "vector", "context"):
            assert getattr(a, name) > 8 * getattr(b, name) > 0


def test_a_number_far_from_all_others_is_kept():
    query, key = drawn(1, L, D), drawn(1, L, D, seed=1)
    query[0, 3, 2] = 1e6
    numbers, (head,) = packed(regard.Pattern(query, key))
    kept = matrix(numbers, head.encoded["query"], L)
    assert float(kept[3, 2]) == pytest.approx(1e6, abs=head.encoded["query"]["step"])


@pytest.mark.parametrize("value", [0.0, 1e-30, 2.5])
def test_vectors_that_are_all_alike_are_kept(value):
    x = torch.full((1, L, D), value)
    numbers, (head,) = packed(regard.Pattern(x, x, mask=regard.causal()))
    kept = matrix(numbers, head.encoded["key"], L)
    assert head.errors.weight < 1e-5  # the step of the log-sum-exp, 2**-18
    torch.testing.assert_close(kept, x[0].double(), rtol=1e-5, atol=1e-3)


def test_the_text_ends_no_element():
    numbers = Numbers()
    numbers.add(torch.randint(-(2**30), 2**30, (20_000,)))
    assert "<" not in numbers.text()


def test_errors_are_joined_by_the_larger():
    joined = Errors(weight=1.0, score=2.0) | Errors(weight=3.0, context=4.0)
    assert joined == Errors(weight=3.0, score=2.0, context=4.0)
