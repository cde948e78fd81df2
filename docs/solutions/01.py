"""Solutions of the exercises of page 1."""

import torch

# 1.1: The exponentials are 1, 1, 0, 0; divided by their sum 2.
answer_1_1 = [1 / 2, 1 / 2, 0, 0]

# 1.2: The last row may see all eight positions anyway.
answer_1_2 = "row 7"

# 1.3: 6 / 1, (6 + 0) / 2, (6 + 0 + 3) / 3, (6 + 0 + 3 + 7) / 4.
answer_1_3 = [6, 3, 3, 4]

# 1.4: The exponentials 1, 1, 2, 0 sum to 4.
answer_1_4 = [1 / 4, 1 / 4, 2 / 4, 0]


# 1.5: Ones where a row may look, divided by how many there are in the row.
def averaging_weights(length):
    triangle = torch.tril(torch.ones(length, length))
    return triangle / triangle.sum(dim=1, keepdim=True)


# 1.6: The same weights for every sequence of a batch and every channel.
def causal_averages(x):
    return averaging_weights(x.shape[-2]) @ x


# 1.7: Column 0 gives each of its three rows 1/3, column 1 each of its two 1/2, column 2 its only
# row 1. So row 2 is 1/3, 1/2, 1. It sums to 1.83, and what comes out, 11.33, is larger than every
# number that went in. A weighted mean never is: each row has to sum to 1.
answer_1_7 = 1 / 3 * 4 + 1 / 2 * 2 + 1 * 9
