"""How often regard's model of a GGUF and llama.cpp agree on the next token of a text.

``python tools/agreement.py FILE.gguf TEXT_FILE [TOKENS]`` where llama-cpp-python is installed. Both
read the same tokens; at each one the likeliest next token of the dequantised model, as torch
computes it in float32, is compared with that of llama.cpp, which multiplies quantised activations
with the quantised weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import regard


def main(file: str, text: str, count: str = "512") -> int:
    """Print the share of agreement, and the mean divergence."""
    from llama_cpp import Llama

    model = regard.models.open(Path(file))
    ids = list(model.read(Path(text).read_text("utf-8")).ids[: int(count)])
    with torch.no_grad():
        ours = model(torch.tensor(ids)).log_softmax(-1)
    llama = Llama(file, n_ctx=len(ids), n_batch=len(ids), logits_all=True, verbose=False)
    llama.eval(ids)
    theirs = torch.tensor(llama.scores[: len(ids)]).log_softmax(-1)
    same = ours.argmax(-1) == theirs.argmax(-1)
    divergence = (ours.exp() * (ours - theirs)).sum(-1)
    print(
        f"{len(ids)} tokens: the likeliest next token is the same after {same.double().mean():.1%}"
    )
    print(f"KL divergence of llama.cpp from it, mean {divergence.mean():.4f} nats")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
