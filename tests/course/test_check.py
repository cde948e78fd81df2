"""What a check says of what is given to it."""

import pytest
import torch
from regard_course import Function, Mistake, check, exercise
from regard_course._check import judge

import regard


def causal_mask(length):
    return torch.ones(length, length).tril().bool()


@pytest.mark.parametrize(
    "given", [[0.5, 0.5, 0.0], (0.504, 0.496, 0), torch.tensor([[0.5, 0.5, 0]])]
)
def test_numbers_are_right_up_to_the_tolerance_in_any_container(given):
    assert check("5.3", given).right


def test_the_first_wrong_number_of_an_answer_is_named_and_none_that_is_expected():
    verdict = check("5.3", [0.5, 0.25, 0.25])
    assert str(verdict).splitlines()[0] == "5.3 wrong: entry 1: 0.25 is not it."
    assert "0.5" not in verdict.text


def test_the_first_wrong_number_of_a_function_has_its_place_and_its_case():
    def one_is_wrong(length):
        mask = causal_mask(length)
        mask[2:, 1:2] = False
        return mask

    text = check("5.5", one_is_wrong).text
    assert text.startswith(
        "5.5 wrong: causal_mask(3), row 2, column 1: False, expected True.\nHint: "
    )


def test_a_place_among_several_tables():
    def last_is_wrong(scores):
        weights = scores.masked_fill(~causal_mask(scores.shape[-1]), -torch.inf).softmax(-1)
        if scores.ndim == 4:
            weights[1, 2, 6, 3] += 0.25
        return weights

    text = check("5.6", last_is_wrong).text
    assert "causal_weights(scores (2, 3, 7, 7)), table 1, 2, row 6, column 3: " in text


@pytest.mark.parametrize(
    ("number", "given", "message"),
    [
        ("5.3", [0.5, 0.5], "5.3: 2 numbers came; expected 3 numbers"),
        ("5.3", "half", "5.3: str 'half' cannot be read as numbers; expected 3 numbers"),
        ("5.7", "row 1", "5.7: 'row 1' is none of: every row, no row, row 0"),
        ("5.5", 3, "causal_mask is of type int; expected a function causal_mask(length)"),
        ("5.5", print, "causal_mask(1) returns None (is a return missing?); expected a tensor"),
        ("5.5", lambda n: torch.ones(n).bool(), "(1,) and torch.bool; expected a tensor of"),
        ("5.5", lambda n: causal_mask(n).float() * 2, "and torch.float32; expected a tensor of"),
        ("5.5", lambda n: causal_mask(n).tolist(), "returns a list of 1; expected a tensor of"),
        ("5.5", lambda n: 1 / 0, "causal_mask(1) raises ZeroDivisionError: division by zero"),
        ("5.99", 1, "there is no exercise '5.99': page 5 has 5.1, 5.2"),
        ("99.1", 1, "there is no exercise '99.1': pages are "),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_says_what_came_and_what_was_expected(number, given, message):
    with pytest.raises(regard.Error) as failure:
        check(number, given)
    assert message in str(failure.value)


def test_a_mistake_that_raises_is_recognised_by_its_error():
    multiply = Function(
        "5.99",
        title="the products of all pairs of rows",
        name="products",
        reference=lambda rows: rows @ rows.T,
        cases=lambda: [(torch.ones(3, 2),)],
        hint="Multiply with the transpose.",
        mistakes=[Mistake("no transpose", lambda rows: rows @ rows, "(3, 2) @ (3, 2) has no sum.")],
    )
    verdict = judge(multiply, lambda x: torch.mm(x, x))
    assert not verdict.right
    assert "\nMistake: no transpose. (3, 2) @ (3, 2) has no sum.\n" in verdict.text
    with pytest.raises(regard.Error, match="raises ValueError"):
        judge(multiply, lambda x: int("x"))


def test_a_function_gets_its_own_copy_of_the_arguments():
    def in_place(scores):
        scores.masked_fill_(~causal_mask(scores.shape[-1]), -torch.inf)
        return scores.softmax(dim=-1)

    assert check("5.6", in_place).right


def test_what_an_exercise_expects_in_words():
    assert exercise("5.1").expects == "a number"
    assert exercise("5.3").expects == "3 numbers"
    assert exercise("5.2").expects == "one of: less than half, more than half, nothing"
