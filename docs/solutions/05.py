"""Solutions of the exercises of page 5."""

import torch

# 5.1: Row 0 sees itself alone, and a row sums to 1.
answer_5_1 = 1.0

# 5.2: Its own score 0.65 has the exponential 1.92, the five zeros have 1 each: 5 / 6.92 = 0.72.
answer_5_2 = "more than half"

# 5.3: The key at position 2 is hidden, and the two others have equal scores.
answer_5_3 = [1 / 2, 1 / 2, 0]

# 5.4: The exponentials 1 and 3 make the weights 1/4 and 3/4. The value 100 is hidden.
answer_5_4 = 1 / 4 * 8 + 3 / 4 * 4


# 5.5: Ones on the diagonal and below it, as truth values.
def causal_mask(length):
    return torch.ones(length, length).tril().bool()


# 5.6: −∞ where nothing may be seen, before softmax; the mask fits every table of a batch.
def causal_weights(scores):
    hidden = ~causal_mask(scores.shape[-1])
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


# 5.7: Row 0 is left without a key. All its exponentials are 0, so softmax divides 0 by 0. The
# other rows see at least key 0, and softmax computes each row by itself.
answer_5_7 = "row 0"
