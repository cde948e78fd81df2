"""Solutions of the exercises of page 4."""

import torch

# 4.1: 64 independent products of variance 1 each.
answer_4_1 = 64

# 4.2: The second best is lower by 12.8, so its weight is e^−12.8 = 0.0000028 times the best
# one's.
answer_4_2 = "one weight of 1"

# 4.3: 16 / 16².
answer_4_3 = 1 / 16

# 4.4: 1/2 · (1 − 1/2), and −1/2 · 1/2.
answer_4_4 = [1 / 4, -1 / 4]


# 4.5: The last axis is D, and the last two axes of the keys change places.
def scaled_scores(query, key):
    return query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5


# 4.6: Where a weight is 0, its logarithm is not taken.
def entropy(weights):
    logarithms = torch.where(weights > 0, weights, 1.0).log()
    return -(weights * logarithms).sum(dim=-1)


# 4.7: Every product is 4 times as large, so the variance is 16 times as large. The scale takes
# care of the size of a sum of D products, not of the size of its entries: these are up to the
# matrices, so a head can make itself sharp in training, however large D is.
answer_4_7 = 16
