"""Solutions of the exercises of page 7."""

import torch

# 7.1: More heads are narrower heads: each of four matrices is 12 × 12, however it is split.
answer_7_1 = 4 * 12**2

# 7.2: D = 12/3 = 4, so the columns go from 2·4 to 3·4 − 1.
answer_7_2 = [8, 9, 10, 11]

# 7.3: The map passes through the D = 768/12 channels of the head.
answer_7_3 = 768 // 12


# 7.4: Cut the last axis in two, then bring the heads before the positions.
def split_heads(x, heads):
    batch, length, dim = x.shape
    return x.reshape(batch, length, heads, dim // heads).transpose(1, 2)


# 7.5: Page 5 in every head, with the root of a head's own width.
def multi_head(x, Wq, Wk, Wv, Wo, heads):
    query, key, value = (split_heads(x @ matrix, heads) for matrix in (Wq, Wk, Wv))  # (B, H, T, D)
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5  # (B, H, T, T)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)
    context = weights @ value  # (B, H, T, D)
    return context.transpose(1, 2).flatten(2) @ Wo


def positions_that_reach_the_last():
    torch.manual_seed(0)
    batch, length, heads, dim = 1, 6, 3, 4
    x = torch.randn(batch, length, heads * dim, requires_grad=True)
    split = x.reshape(batch, heads, length, dim)
    scores = split @ split.transpose(-2, -1) / dim**0.5
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    context = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1) @ split
    context.reshape(batch, length, heads * dim)[0, -1].sum().backward()
    return x.grad[0].abs().sum(dim=1).nonzero().flatten().tolist()


# 7.6: A head's rows are cut out of the list of all numbers: head 2 gets the last third of it, which
# is all channels of positions 4 and 5. The heads share out the positions, not the channels.
answer_7_6 = len(positions_that_reach_the_last())
