"""Solutions of the exercises of page 15."""

import torch

# 15.1: They compare their token with notes that head 16.0 has left; without them nothing fits.
answer_15_1 = "almost none"

# 15.2: 18.8 has all of its weight there and is not missed; 18.7 has two thirds there, and is.
answer_15_2 = "no"

# 15.3: From −6 to −2 it is 4, of the 10 from −6 to +4.
answer_15_3 = (-2 + 6) / (4 + 6)

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
