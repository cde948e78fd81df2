"""Exercises of page 9b."""

from collections.abc import Callable
from typing import Any

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "The block: from vectors to probabilities"

_Part = Callable[[torch.Tensor], torch.Tensor]


def _layer_norm(x: torch.Tensor, factor: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _normalized(x, -1, 0) * factor + bias


def _normalized(x: torch.Tensor, dim: int, correction: int) -> torch.Tensor:
    mean = x.mean(dim=dim, keepdim=True)
    variance = x.var(dim=dim, keepdim=True, correction=correction)
    return (x - mean) / torch.sqrt(variance + 1e-5)


def _rows() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(9)
    factor, bias = torch.randn(2, 5, generator=generator).unbind()
    shapes = [(5,), (3, 5), (2, 3, 5)]
    return [(torch.randn(shape, generator=generator), factor, bias) for shape in shapes]


def _block(x: torch.Tensor, norm_1: _Part, attention: _Part, norm_2: _Part, mlp: _Part) -> Any:
    x = x + attention(norm_1(x))
    return x + mlp(norm_2(x))


def _norm_after(x: torch.Tensor, norm_1: _Part, attention: _Part, norm_2: _Part, mlp: _Part) -> Any:
    x = norm_1(x + attention(x))
    return norm_2(x + mlp(x))


def _normed_stream(
    x: torch.Tensor, norm_1: _Part, attention: _Part, norm_2: _Part, mlp: _Part
) -> Any:
    x = norm_1(x)
    x = norm_2(x + attention(x))
    return x + mlp(x)


def _parts() -> list[tuple[torch.Tensor, _Part, _Part, _Part, _Part]]:
    """A block's parts: attention is the mean of the rows so far; the norms differ in their bias."""

    def norm(bias: float) -> _Part:
        return lambda x: _normalized(x, -1, 0) + bias

    def average(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(dim=-2) / torch.arange(1, x.shape[-2] + 1)[:, None]

    generator = torch.Generator().manual_seed(9)
    shapes = [(3, 5), (2, 4, 7)]
    return [
        (torch.randn(shape, generator=generator), norm(0.5), average, norm(-0.25), torch.tanh)
        for shape in shapes
    ]


EXERCISES = (
    Answer(
        "9b.1",
        kind="predict",
        title="What LayerNorm makes of the first number of a row that is a hundred times another",
        expected=-1.069,
        tolerance=0.001,
        hint="What happens to the mean and to the root of the variance if all is times 100?",
        mistakes=(
            Mistake(
                "times 100 as well",
                -106.9,
                "The deviation is a hundred times as large too, and it divides.",
            ),
            Mistake("times √100", -10.69, "The variance is 10,000 times as large, its root 100."),
        ),
    ),
    Answer(
        "9b.2",
        kind="predict",
        title="The part of the largest GPT-2 with the most parameters",
        expected="mlp",
        hint="Attention has 4 E² parameters a block. "
        "How many has a matrix from E to 4E, and one back?",
        mistakes=(
            Mistake("attention taken for the bulk", "heads", "4 E² a block, and the MLP has 8 E²."),
            Mistake(
                "the smallest model's answer",
                "embedding",
                "In the smallest it is near a third; it grows with E, and the blocks with E².",
            ),
        ),
    ),
    Answer(
        "9b.3",
        kind="by hand",
        title="LayerNorm of the row 2, 2, 6, 6",
        expected=[-1.0, -1.0, 1.0, 1.0],
        tolerance=0.006,
        hint="The mean is 4. What is the mean of the squared distances from it?",
        mistakes=(
            Mistake("no root", [-0.5, -0.5, 0.5, 0.5], "Divide by the root of the variance, 2."),
            Mistake(
                "one less than there are",
                [-0.866, -0.866, 0.866, 0.866],
                "LayerNorm divides the sum of squares by all four, not by three.",
            ),
            Mistake("mean alone", [-2.0, -2.0, 2.0, 2.0], "Divide by the root of the variance."),
        ),
    ),
    Answer(
        "9b.4",
        kind="by hand",
        title="The parameters of one block with E = 8, biases and norms included",
        expected=872.0,
        hint="Four matrices of attention, two of the MLP, each with a bias; "
        "two norms of factor and bias.",
        mistakes=(
            Mistake("no biases", 4 * 64 + 2 * 256.0, "Matrices alone. Add biases and norms."),
            Mistake("no norms", 840.0, "Two norms with a factor and a bias of 8 numbers each: 32."),
            Mistake("one norm", 856.0, "Attention and the MLP have a norm each."),
            Mistake("narrow MLP", 4 * 72 + 2 * 72 + 32.0, "The MLP goes from E to 4E and back."),
        ),
    ),
    Function(
        "9b.5",
        title="layer_norm(x, factor, bias): each row with mean 0 and variance 1, (…, E)",
        name="layer_norm",
        reference=_layer_norm,
        cases=_rows,
        hint="Mean and variance along dim=-1, with keepdim=True; "
        "divide by the root of variance + 1e-5.",
        mistakes=(
            Mistake(
                "over the positions",
                lambda x, factor, bias: _normalized(x, 0, 0) * factor + bias,
                "Each position is normalized by itself, over its channels: dim=-1.",
            ),
            Mistake(
                "one less than there are",
                lambda x, factor, bias: _normalized(x, -1, 1) * factor + bias,
                "torch's var divides by one less; LayerNorm by all: correction=0.",
            ),
            Mistake(
                "no root",
                lambda x, factor, bias: (
                    (x - x.mean(-1, keepdim=True))
                    / (x.var(-1, keepdim=True, correction=0) + 1e-5)
                    * factor
                    + bias
                ),
                "Divide by the root of the variance.",
            ),
            Mistake(
                "no factor and bias",
                lambda x, *_: _normalized(x, -1, 0),
                "Then multiply by factor and add bias.",
            ),
        ),
    ),
    Function(
        "9b.6",
        title="block(x, norm_1, attention, norm_2, mlp): one block, of its four parts",
        name="block",
        reference=_block,
        cases=_parts,
        hint="x plus attention of the normed x; then that sum plus the MLP of the normed sum.",
        mistakes=(
            Mistake(
                "no residuals",
                lambda x, norm_1, attention, norm_2, mlp: mlp(norm_2(attention(norm_1(x)))),
                "Each part adds to x instead of replacing it.",
            ),
            Mistake(
                "norm after",
                _norm_after,
                "So it was in the paper of 2017; in GPT-2 the norm comes before each part.",
            ),
            Mistake(
                "side by side",
                lambda x, norm_1, attention, norm_2, mlp: x + attention(norm_1(x)) + mlp(norm_2(x)),
                "The MLP reads what attention has already added to.",
            ),
            Mistake(
                "the normed x added",
                _normed_stream,
                "Only what goes into a part is normed; what is added to is x as it was.",
            ),
            Mistake(
                "norms swapped",
                lambda x, norm_1, attention, norm_2, mlp: _block(x, norm_2, attention, norm_1, mlp),
                "norm_1 stands before attention, norm_2 before the MLP.",
            ),
        ),
    ),
    Answer(
        "9b.7",
        kind="break",
        title="What an MLP without its activation function could be replaced by",
        expected="one matrix",
        hint="(x @ A) @ B = x @ (A @ B).",
        mistakes=(
            Mistake(
                "two matrices taken for more",
                "nothing simpler",
                "Brackets may be moved, so the product of both does the same, biases aside.",
            ),
            Mistake(
                "all lost",
                "the identity",
                "The product of two matrices is a matrix, seldom the identity.",
            ),
        ),
    ),
)
