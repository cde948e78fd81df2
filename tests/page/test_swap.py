"""Two texts that differ in a word: what the server answers of patching one into the other."""

import copy

import pytest
import torch

from regard.page.subjects import ModelSubject

TEXT, OTHER = "the cat, the dog", "sat on, the dog"  # after them other tokens are likeliest
SAME = "the cat sat on the", "sat on sat on the"  # after both one token is
LONGER = "the parrot, the dog"


@pytest.fixture(scope="module")
def doubled(network):
    """The untrained model in float64, which goes through the written-out computation."""
    model, tokenizer = network
    return copy.deepcopy(model).double(), tokenizer


@pytest.fixture(scope="module")
def asked(ask_once, doubled, lines):
    """A client, and how to open two texts and patch the second into the first."""
    client = ask_once(ModelSubject(*doubled, title="a model", text=TEXT))

    def ask(text, other):
        runs = [client.post("/api/runs", json={"text": one}).json() for one in (text, other)]
        answer = client.get(f"/api/runs/{runs[0]['id']}/patched?other={runs[1]['id']}")
        return runs, lines(answer)

    return client, ask


@pytest.fixture
def number(doubled):
    """The text's logit of a token − that of another, with some inputs of W_O seen or replaced."""
    model, tokenizer = doubled

    def read(text, answers, hooks):
        handles = [
            model.h[layer].attn.c_proj.register_forward_pre_hook(hook)
            for layer, hook in hooks.items()
        ]
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer.encode(text)]))[0, -1]
        for handle in handles:
            handle.remove()
        now, then = answers
        lead = logits.log_softmax(-1)[now] if now == then else logits[then] - logits[now]
        return lead.item()

    return read


@pytest.mark.parametrize("texts", [(TEXT, OTHER), SAME])
def test_a_patched_head_is_its_context_of_the_other_text(asked, doubled, number, texts):
    text, other = texts
    runs, (*progress, last) = asked[1](text, other)
    answers = [one["next"][0]["token"] for one in runs]
    assert last["answers"] == answers
    assert (answers[0] == answers[1]) == (texts == SAME)
    layers, heads, size = 2, 3, doubled[0].config.head_dim
    assert progress[-1] == {"done": layers * heads, "total": layers * heads}
    contexts = {}

    def keep(layer):
        return lambda _, given: contexts.update({layer: given[0].clone()})

    def put(layer, head):
        def hook(_, given):
            context = given[0].clone()
            own = slice(head * size, (head + 1) * size)
            context[..., own] = contexts[layer][..., own]
            return (context,)

        return hook

    then = number(other, answers, {layer: keep(layer) for layer in range(layers)})
    now = number(text, answers, {})
    assert (last["unchanged"], last["other"]) == pytest.approx((now, then), abs=1e-9)
    for layer in range(layers):
        expected = [number(text, answers, {layer: put(layer, head)}) - now for head in range(heads)]
        assert last["values"][layer] == pytest.approx(expected, abs=1e-9)
        assert max(map(abs, expected)) > 1e-3


def test_what_can_not_be_patched_says_why(asked, refused, reader):
    client, ask = asked
    (plain, _), (line,) = ask(TEXT, LONGER)
    assert "patching needs equal positions; one text has " in line["error"]
    off = {"changes": [{"kind": "off", "layer": 0, "head": 1}]}
    changed = client.post(f"/api/runs/{plain['id']}/changed", json=off).json()["id"]
    for run, other, why in [
        (plain["id"], changed, "with changes"),
        (plain["id"], "nothing", "not open any more"),
    ]:
        answer = client.get(f"/api/runs/{run}/patched?other={other}")
        assert why in answer.json()["error"]
    answer = reader.get("/api/runs/0/patched?other=1")
    assert "there is no model" in refused(answer, 422)
