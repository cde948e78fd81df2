"""What the pages say of SmolLM2 is so for its reason: a small case of each, with its control.

The pages themselves run in `make thorough`. These take seconds once the model is open.
"""

import pytest
import torch

import regard

pytestmark = pytest.mark.real

SENTENCE = "When {} and {} went to the store, {} gave a drink to"
FOUR = [(17, 4), (20, 0), (23, 3), (29, 1)]  # page 15: they carry who gives


def says(model, text):
    return model.tokenizer.tokens([int(model(text)[-1].argmax())])[0]


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (SENTENCE.format("Mary", "John", "{}"), {"John": " Mary", "Mary": " John"}),
        (SENTENCE.format("John", "Mary", "{}"), {"John": " Mary", "Mary": " John"}),
        (SENTENCE.format("Sarah", "Mark", "{}"), {"Mark": " Sarah", "Sarah": " Mark"}),
        (
            "The capital of {} is",
            {"France": " Paris", "Japan": " Tokyo", "Spain": " Madrid"},
        ),
    ],
)
def test_the_answer_flips_with_the_word_that_decides_it(smollm2, text, answers):
    said = {word: says(smollm2, text.format(word)) for word in answers}
    assert said == answers


def test_the_row_of_whatever_stands_first_is_short_and_no_other_is(smollm2):
    keep = regard.lens.norms(smollm2)

    def relative(text, *keys):
        """‖v W_O‖ of keys beside the median of the others, over all heads the median."""
        with regard.record(smollm2, keep=keep) as recording:
            smollm2(text)
        length = torch.stack([layer.kept["norm"][0] for layer in recording.layers])
        for key in keys:
            others = [other for other in range(1, length.shape[-1]) if other != key]
            yield (length[..., key] / length[..., others].median(-1).values).median().item()

    when = SENTENCE.format("Mary", "John", "John")
    first, *later = relative(when, 0, 1, 3, 9)
    assert first < 0.3 < 0.8 < min(later)
    (mary,) = relative(when.removeprefix("When"), 0)  # " Mary" comes first now
    assert mary < 0.3


def test_one_head_leaves_the_note_that_induction_heads_look_for(smollm2):
    half = 23
    generator = torch.Generator().manual_seed(5)
    line = torch.randperm(smollm2.vocab_size - 1000, generator=generator)[:half] + 1000
    query = torch.arange(half, 2 * half)

    def found(*off):
        """The weight of induction heads on what followed their word, and the nats it costs."""
        with torch.no_grad(), regard.intervene(smollm2) as change, regard.record(smollm2) as run:
            for layer, head in off:
                change.ablate(layers=layer, heads=head)
            logits = smollm2(torch.cat([line, line]))
        weights = [
            run[layer][0, head].dense()[query, query - half + 1].mean()
            for layer, head in ((17, 3), (17, 4), (18, 6))
        ]
        nats = torch.nn.functional.cross_entropy(logits[half:-1], line[1:])
        return torch.stack(weights).mean().item(), nats.item()

    weight, nats = found()
    without, lost = found((16, 0))
    beside, kept = found((11, 1), (2, 1))  # they look at the token before just as much
    assert weight > 0.5
    assert without < 0.2 < 0.5 < beside
    assert lost > nats + 3 > kept
    copying = [(17, 3), (17, 4), (17, 5), (18, 6), (18, 7), (20, 6), (23, 7)]
    others = [(17, 0), (17, 1), (17, 7), (18, 0), (18, 4), (20, 1), (23, 5)]
    assert found(*copying)[1] > nats + 4 > found(*others)[1] + 2


def test_four_heads_carry_who_gives_and_others_do_not(smollm2):
    one, other = "Emma", "Paul"
    text, swap, same = (
        form.format(one, other, giver)
        for form, giver in (
            (SENTENCE, other),
            (SENTENCE, one),
            ("When {} and {} came to the farm, {} sold a horse to", one),
        )
    )
    names = [smollm2.token(f" {name}") for name in (one, other)]

    def preference(of, heads=(), source=None):
        contexts = regard.lens.contexts(smollm2, [source]) if heads else None
        with torch.no_grad(), regard.intervene(smollm2) as change:
            for layer, head in heads:
                change.patch(layers=layer, heads=head, context=contexts[layer])
            logits = smollm2(of)[-1][names]
        return (logits[0] - logits[1]).item()

    end, start = preference(text), preference(swap)
    assert start < -1 < 1 < end

    def share(heads, source):
        return (preference(swap, heads, source) - start) / (end - start)

    assert share(FOUR, text) > 0.8
    assert abs(share([(layer, (head + 4) % 9) for layer, head in FOUR], text)) < 0.4
    assert abs(share(FOUR, same)) < 0.4
