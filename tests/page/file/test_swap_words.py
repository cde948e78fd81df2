"""The words of a text: in its tokens, and which stand in the role of another."""

from regard.page.example import EXAMPLES, EXAMPLES_OF_REAL
from regard.view.tokens import readable, visible

RUN = """const runOf = ({ text, tokens }) => ({ text, tokens, length: tokens.length,
  labels: tokens.map(({ label }) => label) });
"""


def run_of(*pieces, text=None, added=()):
    """A run as the page has it, of pieces of text or of bytes."""
    tokens = [
        {"text": readable(piece), "label": visible(piece)} | ({"added": True} if k in added else {})
        for k, piece in enumerate(pieces)
    ]
    return {"text": "".join(pieces) if text is None else text, "tokens": tokens}


def test_a_token_is_of_the_word_that_it_stands_in(node):
    cases = [
        (run_of("At", " bed", "time", ","), [(0, "At"), (2, "bedtime"), (1, "bedtime"), (3, ",")]),
        (run_of("a", "\n", "b\tc", " "), [(1, None), (2, "b"), (3, None)]),
        (run_of("<s>", "It", "'s", added=[0], text="It's"), [(0, None), (2, "It's")]),
        (run_of(" The", " cat", text="The cat"), [(0, "The"), (1, "cat")]),
        (
            run_of("x <0x41>", "<0xE2>", "<0x82>", "<0xAC>", "5", text="x <0x41>€5"),
            [(2, "€"), (4, "5")],
        ),
        (run_of("the", "##m", " x", text="them x"), [(0, "them"), (1, None), (2, None)]),
    ]
    code = (
        RUN
        + """return given.map(([run, asked]) =>
      asked.map(([token]) => wordAt(runOf(run), token)?.word ?? null));"""
    )
    found = node({"swap_words.js": "wordAt"}, code, cases)
    assert found == [[word for _, word in asked] for _, asked in cases]


def test_words_in_the_role_of_another_are_found(node):
    expected = [
        (EXAMPLES["a rhyme"], "bat", ["animals", "snail"]),
        (EXAMPLES["a pronoun"], "Finn", ["Hannah", "Sooty", "Noodle"]),
        (EXAMPLES["a pronoun"], "cat", ["dog"]),
        (EXAMPLES["a pronoun"], "he", ["she", "they"]),
        (EXAMPLES["who has it?"], "guitar", ["kite"]),
        (EXAMPLES["who has it?"], "At", []),
        (EXAMPLES_OF_REAL["who gets it?"], "John", ["Mary"]),
        (EXAMPLES_OF_REAL["copying"], "walnut", ["silver"]),
        ("The barn's code is 7291, the shed's was 4836.", "7291", ["4836"]),
    ]
    code = "return given.map(([text, word]) => peersOf(text, { word, start: 0, stop: 0 }));"
    found = node({"swap_words.js": "peersOf"}, code, [[text, word] for text, word, _ in expected])
    assert found == [peers for _, _, peers in expected]


def test_places_in_a_text_are_those_in_the_other(node):
    one, other = run_of("a", " b", " c", " b", " d"), run_of("a", " x", "y", "z", " c", " b", " d")
    code = (
        RUN
        + """const [one, other] = given.map(runOf);
    return [one.labels.map((_, k) => placeIn(other, one, k)),
      other.labels.map((_, k) => placeIn(one, other, k))];"""
    )
    there, back = node({"swap_words.js": "placeIn"}, code, [one, other])
    assert there == [0, 1, 4, 5, 6]
    assert back == [0, 1, 1, 1, 2, 3, 4]
