"""Solutions of the exercises of page 16."""

# 16.1: Head 2.1 has 0.97 of its weight on “bat”. Head 3.4 looks there too, and does not stand in.
answer_16_1 = "lost"

# 16.2: The four other heads of layer 1 look at “drum” as well.
answer_16_2 = "as before"

# 16.3: 0.3 and 0.2 become 0.6 and 0.4.
answer_16_3 = 0.6 * 20 + 0.4 * 30

# 16.4: Half of 1 and half of 3 are 2.
answer_16_4 = [1 / 2, 0, 1 / 2]


# 16.5: What is left of each row, divided by its sum.
def hide(weights, key):
    left = weights.clone()
    left[..., key] = 0
    return left / left.sum(dim=-1, keepdim=True)


# 16.6: Two sets of three places.
def overlap(weights, lost):
    seen, missed = (set(numbers.topk(3).indices.tolist()) for numbers in (weights, lost))
    return len(seen & missed) / 3


# 16.7: The two others mix to 3, so a 3 between them adds nothing of its own. The weight of ½ says
# where the head looks. Whether anything hangs on it, the values decide.
answer_16_7 = 3
