"""What heads that are made to do one thing are called, on texts that repeat themselves or hardly.

Axes: T tokens.
"""

import pytest
import torch

import regard
from regard.gpt import load
from regard.record.forward_pass import forward_pass
from regard.record.heads import Heads
from regard.record.roles import ENOUGH

SENTENCE = ["the", "old", "cat", "sat", "down", "on", "a", "red", "mat", "."]
MEETING = [*SENTENCE, "and", "so", *SENTENCE, "while", "dogs", "ran"]
TWICE = [f"t{i}" for i in range(13)] * 2 + ["end"]
COLUMN = 5


def numbered(tokens):
    return torch.tensor([tokens.index(token) for token in tokens])


def relation(kind, ids):
    i, j = torch.arange(len(ids))[:, None], torch.arange(len(ids))
    return {
        "induction": (j > 0) & (ids[:, None] == ids.roll(1)) & (j <= i - 2),
        "duplicate": (j > 0) & (ids[:, None] == ids) & (j <= i - 2),
        "previous": j == i - 1,
        "column": (j == COLUMN).expand(len(ids), -1),
        "columns": (j % 4 == 1).expand(len(ids), -1),
    }[kind]


def heads_of(tokens, kinds, strength=6.0):
    """Score heads that do so much of one thing each."""
    scores = torch.stack([strength * relation(kind, numbered(tokens)) for kind in kinds])
    keys = torch.eye(len(tokens)).expand(len(kinds), -1, -1)
    with regard.record(tokens=tokens) as recording:
        regard.attention(
            scores[None], keys[None].contiguous(), keys[None], mask=regard.causal(), scale=1.0
        )
    return recording.heads()


@pytest.mark.parametrize("tokens", [MEETING, TWICE], ids=["words", "twice"])
def test_each_head_has_the_role_it_was_built_for(tokens):
    names = [head.role for head in heads_of(tokens, ["induction", "duplicate", "previous"])]
    assert names == ["induction", "duplicate token", "previous token"]


@pytest.mark.parametrize("strength", [2.0, 4.0, 6.0, 9.0])
@pytest.mark.parametrize("tokens", [MEETING, TWICE], ids=["words", "twice"])
@pytest.mark.parametrize("kind", ["column", "columns"])
def test_a_head_that_attends_to_the_same_keys_from_everywhere_is_no_induction_head(
    kind, tokens, strength
):
    (head,) = heads_of(tokens, [kind], strength)
    assert head.role not in {"induction", "duplicate token"}


def test_a_column_that_is_the_only_successor_names_nothing():
    """The only token that repeats has one successor, at which the head always looks."""
    tokens = [f"t{i}" for i in range(29)]
    for place in (COLUMN - 1, *range(9, 28, 2)):
        tokens[place] = "again"
    head = heads_of(tokens, ["column"], 9.0)[0]
    assert head.induction > 0.5
    assert head.role not in {"induction", "duplicate token"}


def test_too_few_repeats_name_no_head_and_the_text_counts_them():
    again = ["the", "with", "statement"]
    tokens = [*again, "is", "used", "to", "wrap", "a", "block", ".", *again]
    heads = heads_of(tokens, ["induction", "previous"])
    assert heads[0].induction > 0.9
    assert [head.role == "induction" for head in heads] == [False, False]
    # The first token's copy has something to follow, and is no copy that counts.
    assert "induction: over 3 tokens, too few to name a head; " in repr(heads)
    assert "duplicate token: over 2 tokens, too few to name a head" in repr(heads)
    assert repr(heads[:1]).splitlines()[-1] == repr(heads).splitlines()[-1]


def test_as_many_repeats_as_are_needed_name_a_head():
    line = [f"t{i}" for i in range(ENOUGH + 1)]
    (head,) = heads_of([*line, *line[:ENOUGH]], ["induction"])
    assert head.role == "induction"
    (head,) = heads_of([*line, *line[: ENOUGH - 1]], ["induction"])
    assert head.role != "induction"


def test_queries_of_a_batch_are_counted_together():
    tokens = [TWICE, [f"s{i}" for i in range(len(TWICE))]]
    with regard.record(tokens=tokens) as recording:
        regard.attention(*torch.randn(3, 2, 1, len(TWICE), 3).unbind(), mask=regard.causal())
    assert "induction: over 13 tokens; duplicate token: over 12 tokens" in repr(recording.heads())


def test_without_tokens_the_text_omits_repeats():
    with regard.record() as recording:
        regard.attention(*torch.randn(3, 1, 1, 7, 3).unbind(), mask=regard.causal())
    assert "induction:" not in repr(recording.heads())
    assert "too few" not in repr(Heads([]))


@pytest.mark.parametrize("seed", range(5))
def test_random_heads_are_not_named_for_repeats(seed):
    generator = torch.Generator().manual_seed(seed)
    length = len(MEETING)
    # Sharper than heads at the start of training: scores with a standard deviation of 3.
    query, key = 3**0.5 * torch.randn(2, 1, 96, length, 16, generator=generator)
    with regard.record(tokens=MEETING) as recording:
        regard.attention(query, key, key, mask=regard.causal())
    names = [head.role for head in recording.heads()]
    assert names.count("induction") + names.count("duplicate token") <= 1  # of 96


DEMO = (
    "The with statement is used to wrap the execution of a block. The with statement "
    "allows common patterns to be reused: a block that is used again is a block of the with "
    "statement."
)
SHORT = "The with statement is used to wrap the execution of a block. The with statement"


@pytest.mark.parametrize("text", [DEMO, SHORT, "But they were all of them deceived."])
def test_the_command_and_the_recording_call_the_shipped_model_s_heads_alike(text):
    model, tokenizer = load()
    ids = torch.tensor(tokenizer.encode(text))
    with torch.no_grad(), regard.record(model, tokens=tokenizer) as recording:
        logits, patterns = model.with_patterns(ids)
    reading = forward_pass(ids, patterns, logits, name=tokenizer.tokens)
    names = [head.role for head in recording.heads()]
    assert [head.role.value for head in reading.heads] == names
    # One or two tokens of the shorter texts stood before: no role can be named.
    assert ("induction" in names) == (text == DEMO)
