"""Solutions of the exercises of page 13."""

import math

import torch

# 13.1: 65,536 rows of 65,536 weights, 4 bytes each.
answer_13_1 = 65_536 * 65_536 * 4 / 2**30

# 13.2: Block i of the queries, counted from 1, visits i blocks of keys.
answer_13_2 = sum(range(1, 9))

# 13.3: The sum of the first two scores, 2, is corrected to the new maximum; then e⁰ is added.
answer_13_3 = [2.0, 2 * math.exp(1 - 2) + 1]

# 13.4: The scaled score is 4/√4 = 2.
answer_13_4 = math.exp((1 * 2 + 2 * 1) / math.sqrt(4) - 2.5)


# 13.5: A block in place of a score; the corrections are those of its rows.
def online_softmax(blocks):
    rows = len(blocks[0])
    largest, total = torch.full((rows,), -torch.inf), torch.zeros(rows)
    for scores in blocks:
        new = torch.maximum(largest, scores.amax(dim=1))
        total = total * torch.exp(largest - new) + torch.exp(scores - new[:, None]).sum(dim=1)
        largest = new
    return largest + total.log()


# 13.6: A part counts by its share of the denominator.
def join(context_a, logsumexp_a, context_b, logsumexp_b):
    joint = torch.logaddexp(logsumexp_a, logsumexp_b)
    share_a = torch.exp(logsumexp_a - joint)[:, None]
    share_b = torch.exp(logsumexp_b - joint)[:, None]
    return share_a * context_a + share_b * context_b


# 13.7: e^88 is 1.65 · 10³⁸, and e^89 is 4.5 · 10³⁸, above the largest float32 of 3.4 · 10³⁸. Then
# sums and total are infinite and their quotient is NaN. Less the maximum no exponential is above 1.
answer_13_7 = next(score for score in range(200) if torch.exp(torch.tensor(float(score))).isinf())
