"""Solutions of the exercises of page 9b."""

import torch

# 9b.1: Mean and deviation are a hundred times as large too, so that nothing changes.
answer_9b_1 = -1.069

# 9b.2: 8 E² a block, twice as much as attention; the embedding is a twentieth of the whole.
answer_9b_2 = "mlp"

# 9b.3: Mean 4, variance 4, its root 2.
answer_9b_3 = [-1, -1, 1, 1]

# 9b.4: Attention 4 (64 + 8), MLP 8 · 32 + 32 + 32 · 8 + 8, two norms of 2 · 8.
answer_9b_4 = 288 + 552 + 32


# 9b.5: Along the channels of each position, and divided by all of them.
def layer_norm(x, factor, bias):
    mean = x.mean(dim=-1, keepdim=True)
    variance = x.var(dim=-1, keepdim=True, correction=0)
    return (x - mean) / torch.sqrt(variance + 1e-5) * factor + bias


# 9b.6: Two residuals, each around a norm and a part.
def block(x, norm_1, attention, norm_2, mlp):
    x = x + attention(norm_1(x))
    return x + mlp(norm_2(x))


# 9b.7: (x @ A) @ B = x @ (A @ B), and A @ B is one matrix from E to E; biases add up to one bias.
answer_9b_7 = "one matrix"
