"""Exercises of page 9c."""

import math

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Training"

_Pair = tuple[torch.Tensor, torch.Tensor]


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -_of_targets(torch.log_softmax(logits, dim=-1), targets).mean()


def _of_targets(table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return table[torch.arange(len(targets)), targets]


def _guesses() -> list[_Pair]:
    generator = torch.Generator().manual_seed(9)
    return [
        (
            2 * torch.randn(length, 7, generator=generator),
            torch.randint(7, (length,), generator=generator),
        )
        for length in (1, 3, 5)
    ]


def _batch(ids: torch.Tensor, starts: torch.Tensor, length: int) -> _Pair:
    return _cut(ids, starts, length), _cut(ids, starts + 1, length)


def _cut(ids: torch.Tensor, starts: torch.Tensor, length: int) -> torch.Tensor:
    return ids[starts[:, None] + torch.arange(length)]


EXERCISES = (
    Answer(
        "9c.1",
        kind="predict",
        title="The loss of a model that gives each of 19 characters the same probability",
        expected=round(math.log(19), 3),
        tolerance=0.02,
        hint="The probability of the true one is 1/19. What is −ln of that?",
        mistakes=(
            Mistake("the probability", 0.0526, "The loss is −ln of the probability."),
            Mistake("log to base 2", 4.248, "In bits; here the logarithm is the natural one."),
            Mistake("log to base 10", 1.279, "The logarithm is the natural one, ln."),
        ),
    ),
    Answer(
        "9c.2",
        kind="predict",
        title="The trained model's guesses on a sentence that it has not read",
        expected="worse",
        hint="What does it say after “the”, and how sure is it?",
        mistakes=(
            Mistake(
                "a language taken for learned",
                "better",
                "After 35 characters it knows these 35, in this order.",
            ),
            Mistake(
                "nothing taken for learned",
                "as good",
                "A new model doubts; this one is sure of the letters that it has read.",
            ),
        ),
    ),
    Answer(
        "9c.3",
        kind="by hand",
        title="The loss of three positions whose true tokens got ½, ¼ and ⅛",
        expected=round(2 * math.log(2), 4),
        tolerance=0.006,
        hint="−ln ½ is 0.693, and ¼ and ⅛ are ½ · ½ and ½ · ½ · ½.",
        mistakes=(
            Mistake("the mean first", 1.232, "First the logarithms, then their mean."),
            Mistake("the sum", 4.159, "Divide by the number of positions."),
            Mistake("log to base 2", 2.0, "In bits; here the logarithm is the natural one."),
        ),
    ),
    Answer(
        "9c.4",
        kind="by hand",
        title="The gradient at three logits whose probabilities are 0.7, 0.2, 0.1",
        expected=[0.7, -0.8, 0.1],
        tolerance=0.006,
        hint="Probabilities minus one-hot.",
        mistakes=(
            Mistake("the step", [-0.7, 0.8, -0.1], "That is the way down; the gradient points up."),
            Mistake("nothing taken off", [0.7, 0.2, 0.1], "Minus 1 at the true token."),
            Mistake("the likeliest taken for true", [-0.3, 0.2, 0.1], "The middle one is true."),
        ),
    ),
    Function(
        "9c.5",
        title="cross_entropy(logits, targets): the mean loss, (T, V) and (T) to a number",
        name="cross_entropy",
        reference=_cross_entropy,
        cases=_guesses,
        hint="probabilities[torch.arange(T), targets] takes one number from each row.",
        mistakes=(
            Mistake(
                "softmax over the wrong axis",
                lambda logits, targets: (
                    -_of_targets(torch.log_softmax(logits, dim=0), targets).mean()
                ),
                "Each position shares out its probability among the tokens: dim=-1.",
            ),
            Mistake(
                "the mean first",
                lambda logits, targets: (
                    -_of_targets(torch.softmax(logits, dim=-1), targets).mean().log()
                ),
                "First the logarithms, then their mean.",
            ),
            Mistake(
                "the sum",
                lambda logits, targets: -_of_targets(logits.log_softmax(dim=-1), targets).sum(),
                "Divide by the number of positions.",
            ),
            Mistake(
                "no softmax",
                lambda logits, targets: -_of_targets(logits, targets).mean(),
                "Logits are not probabilities yet.",
            ),
            Mistake(
                "no sign",
                lambda logits, targets: _of_targets(logits.log_softmax(dim=-1), targets).mean(),
                "The logarithm of a probability is negative; the loss is minus that.",
            ),
        ),
    ),
    Function(
        "9c.6",
        title="batch(ids, starts, length): inputs and targets, (B, length) each",
        name="batch",
        reference=_batch,
        cases=lambda: [
            (torch.arange(100, 117), torch.tensor([0]), 3),
            (torch.arange(7, 40), torch.tensor([5, 0, 11]), 4),
        ],
        hint="starts[:, None] + torch.arange(length) has the places of every chunk.",
        mistakes=(
            Mistake(
                "no shift",
                lambda ids, starts, length: (_cut(ids, starts, length), _cut(ids, starts, length)),
                "The target of a position is the token after it; here it is the token itself.",
            ),
            Mistake(
                "shifted the wrong way",
                lambda ids, starts, length: (
                    _cut(ids, starts + 1, length),
                    _cut(ids, starts, length),
                ),
                "The targets come after the inputs.",
            ),
            Mistake(
                "one short",
                lambda ids, starts, length: (
                    _cut(ids, starts, length - 1),
                    _cut(ids, starts + 1, length - 1),
                ),
                "Cut length + 1 tokens: the first so many are inputs, the last so many targets.",
            ),
        ),
    ),
    Answer(
        "9c.7",
        kind="break",
        title="What a step follows if zero_grad is left out",
        expected="the sum of all gradients so far",
        hint="What does backward do with the gradient that is there already?",
        mistakes=(
            Mistake(
                "a gradient that is replaced",
                "the gradient of this batch",
                "backward adds to what is there; only zero_grad takes it away.",
            ),
            Mistake("a gradient that vanishes", "nothing", "There is a gradient, and too much."),
        ),
    ),
)
