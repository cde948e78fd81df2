"""What a worker answers of a text is the server's answer: runs, heads, changes, effects, tokens."""

import pytest
import torch

from regard.gpt import GPT, BPETokenizer, GPTConfig
from regard.page._changes import Changes
from regard.page.file.live import pack_model
from regard.page.subjects import ModelSubject

TEXT = "the cat sat on the mat, the dog sat on the cat; the cat sat on the dog, the mat"
# As float32 rounds on either side, through layers of weights that are much larger than usual.
NEAR = 2e-5
CHANGES = [
    {"kind": "off", "layer": 1, "head": 0},
    {"kind": "cut", "layer": None, "head": None, "queries": None, "keys": [0, 2]},
    {"kind": "cut", "layer": 0, "head": 1, "queries": [5, 9], "keys": [3, 7]},
]


@pytest.fixture(scope="module")
def subject():
    """A small model with windows, whose heads differ."""
    tokenizer = BPETokenizer.train([TEXT], vocab_size=270, end=True)
    torch.manual_seed(1)
    options = {"window": 11, "global_every": 2, "positions": "rotary", "qk_norm": True}
    shape = {"vocab_size": tokenizer.vocab_size, "context": 41, "layers": 2, "heads": 2, "dim": 12}
    model = GPT(GPTConfig(**shape, **options, initial_std=0.7))
    return ModelSubject(model, tokenizer, title="m", text=TEXT), model, tokenizer


BEGIN = """
const { config, tokenizer, tensors } = given.model;
const subject = new Subject(await modelOf(given.model, given.numbers), tokenizerOf(tokenizer), "m");
const plain = finished(subject.read(given.text));
"""
IMPORTS = {
    "live/subject.js": "Subject",
    "live/tokenizer.js": "tokenizerOf",
    "kernels/pattern.js": "averaged, row, sketched, walk",
}


@pytest.fixture(scope="module")
def ask(node, subject):
    _, model, tokenizer = subject
    description, numbers = pack_model(model, tokenizer)

    def answer(code, **data):
        given = {"model": description, "numbers": numbers, "text": TEXT} | data
        return node(IMPORTS, BEGIN + code, given)

    return answer


def assert_equal(given, expected, near=NEAR):
    """Compare answers: numbers nearly, all else exactly, and no field that is missing."""
    if isinstance(expected, float):
        assert given == pytest.approx(expected, abs=near, rel=1e-4)
    elif isinstance(expected, dict):
        assert given.keys() == expected.keys()
        for name, value in expected.items():
            assert_equal(given[name], value, near)
    elif isinstance(expected, list):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            assert_equal(one, other, near)
    else:
        assert given == expected


def described(run):
    """As the page gets it, but for its name and what the page adds."""
    description = run.describe()
    del description["id"], description["values"]
    return description


DESCRIBED = """
const { id, labels, letters, ...rest } = subject.describe(one);
return { description: rest, """


def test_a_text_is_read_as_the_server_reads_it(ask, subject):
    server, _, tokenizer = subject
    run = server.read(TEXT)
    code = "const one = plain;" + DESCRIBED + "heads: finished(subject.scores(plain)) };"
    answer = ask(code)
    assert_equal(answer["description"], described(run))
    assert_equal(answer["heads"], [run.scores(layer) for layer in range(2)])
    roles = {head["role"] for layer in answer["heads"] for head in layer["heads"]}
    assert len(tokenizer.encode(TEXT)) > 20  # there is something to compare
    assert len(roles) > 1


def test_heads_that_rest_are_named_as_the_server_names_them(node, shipped):
    model, tokenizer = shipped
    text = 'A green parrot lived in the tent. Leila said to it, "There is one."'
    description, numbers = pack_model(model, tokenizer)
    given = {"model": description, "numbers": numbers, "text": text}
    answer = node(IMPORTS, BEGIN + "return finished(subject.scores(plain));", given)
    run = ModelSubject(model, tokenizer, title="m", text=text).read(text)
    expected = [run.scores(layer) for layer in range(len(run.layers))]
    figures = [head for layer in expected for head in layer["heads"]]
    assert any(head["resting"] > 0.3 for head in figures)
    assert all(head["separator"] is not None for head in figures)
    assert_equal(answer, expected, near=1e-4)


