"""Accuracy on decided words, with predictors whose right answers are known."""

from itertools import pairwise

import torch

from regard.gpt import BPETokenizer, CharTokenizer
from regard.gpt.link_accuracy import LinkAccuracy, bigram, likeliest, link_accuracy
from regard.gpt.stories import Kind, stories

SOME = list(stories(0, 19))  # more than a batch
TEXTS = [story.text for story in SOME]
TOKENIZER = BPETokenizer.train(TEXTS, vocab_size=307)  # most words are several tokens
LINKS = {kind: sum(link.kind is kind for s in SOME for link in s.links) for kind in Kind}


def shifted(ids):
    """The next token itself, which a perfect predictor gives."""
    return torch.cat([ids[:, 1:], ids[:, :1]], dim=-1)


def test_a_perfect_predictor_is_right_everywhere_and_a_wrong_one_nowhere():
    perfect = link_accuracy(shifted, TOKENIZER, SOME, context=10_000)
    assert perfect == {kind: LinkAccuracy(count, count) for kind, count in LINKS.items()}
    wrong = link_accuracy(lambda ids: shifted(ids) + 1, TOKENIZER, SOME, context=10_000)
    assert wrong == {kind: LinkAccuracy(0, count) for kind, count in LINKS.items()}


def test_a_word_counts_only_if_each_of_its_tokens_is_predicted():
    story = SOME[0]
    link = story.links[-1]
    tokenizer = CharTokenizer(story.text)
    for place in range(*link.decided):

        def predict(ids, place=place):
            out = shifted(ids)
            out[0, place - 1] += 1  # the prediction of one character
            return out

        right = sum(
            one.right for one in link_accuracy(predict, tokenizer, [story], context=9999).values()
        )
        assert right == len(story.links) - 1


def test_words_beyond_the_context_are_left_out():
    story = SOME[0]
    tokenizer = CharTokenizer(story.text)
    context = story.links[2].decided[1]  # one past the last character of the third
    counts = link_accuracy(shifted, tokenizer, [story], context=context)
    assert sum(one.count for one in counts.values()) == 3
    counts = link_accuracy(shifted, tokenizer, [story], context=context - 1)
    assert sum(one.count for one in counts.values()) == 2


def test_a_bigram_is_the_most_frequent_pair():
    ids = torch.tensor([3, 1, 3, 2, 3, 1, 0, 4])
    predict = bigram(ids, vocab_size=5)
    assert predict(torch.tensor([[3, 1, 3]])).tolist()[0][::2] == [1, 1]
    for first in range(4):
        following = [int(b) for a, b in pairwise(ids) if a == first]
        best = max(following.count(x) for x in following)
        assert following.count(int(predict(torch.tensor([[first]])))) == best


def test_the_likeliest_token_of_a_model():
    model = torch.nn.Embedding.from_pretrained(torch.tensor([[0.1, 0.7], [0.9, 0.2]]))
    assert likeliest(model)(torch.tensor([[0, 1, 1]])).tolist() == [[1, 0, 0]]


def test_without_links_there_is_no_share():
    none = link_accuracy(shifted, TOKENIZER, [], context=512)
    assert all(one.count == 0 and one.share != one.share for one in none.values())
