"""Solutions of the exercises of page 11."""

import torch

# 11.1: The last word sees the same keys with the same weights, in another order of terms.
answer_11_1 = "not at all"

# 11.2: The key two places back now claims to stand one place back.
answer_11_2 = 2

# 11.3: Half a turn between them changes the sign of 1 · 4 + 2 · 1.
answer_11_3 = -(1 * 4 + 2 * 1)

# 11.4: The factors ⅛, ¼, ½ and 1 sum to 15/8.
answer_11_4 = [1 / 15, 2 / 15, 4 / 15, 8 / 15]


# 11.5: One angle for each position and pair; the halves of the channels are rotated together.
def rotate(x):
    length, channels = x.shape
    speeds = 10_000 ** (-torch.arange(0, channels, 2) / channels)  # (D/2,)
    angles = torch.arange(length)[:, None] * speeds  # (T, D/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat(
        [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1
    )


# 11.6: Row i, column j: −slope · (i − j), and −∞ where j comes after i.
def alibi_bias(slopes, length):
    positions = torch.arange(length)
    distance = positions[:, None] - positions  # (T, T)
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, -torch.inf)


# 11.7: A key that is not rotated says nothing of its place: swapped words cannot be told apart any
# more. A query that is rotated says where it stands, so moving the sentence changes its scores.
answer_11_7 = "both"
