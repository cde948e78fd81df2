"""Run models of transformers as one graph each, and print how far they are from eager ones.

In a process of its own: a graph can't be made of functions whose types are checked.
"""

import json
import sys

import torch
from record.models.classes import CASES
from record.models.inputs import L, labels
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import BloomConfig, BloomForCausalLM

from regard.record import use_in_transformers

NAMES = ("llama", "gemma2", "bert", "t5")


def compiled(model, dynamic=None):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")
    return torch.compile(model, fullgraph=True, backend=counter, dynamic=dynamic), counter


def apart(name):
    """Largest difference of outputs for sequences that are padded, over real tokens."""
    case = CASES[name]
    arguments, real = case.call()
    with torch.no_grad():
        ours, _ = compiled(case.build("regard"))
        actual, wanted = ours(**arguments)[0], case.build("eager")(**arguments)[0]
    rows = next(r for r in real.values() if r.shape == wanted.shape[:2])
    return float((actual - wanted)[rows].abs().max())


def lengths():
    """The same for several lengths and paddings, and how many graphs they took."""
    case = CASES["llama"]
    arguments, _ = case.call()
    ours, counter = compiled(case.build("regard"), dynamic=True)
    eager, errors = case.build("eager"), []
    for count in (L, 31, 12):
        part = {name: value[:, -count:].clone() for name, value in arguments.items()}
        part["attention_mask"][0, 2] = part["attention_mask"][0, 5] = 0  # between tokens
        with torch.no_grad():
            error = (ours(**part).logits - eager(**part).logits).abs()
        errors.append(float(error[part["attention_mask"].bool()].max()))
    return max(errors), counter.frame_count


def trained():
    """Largest difference of gradients, as a share of the largest of each parameter."""
    case = CASES["llama"]
    arguments, _ = case.call()
    arguments["labels"] = labels(arguments)
    models = case.build("regard"), case.build("eager")
    compiled(models[0])[0](**arguments).loss.backward()
    models[1](**arguments).loss.backward()
    pairs = zip(*(model.parameters() for model in models), strict=True)
    return max(float((a.grad - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs)


def own():
    """What is raised for attention of a class's own, with and without breaks of the graph."""
    config = BloomConfig(hidden_size=42, n_layer=1, n_head=6, vocab_size=101)
    model = BloomForCausalLM._from_config(config, attn_implementation="regard").eval()
    for fullgraph in (True, False):
        torch.compiler.reset()
        try:
            torch.compile(model, backend="eager", fullgraph=fullgraph)(torch.arange(3, 20)[None])
        except Exception as error:  # noqa: BLE001 - of torch's own kinds
            yield type(error).__name__
        else:
            yield "nothing"


def main():
    use_in_transformers()
    actual = {name: apart(name) for name in NAMES}
    actual |= {"lengths": lengths(), "trained": trained(), "own": list(own())}
    sys.stdout.write(json.dumps(actual))


if __name__ == "__main__":
    main()