def test_changed_attention_is_read_as_the_server_reads_it(ask, subject):
    server, _, _ = subject
    run = server.change(server.read(TEXT), Changes(changes=CHANGES).changes)
    code = """
    const one = finished(subject.change(plain, given.changes));
    const heads = [[0, 0], [0, 1], [1, 0]].map(([layer, head]) => subject.head(one, layer, head));
    const { length } = one.ids;
    const whole = (head) => finished(averaged([head], [0, length], [0, length], 1)).values;
    """
    code += DESCRIBED + "scores: finished(subject.scores(one)), maps: heads.map(whole),"
    code += "steps: heads.map((head) => walk(head, 7)) };"
    answer = ask(code, changes=CHANGES)
    assert_equal(answer["description"], described(run))
    for place, map_, steps in zip(
        [(0, 0), (0, 1), (1, 0)], answer["maps"], answer["steps"], strict=True
    ):
        dense = run.head(*place).dense()
        torch.testing.assert_close(torch.tensor(map_), dense.flatten(), rtol=0, atol=NEAR)
        assert_equal(steps, run.steps(*place, 7), near=1e-4)  # numbers of steps are large
    assert_equal(answer["scores"], [run.scores(layer) for layer in range(2)])


@pytest.mark.parametrize("block", [1, 8, 64])
def test_sketches_are_the_servers(ask, subject, block):
    server, _, _ = subject
    run = server.read(TEXT)
    code = """
    const heads = [0, 1].map((head) => subject.head(plain, 1, head));
    return [heads.slice(1), heads].map((some) => finished(sketched(some, given.block)));
    """
    for answer, place in zip(ask(code, block=block), [(1, 1), (1, "mean")], strict=True):
        expected = run.sketch(*place, block)
        assert (answer["rows"], answer["columns"]) == expected.shape
        actual = torch.tensor(answer["values"]).view_as(expected)
        torch.testing.assert_close(actual, expected, rtol=0, atol=NEAR)


@pytest.mark.parametrize("over", ["heads", "keys"])
def test_what_the_next_token_rests_on(ask, subject, over):
    server, _, _ = subject
    reports = []
    expected = server.effects(server.read(TEXT), over, lambda *done: reports.append(done))
    *progress, measured = ask("return finished(subject.effects(plain, given.over));", over=over)
    assert [one["total"] for one in progress] == [len(progress)] * len(progress)
    assert_equal(measured, expected)
    assert max(map(abs, torch.tensor(measured["effects"]).flatten().tolist())) > 0.01


@pytest.mark.parametrize("spans", [[(0, 3), (3, 9), (11, 14)], [(2, 20)]])
def test_what_the_next_token_looks_at_and_needs_of_passages(ask, subject, spans):
    server, _, _ = subject
    reports = []
    run = server.read(TEXT)
    expected = server.passages(run, spans, lambda *done: reports.append(done))
    code = "return finished(subject.passages(plain, given.spans));"
    *progress, measured = ask(code, spans=spans)
    done = [one["done"] for one in progress]  # the server runs several passages at once
    assert done == sorted(done)
    assert done[-1] == progress[-1]["total"]
    assert reports[-1][0] == reports[-1][1] > 0
    assert_equal(measured, expected)
    assert max(map(abs, measured["effects"])) > 0.01


def test_appending_and_generating_past_the_context(ask, subject):
    server, _, _ = subject
    run = server.read(TEXT)
    drawn = list(server.generate(run, tokens=29, temperature=0.9, seed=5))
    code = (
        """
    const options = { tokens: 29, temperature: 0.9, seed: 5 };
    const lines = finished(subject.generate(plain, options));
    const one = finished(subject.append(plain, 259));
    """
        + DESCRIBED
        + "lines };"
    )
    answer = ask(code)
    *tokens, last = answer["lines"]
    assert [line["token"] for line in tokens] == [step["token"] for step in drawn[:-1]]
    assert last["run"]["text"] == drawn[-1]["run"].text
    assert last["run"]["notes"] == list(drawn[-1]["run"].notes) != []
    assert_equal(answer["description"], described(server.append(run, 259)))


def test_a_text_that_begins_as_an_open_one_is_read_from_where_it_differs(ask):
    code = """
    const lengths = [];
    const read = subject.model.read.bind(subject.model);
    subject.model.read = (ids, ...more) => {
      lengths.push(ids.length);
      return read(ids, ...more);
    };
    const texts = [given.text + " on", given.text.slice(0, -3) + "hat", given.text + " on"];
    const runs = texts.map((text) => finished(subject.read(text)));
    return { lengths, same: runs[0] === runs[2] };
    """
    answer = ask(code)
    assert answer["same"]
    assert len(answer["lengths"]) == 2
    assert max(answer["lengths"]) <= 3
