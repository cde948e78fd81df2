"""Solutions of the exercises of page 10."""

import math

import torch

# 10.1: The row of “kite” says that it comes after “red”.
answer_10_1 = 2

# 10.2: Four others are left, which look at the same place.
answer_10_2 = "less than 1"

# 10.3: It knows the four things of the text and not which of them it is: −ln ¼.
answer_10_3 = math.log(4)

# 10.4: “kite” and “boat” come after “red”. Both score 10, the four others 0.
answer_10_4 = [0, 0, 1 / 2, 0, 1 / 2, 0]

# 10.5: eˢ = 0.99 · (eˢ + 5), so eˢ · 0.01 = 4.95 and eˢ = 495.
answer_10_5 = math.log(495)


# 10.6: As many ones as positions that have one so far before them, so far below the diagonal.
def look_back(length, distance):
    return torch.diag(torch.ones(length - distance), diagonal=-distance)


# 10.7: Every earlier copy of the query's token, and the weight on the position after it.
def induction_score(weights, ids):
    shares = []
    for query in range(len(ids)):
        copies = [key for key in range(query) if ids[key] == ids[query]]
        if copies:
            shares.append(sum(weights[query, key + 1] for key in copies))
    return sum(shares) / len(shares)


# 10.8: Position 0 can give its weight to itself alone, so the first head writes “after red” into
# the row of “red”. The last “red” then finds two rows that come after “red”: “red” and “kite”.
answer_10_8 = "red"
