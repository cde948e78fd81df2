"""Solutions of the exercises of page 14."""

import torch

# 14.1: Seven queries from what is written, nine keys from the source.
answer_14_1 = [7, 9]

# 14.2: Ben · Lily, to · seal, white · sold. “the” at place 2 is not translated.
answer_14_2 = [0, 6, 5, 4, 3, 1]

# 14.3: The encoder's table, the decoder's own, and that of cross-attention.
answer_14_3 = 9 * 9 + 7 * 7 + 7 * 9


# 14.4: At each place the decoder sees the words before the one that it is to say.
def decoder_input(target, start):
    first = torch.full_like(target[:, :1], start)
    return torch.cat([first, target[:, :-1]], dim=1)


# 14.5: The largest weight of each row is at one place; is it the right one?
def alignment_error(weights, places):
    wrong = weights.argmax(dim=1) != torch.tensor(places)
    return wrong.float().mean().item()


# 14.6: Without the mask place i also sees the input at i + 1, the very word that it is to say. To
# copy it is all that training asks for; when the model writes, it does not stand there yet.
answer_14_6 = "fewer than half"
