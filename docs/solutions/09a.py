"""Solutions of the exercises of page 9a."""

# 9a.1: It stands first in the vocabulary, and ids are counted from 0.
answer_9a_1 = 0

# 9a.2: w·e stands in lower, lowest, newer and newest; every other pair occurs three times at most.
answer_9a_2 = "we"

# 9a.3: Four times as many tokens are sixteen times as many pairs of a query and a key.
answer_9a_3 = 4**2

# 9a.4: The id at position 1 is 1: its row (0, 2), plus the row of position 1, (10, 20).
answer_9a_4 = [0 + 10, 2 + 20]


# 9a.5: The first table is looked up by id, the second by place.
def embed(ids, table, positions):
    return table[ids] + positions[: ids.shape[-1]]


# 9a.6: Where the pair stands, its two ids become one; of 5, 5, 5 the first two are joined.
def merge(ids, pair, new):
    merged, at = [], 0
    while at < len(ids):
        joined = tuple(ids[at : at + 2]) == pair
        merged.append(new if joined else ids[at])
        at += 2 if joined else 1
    return merged


# 9a.7: Scores, weights and context of a token depend on which tokens there are, not on where. So
# each token gets the row that it had, at its new place.
answer_9a_7 = "the same rows, two of them swapped"
