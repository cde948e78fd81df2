"""Solutions of the exercises of page 12."""

import torch

# 12.1: Without a cache the whole text is read for each new token; with one, each token once.
answer_12_1 = [sum(range(5, 15)), 5 + 9]

# 12.2: 7 back in each of 4 layers.
answer_12_2 = 4 * (8 - 1)

# 12.3: Key and value, layers, heads, channels, bytes a number.
answer_12_3 = 2 * 40 * 40 * 128 * 2 / 1024

# 12.4: 160 KiB a token.
answer_12_4 = 800_000 / (800 * 8 / 40)


# 12.5: The token's own key and value first; then attention of one query, in which nothing is later.
def attend_next(query, key, value, cached_keys, cached_values):
    keys = torch.cat([cached_keys, key[None]])
    values = torch.cat([cached_values, value[None]])
    weights = torch.softmax(keys @ query / query.shape[-1] ** 0.5, dim=-1)
    return weights @ values


# 12.6: Key head 0 serves the first heads, key head 1 the next ones, and so on.
def grouped_attention(query, key, value):
    share = len(query) // len(key)
    key, value = key.repeat_interleave(share, dim=0), value.repeat_interleave(share, dim=0)
    scaled = query @ key.mT / query.shape[-1] ** 0.5
    later = torch.ones_like(scaled).triu(diagonal=1).bool()
    return torch.softmax(scaled.masked_fill(later, -torch.inf), dim=-1) @ value


# 12.7: Near or among the first, and not later.
def first_and_window(length, window, first):
    query, key = torch.arange(length)[:, None], torch.arange(length)
    return ((query - key < window) | (key < first)) & (key <= query)


# 12.8: Without a mask every query sees the new key, so every context changes. The next layer makes
# its keys and values of these contexts, so what a cache holds of them would be wrong as well.
answer_12_8 = 5
