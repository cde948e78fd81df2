"""The lookups of `tools/thought_curves.py`, and what is measured of them."""

import pytest
import torch

import regard
from thought_curves import left, lookup, read, sentences, writes


@pytest.mark.parametrize("seed", range(9))
def test_a_lookup_has_one_answer_in_two_steps(seed):
    one = lookup(seed)
    where, answer = one.steps
    every = sentences(one.text)
    assert " ".join(every) == one.text
    assert len(every) == 6
    whose = one.question.removeprefix("Where is ").removesuffix("?")
    assert [part for part in every if whose in part] == [where]
    (box,) = where.removeprefix(f"{whose} is in the ").removesuffix(".").split(" box")[:1]
    assert [part for part in every if part.startswith(f"The {box} box")] == [answer]
    assert answer == f"The {box} box is in the{one.answer}."
    assert one.text.count(one.answer) == 1
    assert lookup(seed) == one
    assert lookup(seed + 9) != one


def test_places_are_those_of_the_sentences_and_losses_those_of_other_texts():
    model = regard.models.open()
    one = lookup(1)
    found = read(model, one)
    asked = found.asked
    ids = asked.ids.tolist()
    said = model.tokenizer.decode(ids[found.said.tokens])
    assert said.strip() == f"{one.thought}{one.answer}".strip()
    assert model.tokenizer.decode(ids[asked.answer.tokens]).strip() in one.answer
    for step, places in zip(one.steps, found.sentences, strict=False):
        assert model.tokenizer.decode([ids[at] for at in places]).strip() == step
    assert sorted(at for places in found.sentences for at in places) == asked.places
    assert not writes(model, one, [])  # it has read made-up stories of a small world
    text = asked.ids.clone()
    text[found.sentences[0]] = model.tokenizer.end
    with torch.no_grad():
        before, after = (
            model.logits_at(own, [-2]).double().log_softmax(-1)[0, ids[-1]]
            for own in (asked.ids, text)
        )
    (change,) = left(model, found, asked.answer, found.sentences[:1])
    assert change == pytest.approx(float(after - before), abs=1e-4)
