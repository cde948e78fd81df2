"""A model that reads texts: its own weights and values, and which texts stay open."""

import pytest
import torch
from support.explorer import near

from regard.page._run import Run
from regard.page.subjects import ModelSubject, PageError


def projections(model, ids):
    """What each head of each layer is given, taken from the model's own modules."""
    outputs = []
    hooks = [
        block.attn.c_attn.register_forward_hook(lambda _, __, out: outputs.append(out))
        for block in model.h
    ]
    with torch.no_grad():
        logits, patterns = model.with_patterns(torch.tensor(ids))
    for hook in hooks:
        hook.remove()
    split = [
        [part.unflatten(-1, (3, -1)).transpose(0, 1) for part in out.squeeze(0).chunk(3, -1)]
        for out in outputs
    ]
    return logits[-1], patterns, split


def test_a_model_gives_its_own_weights_values_and_context(subject, network):
    model, tokenizer = network
    (name,) = subject.about()["runs"]
    run = subject.run(name)
    ids = tokenizer.encode(run.text)
    logits, patterns, split = projections(model, ids)
    length = len(ids)
    assert run.describe()["length"] == length
    for layer in range(2):
        query, key, value = split[layer]
        for head in range(3):
            weights = patterns[layer][head].dense().double()
            for at in (0, 4, length - 1):
                near(run.row(layer, head, at), weights[at])
                steps = run.steps(layer, head, at)
                near(torch.tensor(steps["query"]), query[head, at])
                for one in steps["keys"]:
                    near(torch.tensor(one["key"]), key[head, one["position"]])
                    near(torch.tensor(one["value"]), value[head, one["position"]])
                near(torch.tensor(steps["context"]), weights[at] @ value[head].double())
    following = run.describe()["next"]
    assert len(following) == 10
    top = logits.softmax(-1).topk(10)
    assert [entry["token"] for entry in following] == top.indices.tolist()
    assert [entry["probability"] for entry in following] == pytest.approx(top.values.tolist())
    assert run.describe()["causal"] is True
    assert run.describe()["values"] is True


def test_the_contexts_are_those_that_the_layer_projects(subject, network):
    model, tokenizer = network
    run = subject.run(subject.about()["runs"][0])
    outputs = []
    hook = model.h[1].attn.register_forward_hook(lambda _, __, out: outputs.append(out))
    with torch.no_grad():
        model(torch.tensor(tokenizer.encode(run.text)))
        hook.remove()
        contexts = torch.tensor([run.steps(1, head, 9)["context"] for head in range(3)])
        projected = model.h[1].attn.c_proj(contexts.flatten())
    near(projected, outputs[0].squeeze(0)[9])


def test_a_model_is_left_without_hooks(subject, network):
    subject.read("the cat")
    assert not any(module._forward_hooks for module in network[0].modules())


def test_runs_that_are_made_at_the_same_time_do_not_mix(network):
    """While one text is read in a thread, another may be in a second one, or be generated."""
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"the {a} {b}" for a in ("cat", "dog", "mat") for b in ("sat", "on", "the")]
    alone = [ModelSubject(*network, title="x", text=text) for text in texts]
    subject = ModelSubject(*network, title="x", text="the")
    first = subject.run(subject.about()["runs"][0])
    with ThreadPoolExecutor(3) as threads:
        drawn = threads.submit(
            lambda: list(subject.generate(first, tokens=25, temperature=1.0, seed=0))
        )
        runs = list(threads.map(subject.read, texts))
        drawn.result()
    for run, other in zip(runs, alone, strict=True):
        expected = other.run(other.about()["runs"][0])
        assert len(run.values) == 2
        for given, value in zip(run.values, expected.values, strict=True):
            near(torch.stack(given), torch.stack(value))


def test_a_text_beyond_the_context_is_cut_and_it_is_said(subject):
    run = subject.read("cat" * 50)
    described = run.describe()
    assert described["length"] == 31
    assert "the first 31" in described["notes"][0]


@pytest.mark.parametrize("text", ["", "x" * 200_001])
def test_texts_that_are_refused(subject, text):
    with pytest.raises(PageError):
        subject.read(text)


def test_a_run_is_cached_by_its_text(subject):
    first, again = subject.read("the cat"), subject.read("the cat")
    assert first is again
    assert isinstance(first, Run)
    assert subject.read("the dog").id != first.id


def test_the_oldest_runs_are_evicted(subject):
    first = subject.read("the cat")
    for n in range(16):
        subject.read(f"the cat {n}")
    with pytest.raises(KeyError):
        subject.run(first.id)
    assert subject.read("the cat").id == first.id
