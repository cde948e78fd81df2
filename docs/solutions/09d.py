"""Solutions of the exercises of page 9d."""

import torch

# 9d.1: Softmax depends on the differences of the logits, and these are halved.
answer_9d_1 = "closer"

# 9d.2: The answer stands in the sentence alone, so some head must fetch it there.
answer_9d_2 = "ball"

# 9d.3: From “what?” head 1 has nearly all its weight on the thing.
answer_9d_3 = "what"

# 9d.4: The exponentials are 1 and 9.
answer_9d_4 = [1 / 10, 9 / 10]

# 9d.5: 0.5 and 0.3 make up 0.7; divided by their sum, 0.8.
answer_9d_5 = [0.5 / 0.8, 0.3 / 0.8, 0, 0]


# 9d.6: The logits are divided, before softmax.
def with_temperature(logits, temperature):
    return torch.softmax(logits / temperature, dim=-1)


# 9d.7: −∞ for every logit below the k-th largest.
def top_k(logits, k):
    smallest = logits.topk(k).values[..., -1:]
    return torch.softmax(logits.masked_fill(logits < smallest, -torch.inf), dim=-1)


# 9d.8: From seed 1 head 1 has learned all three; without it every answer is a guess among six, and
# without head 0 all are right. Which head does what depends on the random numbers of the start.
answer_9d_8 = "all"
