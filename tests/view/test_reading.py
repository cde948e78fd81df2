import math

import pytest
import torch

import regard
from regard.view import Role, read_heads


def test_heads_made_for_one_thing_are_named_after_it(reading):
    assert [(head.layer, head.head, head.role) for head in reading.heads[:7]] == [
        (0, 0, Role.PREVIOUS),
        (0, 1, Role.FIRST),
        (0, 2, Role.SPREAD),
        (1, 0, Role.ITSELF),
        (1, 1, Role.INDUCTION),
        (1, 2, Role.SAME),
        (2, 0, Role.LOCAL),
    ]


def test_figures_are_those_of_the_weights(make_reading):
    tokens = list("abcabcadbc")
    reading = make_reading(tokens, [["nearby", "first"]])
    for head in reading.heads:
        weights = reading.pattern(head).dense().double()
        rows = range(1, 10)
        figures = head.figures
        want = {
            "previous": sum(weights[i, i - 1] for i in rows) / 9,
            "first": sum(weights[i, 0] for i in rows) / 9,
            "itself": sum(weights[i, i] for i in rows) / 9,
            "spread": sum(
                -torch.special.xlogy(weights[i, : i + 1], weights[i, : i + 1]).sum()
                / math.log(i + 1)
                for i in rows
            )
            / 9,
            "distance": sum((weights[i, j] * (i - j)) for i in rows for j in range(i + 1)) / 9,
        }
        for name, value in want.items():
            # float32 weights of at most 1; the distance weighs them by up to 9
            assert getattr(figures, name) == pytest.approx(float(value), abs=1e-5), name
        pairs = [(i, j) for i in rows for j in range(1, i - 1) if tokens[j - 1] == tokens[i]]
        queries = {i for i, _ in pairs}
        induction = sum(weights[i, j] for i, j in pairs) / len(queries)
        assert figures.induction == pytest.approx(float(induction), abs=1e-5)
        assert figures.induction_queries == len(queries)


def test_an_even_head_spreads_as_the_formula_says(reading):
    length = len(reading.tokens)
    share = sum(1 / (i + 1) for i in range(1, length)) / (length - 1)
    assert reading.even.previous == pytest.approx(share, abs=1e-6)
    assert reading.even.first == pytest.approx(share, abs=1e-6)
    assert reading.even.itself == pytest.approx(share, abs=1e-6)
    assert reading.even.spread == pytest.approx(1, abs=1e-6)
    assert reading.even.distance == pytest.approx(length / 4, abs=1e-5)


def test_a_text_without_repeats_has_no_figures_for_them(make_reading):
    reading = make_reading(list("abcdefg"), [["induction"]])
    assert reading.even.induction_queries == 0
    assert reading.heads[0].figures.induction is None
    assert reading.heads[0].figures.same is None


def test_repeats_that_could_be_something_else_do_not_count(make_reading):
    # The second a follows the first, the b its copy: previous token, first token or itself.
    assert make_reading(list("aab"), [["even"]]).even.induction_queries == 0


def test_a_single_token_has_no_figures(make_reading):
    reading = make_reading(["a"], [["first", "even"]])
    assert reading.even is None
    assert {head.role for head in reading.heads} == {Role.ALONE}
    assert {head.figures for head in reading.heads} == {None}
    assert reading.telling(3) == list(reading.heads)


def test_two_tokens_are_enough(make_reading):
    reading = make_reading(["a", "b"], [["first", "itself"]])
    assert [head.figures.first > 0.9 for head in reading.heads] == [True, False]


def test_the_telling_heads_are_the_best_of_each_role_first(reading):
    telling = reading.telling(99)
    assert [head.role for head in telling[:7]] == [
        Role.INDUCTION,
        Role.SAME,
        Role.PREVIOUS,
        Role.LOCAL,
        Role.ITSELF,
        Role.FIRST,
        Role.SPREAD,
    ]
    assert set(telling) == set(reading.heads)
    assert reading.telling(2) == telling[:2]


def test_what_follows_is_the_softmax_of_the_logits():
    x = torch.zeros(1, 3, 1)
    pattern = regard.Pattern(x, x, mask=regard.causal())
    logits = torch.tensor([[0.0, math.log(3)]] * 3)
    reading = read_heads(
        torch.tensor([0, 1, 0]), [pattern], logits, name=lambda i: ["ab"[k] for k in i]
    )
    likeliest = reading.following[0]
    assert [token for token, _ in likeliest] == ["b", "a"]
    assert [p for _, p in likeliest] == pytest.approx([0.75, 0.25])


def test_a_head_is_found_by_its_numbers(reading):
    assert reading.at(1, 2).role is Role.SAME
    with pytest.raises(IndexError, match="layer 5"):
        reading.at(5, 0)


@pytest.mark.parametrize(
    ("ids", "length", "logits", "said"),
    [
        (torch.zeros(0, dtype=torch.int64), 0, (0, 5), "at least one token"),
        (torch.zeros(3, dtype=torch.int64), 3, (2, 5), r"\(2, 5\)"),
        (torch.zeros(3, dtype=torch.int64), 4, (3, 5), "not .heads, 3, 3."),
        (torch.zeros(1, 3, dtype=torch.int64), 1, (1, 5), r"\(1, 3\)"),
    ],
)
def test_what_does_not_belong_together_is_refused(ids, length, logits, said):
    x = torch.zeros(2, length, 1)
    pattern = regard.Pattern(x, x, mask=regard.causal())
    with pytest.raises(ValueError, match=said):
        read_heads(ids, [pattern], torch.zeros(logits), name=lambda i: ["a"] * len(i))
