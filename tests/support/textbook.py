"""A worked example from textbooks on attention: six tokens, and the figures of one head."""

import torch

X = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)
CONTEXT = torch.tensor(
    [
        [0.2996, 0.8053],
        [0.3061, 0.8210],
        [0.3058, 0.8203],
        [0.2948, 0.7939],
        [0.2927, 0.7891],
        [0.2990, 0.8040],
    ]
)
_ROWS = [
    [1.0],
    [0.3986, 0.6014],
    [0.2526, 0.3791, 0.3683],
    [0.2265, 0.2839, 0.2794, 0.2103],
    [0.1952, 0.2363, 0.2331, 0.1820, 0.1534],
    [0.1557, 0.2092, 0.2048, 0.1419, 0.1089, 0.1794],
]
CAUSAL_WEIGHTS = torch.tensor([row + [0.0] * (6 - len(row)) for row in _ROWS])
ROUNDED = {"rtol": 0, "atol": 5.1e-5}  # to four decimals


def matrices():
    """The matrices of queries, keys and values, drawn in this order."""
    torch.manual_seed(123)
    return [torch.rand(3, 2) for _ in range(3)]
