"""Solutions of the exercises of page 15."""

import torch

# 15.1: Head 6.2 compares its token with notes that head 3.5 has left; without them nothing fits.
answer_15_1 = "almost none"

# 15.2: Weight is not what arrives. The value of a sink is near zero, and nothing is missed.
answer_15_2 = "no"

# 15.3: 12 layers, 12 heads, 1,024 queries, 1,024 keys.
answer_15_3 = 12 * 12 * 1024 * 1024

# 15.4: “red” stood at position 1, and “fox” followed it, at position 2.
answer_15_4 = 0.6


# 15.5: The diagonal half − 1 below the main one begins at query half − 1, which is left out.
def induction_score(weights, half):
    return weights.diagonal(1 - half, -2, -1)[..., 1:].mean(dim=-1)


# 15.6: Three thirds of the columns; of each, the columns of one head.
def head_matrices(c_attn, head, heads):
    dim = c_attn.shape[0] // heads
    return torch.stack([third[:, head * dim : (head + 1) * dim] for third in c_attn.chunk(3, 1)])


# 15.7: In the second half what followed stands 39 tokens back, always. A test would give the two
# copies other tokens in between, of a number that changes: then only a head that looks by token
# still finds the place.
answer_15_7 = 1.0
