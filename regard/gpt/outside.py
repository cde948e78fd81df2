"""Detects texts unlike the training text of the model that comes with the package."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.gpt.model import GPT
from regard.gpt.training.evaluate import evaluate

__all__ = ["NOTE", "is_outside"]

UNLIKE = 3.5
"""Loss in nats per token above which a text is unlike the training text.

Measured on 300 unseen stories and their first two sentences, it is 0.1 to 2.0; on 24 sentences of
English, German and code, 3.8 to 10.0. It is also above for sentences in the style of the stories
that none of them contains, although the model's prediction may be certain.
"""
FEWEST = 8
"""Minimum number of tokens: the first ones of any text have a high loss."""
SURE = 0.5
"""Probability of an answer that the model knows, however unlike the text."""
NOTE = (
    "The model has read little but made-up stories of a small world; this text is unlike them, and "
    "what follows is a guess."
)


def is_outside(model: GPT, ids: Sequence[int], probability: float = 0.0) -> bool:
    """Return whether a text is unlike what the model has read, by the mean surprise at its tokens.

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
