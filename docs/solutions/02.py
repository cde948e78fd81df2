"""Solutions of the exercises of page 2."""

import torch

# 2.1: 1.4950 with itself, 1.4754 with “sunny”. (Of a shorter row another one may score higher:
# “by” gives more to “warm” than to itself.)
answer_2_1 = "warm"

# 2.2: 18 + 32, 9 + 16, −12 + 12, −9 − 16.
answer_2_2 = [50, 25, 0, -25]

# 2.3: The weights are e/(e + 1) and 1/(e + 1), and the rows are (1, 0) and (0, 1).
answer_2_3 = [2.71828 / 3.71828, 1 / 3.71828]

# 2.4: Column 1: 1/2 + 3/10 + 4/5.
answer_2_4 = 0.5 + 0.3 + 0.8


# 2.5: Subtracting the largest score of each row makes its largest exponential 1, so none is
# infinite.
def softmax(scores):
    exponentials = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


# 2.6: Every row is compared with every row, and takes in a mixture of all.
def self_attention(x):
    scores = x @ x.T
    weights = torch.softmax(scores, dim=-1)
    return weights @ x


# 2.7: The score of “went” and “by” grows from 0.29 to 2.94, all others stay, so “by” gets 0.68 of
# the weight. A long row wins with every query that points even a little its way. Page 4 says how
# large scores become by themselves; on page 9b LayerNorm keeps rows at one length.
answer_2_7 = "by"
