"""Solutions of the exercises of page 9c."""

import math

import torch

# 9c.1: −ln (1/19) = ln 19.
answer_9c_1 = math.log(19)

# 9c.2: It is sure of the letters that followed in its one sentence, and here others follow.
answer_9c_2 = "worse"

# 9c.3: (1 + 2 + 3) ln 2, divided by 3.
answer_9c_3 = 2 * math.log(2)

# 9c.4: The probabilities, minus 1 at the true token.
answer_9c_4 = [0.7, 0.2 - 1, 0.1]


# 9c.5: From each row the logarithm of the true token's probability.
def cross_entropy(logits, targets):
    probabilities = torch.softmax(logits, dim=-1)
    return -torch.log(probabilities[torch.arange(len(targets)), targets]).mean()


# 9c.6: Chunks with a token more: all but the last are inputs, all but the first targets.
def batch(ids, starts, length):
    rows = ids[starts[:, None] + torch.arange(length + 1)]
    return rows[:, :-1], rows[:, 1:]


# 9c.7: backward adds, so the optimizer is given the sum since the first step, most of it for
# numbers that the model no longer has.
answer_9c_7 = "the sum of all gradients so far"
