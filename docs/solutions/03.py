"""Solutions of the exercises of page 3."""

import torch

# 3.1: The query of “warm” with the key of “by” is 1.5440, that of “by” with the key of “warm”
# 1.3165.
answer_3_1 = "different"

# 3.2: Each position asks for the marked row, so the query is made from what all rows have.
answer_3_2 = "constant"

# 3.3: The dot product is 8, and √4 = 2.
answer_3_3 = 8 / 2

# 3.4: Three matrices of 5 rows and 4 columns, however many positions there are.
answer_3_4 = 3 * 5 * 4


# 3.5: Three vectors for each row, then the steps of page 2 with the scale.
def head(x, Wq, Wk, Wv):
    query, key, value = x @ Wq, x @ Wk, x @ Wv
    scaled = query @ key.T / Wq.shape[1] ** 0.5
    return torch.softmax(scaled, dim=-1) @ value


# 3.6: One row of scores is enough; exp(scaled − logsumexp) is its softmax, one entry of it.
def weight(query, key, i, j):
    scaled = key @ query[i] / query.shape[1] ** 0.5
    return torch.exp(scaled[j] - torch.logsumexp(scaled, dim=0))


# 3.7: Every score is 0, so every weight is 1/T: page 1 without its mask. The query may be what it
# likes, since nothing can be found any more.
answer_3_7 = "the mean of the values"
