"""Whether a text lies outside of what the model that comes with the package has read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.gpt.model import GPT
from regard.gpt.training.evaluate import evaluate

__all__ = ["NOTE", "is_outside"]

UNLIKE = 3.5
"""Nats a token above which a text is unlike what the model has read.

As measured, none of 300 stories that it had not read, and of their first two sentences, was above:
they lie at 0.2 to 1.7. All of 22 sentences of English, German and code were, at 3.8 to 11.3. So is
a sentence in the manner of the stories that none of them says, at which the model may be sure.
"""
FEWEST = 8
"""Tokens of which fewer say too little: of the first ones any text is a surprise."""
SURE = 0.5
"""Probability of an answer that the model knows, however unlike the text."""
NOTE = (
    "The model has read little but made-up stories of a small world; this text is unlike them, and "
    "what follows is a guess."
)


def is_outside(model: GPT, ids: Sequence[int], probability: float = 0.0) -> bool:
    """Whether a text is unlike what the model has read, by the mean surprise at its tokens.

    Args:
        model: the model that comes with the package.
        ids: the text's tokens, of which those are read that the context holds, the last ones.
        probability: of the one answer that is of interest, if there is one: from `SURE` on it is no
            guess.

    >>> from regard.gpt import load
    >>> model, tokenizer = load()
    >>> is_outside(model, tokenizer.encode("The stock market fell sharply on Monday as investors"))
    True
    >>> is_outside(model, tokenizer.encode("Once upon a time"))
    False
    """
    text = torch.tensor(ids[-model.config.context :], device=model.device)
    return len(text) >= FEWEST and probability < SURE and evaluate(model, text) > UNLIKE
