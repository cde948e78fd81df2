"""Solutions of the exercises of page 17."""

# 17.1: 0.5 · 0.1 = 0.05, 0.2 · 5 = 1, 0.2 · 1 = 0.2 and 0.1 · 2 = 0.2.
answer_17_1 = "kite"

# 17.2: 0.02 of 0.04 is a half, and 0.5 is 25 times 0.02.
answer_17_2 = "25 times"

# 17.3: Its share of 0.65, and the 1 that the MLP made of what the head wrote in the third channel.
answer_17_3 = 0.65 + 1.0

# 17.4: Each weight times its length. The key with the smallest weight is not the one of least.
answer_17_4 = [0.6 * 0.5, 0.3 * 5, 0.1 * 10]

# 17.5: “kite” wins by 7.5 to 6.5, and by head A alone: it makes up for what the embedding says.
answer_17_5 = [1 - 3, 4 - 1, 2 - 2, 0.5 - 0.5]


# 17.6: One length for each key, times the weights of its column.
def moved(weights, value, output):
    return weights * (value @ output).norm(dim=-1)


# 17.7: One product for each key, times the weights of its column.
def shares(weights, value, output, direction):
    return weights * (value @ output @ direction)


# 17.8: The opposite row is as long. Each moves 2.5, together 5, and nothing comes of it: a sum of
# lengths says how much arrives, not what becomes of it.
answer_17_8 = [-3, -4]
