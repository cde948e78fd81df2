"""Solutions of the exercises of page 8."""

import torch

# 8.1: vert, at position 2, is the French word with a large colour channel.
answer_8_1 = 2

# 8.2: The exponentials 1 and 3 make the weights ¼ and ¾.
answer_8_2 = 1 / 4 * 8 + 3 / 4 * 4

# 8.3: Query, key, value and output; three heads share the 12 channels.
answer_8_3 = 12 * 12 + 5 * 12 + 5 * 12 + 12 * 12


# 8.4: Only the queries come from x; the rest is a head without a mask.
def cross_attention(x, source, Wq, Wk, Wv):
    query, key, value = x @ Wq, source @ Wk, source @ Wv
    scores = query @ key.T  # (L, S)
    return torch.softmax(scores / query.shape[-1] ** 0.5, dim=-1) @ value


# 8.5: keep has one entry a column, so it hides the same keys from every query.
def padded_weights(scaled, keep):
    return torch.softmax(scaled.masked_fill(~keep, -torch.inf), dim=-1)


# 8.6: The weights come from the keys, which stayed. The position with the weight ¼ now hands over
# the value of the other: what it is found by and what it hands over have come apart.
answer_8_6 = 1 / 4 * 4 + 3 / 4 * 8
