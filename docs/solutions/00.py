"""Solutions of the exercises of page 0."""

from collections import Counter
from itertools import pairwise

# 0.1: The kite was silver, and the drum was red.
answer_0_1 = "kite"

# 0.2: In the stories 1 of 50.
answer_0_2 = "one time in fifty"

# 0.3: It takes the word from the sentence, wherever it stands.
answer_0_3 = "doll"

# 0.4: The four words after “the” are kite, ball, kite, drum.
answer_0_4 = 2 / 4

# 0.5: 1 + 2 + … + 29.
answer_0_5 = 29 * 30 / 2


# 0.6: Of equally common ones `most_common` gives the first to occur.
def most_common_after(words, word):
    after = Counter(second for first, second in pairwise(words) if first == word)
    return after.most_common(1)[0][0]


# 0.7: The place of the largest weight is the place of its token.
def looked_at(tokens, weights):
    return tokens[int(weights.argmax())]


# 0.8: From 0.43 to 0.10. Nothing says any more which of the two is meant, so that no head of this
# layer finds one by its colour; the guess is the kite with 0.05, and then the drum with 0.03.
answer_0_8 = "less than half"
