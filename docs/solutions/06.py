"""Solutions of the exercises of page 6."""

import torch

# 6.1: It is zeroed, or multiplied by 1/(1 − ½) = 2.
answer_6_1 = [0, 2]

# 6.2: The head listens to witness 0 alone, and one guess among four children is right.
answer_6_2 = "one time in four"

# 6.3: Four of five survive, so each is larger by 5/4.
answer_6_3 = 0.4 / (1 - 0.2)

# 6.4: The row sums to 1.4 here; on average over many draws it sums to 1.
answer_6_4 = 2 * (0.5 * 10 + 0.2 * 30)


# 6.5: The factor keeps the mean: (1 − p) · w/(1 − p) = w.
def dropout(weights, survives, p):
    return torch.where(survives, weights / (1 - p), 0.0)


# 6.6: Dropout comes after softmax, since weights are dropped and not scores.
def dropped_attention(query, key, value, survives, p):
    scaled = query @ key.T / query.shape[-1] ** 0.5
    visible = torch.ones_like(scaled, dtype=torch.bool).tril()
    weights = torch.softmax(scaled.masked_fill(~visible, -torch.inf), dim=-1)
    return dropout(weights, survives, p) @ value


# 6.7: Both scores are 0 then, and equal scores have equal weights: the exponential of 0 is 1. A
# weight of 0 comes from a score of −∞, or is set after softmax.
answer_6_7 = 1 / (1 + 1)
