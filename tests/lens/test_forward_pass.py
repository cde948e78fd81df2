import math

import pytest
import torch
from support.heads import each_role, make_forward_pass, patterns_of

import regard
from regard.lens.naming.forward_pass import forward_pass
from regard.lens.naming.roles import Role


@pytest.fixture
def result():
    return each_role()


def test_each_head_is_named_after_its_only_relation(result):
    assert [(head.layer, head.head, head.role) for head in result.heads[:7]] == [
        (0, 0, Role.PREVIOUS),
        (0, 1, Role.FIRST),
        (0, 2, Role.SPREAD),
        (1, 0, Role.CURRENT),
        (1, 1, Role.INDUCTION),
        (1, 2, Role.DUPLICATE),
        (2, 0, Role.LOCAL),
    ]


def test_scores_are_those_of_the_weights():
    tokens = list("abcabcadbc")
    kinds = [["nearby", "first"]]
    result = make_forward_pass(tokens, kinds)
    for head in result.heads:
        weights = patterns_of(tokens, kinds)[head.layer][head.head].dense().double()
        for query in (0, 4, 9):  # float32 weights, once read in blocks and once as a row
            row = result.row(head, query).double()
            torch.testing.assert_close(row, weights[query], rtol=0, atol=1e-6)
        first = int(head.head == 1)  # it rests on key 0, and query 1 has no choice beside it
        shares = {
            "first_token": sum(weights[i, 0] for i in range(1, 10)) / 9,
            "resting": first * sum(weights[i, 0] for i in range(1, 10)) / 9,
        }
        weights[:, :first] = 0
        weights /= weights.sum(-1, keepdim=True)
        rows = range(1 + first, 10)
        want = shares | {
            "previous_token": sum(weights[i, i - 1] for i in rows) / len(rows),
            "current_token": sum(weights[i, i] for i in rows) / len(rows),
            "spread": sum(
                -torch.special.xlogy(weights[i, : i + 1], weights[i, : i + 1]).sum()
                / math.log(i + 1 - first)
                for i in rows
            )
            / len(rows),
            "distance": sum((weights[i, j] * (i - j)) for i in rows for j in range(i + 1))
            / len(rows),
        }
        for name, value in want.items():
            # float32 weights of at most 1; the distance weighs them by up to 9
            assert getattr(head, name) == pytest.approx(float(value), abs=1e-5), name
        pairs = [(i, j) for i in rows for j in range(1, i - 1) if tokens[j - 1] == tokens[i]]
        queries = {i for i, _ in pairs}
        induction = sum(weights[i, j] for i, j in pairs) / len(queries)
        assert head.induction == pytest.approx(float(induction), abs=1e-5)
        assert head.induction_queries == len(queries)


def test_a_uniform_head_spreads_as_the_formula_says(result):
    length = len(result.tokens)
    share = sum(1 / (i + 1) for i in range(1, length)) / (length - 1)
    assert result.uniform.previous_token == pytest.approx(share, abs=1e-6)
    assert result.uniform.first_token == pytest.approx(share, abs=1e-6)
    assert result.uniform.current_token == pytest.approx(share, abs=1e-6)
    assert result.uniform.spread == pytest.approx(1, abs=1e-6)
    assert result.uniform.distance == pytest.approx(length / 4, abs=1e-5)


def test_a_text_without_repeats_has_no_scores_for_them():
    result = make_forward_pass(list("abcdefg"), [["induction"]])
    assert result.uniform.induction_queries == 0
    assert result.heads[0].induction is None
    assert result.heads[0].duplicate_token is None


def test_repeats_at_the_current_or_previous_position_do_not_count():
    # The second a follows the first, the b its copy: previous token, first token or current token.
    assert make_forward_pass(list("aab"), [["uniform"]]).uniform.induction_queries == 0


def test_a_single_token_has_no_scores():
    result = make_forward_pass(["a"], [["first", "uniform"]])
    assert result.uniform.induction_queries == 0
    assert result.uniform.entropy is None
    assert {head.role for head in result.heads} == {Role.ALONE}
    assert {head.entropy for head in result.heads} == {None}
    assert result.heads.most_informative(3) == list(result.heads)


def test_two_tokens_are_enough():
    result = make_forward_pass(["a", "b"], [["first", "current"]])
    assert [head.first_token > 0.9 for head in result.heads] == [True, False]


def test_the_most_informative_heads_are_the_best_of_each_role_first(result):
    ranked = result.heads.most_informative(99)
    assert [head.role for head in ranked[:7]] == [
        Role.INDUCTION,
        Role.DUPLICATE,
        Role.PREVIOUS,
        Role.LOCAL,
        Role.CURRENT,
        Role.FIRST,
        Role.SPREAD,
    ]
    assert set(ranked) == set(result.heads)
    assert result.heads.most_informative(2) == ranked[:2]


def test_predictions_are_the_softmax_of_the_logits():
    x = torch.zeros(1, 3, 1)
    pattern = regard.Pattern(x, x, mask=regard.causal())
    logits = torch.tensor([[0.0, math.log(3)]] * 3)
    result = forward_pass(
        torch.tensor([0, 1, 0]), [pattern], logits, name=lambda i: ["ab"[k] for k in i]
    )
    likeliest = result.predictions[0]
    assert [token for token, _ in likeliest] == ["b", "a"]
    assert [p for _, p in likeliest] == pytest.approx([0.75, 0.25])


def test_a_head_is_found_by_its_numbers(result):
    assert result.heads.at(1, 2).role is Role.DUPLICATE
    with pytest.raises(IndexError, match="layer 5"):
        result.heads.at(5, 0)


@pytest.mark.parametrize(
    ("ids", "length", "logits", "message"),
    [
        (torch.zeros(0, dtype=torch.int64), 0, (0, 5), "at least one token"),
        (torch.zeros(3, dtype=torch.int64), 3, (2, 5), r"\(2, 5\)"),
        (torch.zeros(3, dtype=torch.int64), 4, (3, 5), "not .heads, 3, 3."),
        (torch.zeros(1, 3, dtype=torch.int64), 1, (1, 5), r"\(1, 3\)"),
    ],
)
def test_ids_patterns_and_logits_of_several_texts_are_refused(ids, length, logits, message):
    x = torch.zeros(2, length, 1)
    pattern = regard.Pattern(x, x, mask=regard.causal())
    with pytest.raises(ValueError, match=message):
        forward_pass(ids, [pattern], torch.zeros(logits), name=lambda i: ["a"] * len(i))
