"""What a worker answers of a text is the server's answer: runs, heads, changes, effects, tokens."""

from threading import Event

import pytest
import torch

import regard
from regard.gpt import GPT, BPETokenizer, GPTConfig
from regard.gpt.bpe import END
from regard.page._changes import Changes
from regard.page._windows import Window
from regard.page.file.live import pack_model, tokenizer_file
from regard.page.subjects import ModelSubject

TEXT = "the cat sat on the mat, the dog sat on the cat; the cat sat on the dog, the mat"
OTHER = TEXT.replace("mat, the dog", "dog, the mat")
# As float32 rounds on either side, through layers of weights that are much larger than usual.
NEAR = 2e-5
CHANGES = [
    {"kind": "off", "layer": 1, "head": 0},
    {"kind": "cut", "layer": None, "head": None, "queries": None, "keys": [0, 2]},
    {"kind": "cut", "layer": 0, "head": 1, "queries": [5, 9], "keys": [3, 7]},
]


def with_gains(model):
    """Give the final norm gains that differ, as trained ones do; and biases."""
    with torch.no_grad():
        for parameter in model.ln_f.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def subject():
    """A small model with windows, whose heads differ."""
    tokenizer = BPETokenizer.train([TEXT], vocab_size=270, end=True)
    torch.manual_seed(1)
    options = {"window": 11, "global_every": 2, "positions": "rotary", "qk_norm": True}
    shape = {"vocab_size": tokenizer.vocab_size, "context": 41, "layers": 2, "heads": 2, "dim": 12}
    model = with_gains(GPT(GPTConfig(**shape, **options, initial_std=0.7)))
    with torch.no_grad():
        for block in model.h:
            block.attn.c_proj.bias.normal_()
    return ModelSubject(model, tokenizer, title="m", text=TEXT), model, tokenizer


BEGIN = """
const { config, tokenizer, tensors } = given.model;
const subject = new Subject(await modelOf(given.model, given.numbers), tokenizerOf(tokenizer), "m");
const plain = finished(subject.read(given.text));
"""
IMPORTS = {
    "live/subject.js": "Subject",
    "live/tokenizer.js": "tokenizerOf",
    "kernels/pattern.js": "averaged, cell, column, pictures, readouts, row, sketched, walk",
}


@pytest.fixture(scope="module")
def ask(node, subject):
    _, model, tokenizer = subject
    description, numbers = pack_model(model, tokenizer_file(tokenizer))

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


def test_the_head_that_writes_the_next_token_is_the_servers(ask, subject):
    server, _, _ = subject
    answer = ask("return finished(subject.writer(plain));")
    assert_equal(answer, server.writer(server.read(TEXT)), near=1e-4)


OPEN = """
let open = 0;
const { Cache } = await import("./static/kernels/cache.js");
const { branch, release } = Cache.prototype;
const { cache } = subject.model;
subject.model.cache = (capacity) => (open++, cache.call(subject.model, capacity));
Cache.prototype.branch = function (...sizes) { open++; return branch.apply(this, sizes); };
Cache.prototype.release = function () { if (this.layers.length) open--; release.call(this); };
"""


def test_a_text_that_is_asked_for_twice_at_once_is_one_run(ask):
    code = (
        OPEN
        + """
    const both = [subject.read("the mat"), subject.read("the mat")];
    for (const one of both) one.next();
    const [first, second] = both.map((one) => finished(one));
    return { same: first.name === second.name, there: subject.run(first.name) === first, open };"""
    )
    assert ask(code) == {"same": True, "there": True, "open": 1}


def test_a_run_with_changes_keeps_the_text_as_it_is_open(ask):
    code = """
    const text = finished(subject.read("the dog"));
    const changed = finished(subject.change(text, [{ kind: "off", layer: 0, head: 0 }]));
    for (let k = 1; k <= 40; k++) {
      finished(subject.read("mat ".repeat(k)));
      subject.run(changed.name);
    }
    const kept = subject.run(text.name) === text;
    for (let k = 1; k <= 40; k++) finished(subject.read("dog ".repeat(k)));
    const names = [...subject.runs.values()].map(({ name }) => name);
    const gone = !names.includes(text.name) && !names.includes(changed.name);
    return { kept, gone, count: names.length };"""
    answer = ask(code)
    assert (answer["kept"], answer["gone"]) == (True, True)
    assert 10 < answer["count"] <= 17


def test_what_is_measured_of_a_text_that_was_closed_is_an_error(ask):
    code = """
    const text = finished(subject.read("the dog sat"));
    const measuring = subject.effects(text, "keys");
    for (let k = 0; k < 2; k++) measuring.next();
    for (let k = 1; k <= 40; k++) finished(subject.read("mat ".repeat(k)));
    try { finished(measuring); } catch ({ message }) { return message; }"""
    assert "not open any more" in ask(code)


def test_how_long_a_slow_model_takes_is_said_beforehand(ask):
    code = """
    const said = [];
    subject.tell = (seconds) => said.push(seconds);
    subject.pace = 500;
    const { ids } = finished(subject.read("on the mat"));
    finished(subject.read("on the mat!"));
    return { said, tokens: ids.length };"""
    answer = ask(code)
    assert answer["tokens"] > 2
    assert answer["said"] == [answer["tokens"] / 2, None]  # and of the next one what it took


def test_a_token_that_begins_every_text_is_marked(node, subject):
    _, model, tokenizer = subject
    file = tokenizer_file(tokenizer)
    end = file["added_tokens"][0]
    template = {"SpecialToken": {"id": end["content"], "type_id": 0}}
    file["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [template, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [template, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {
            end["content"]: {"id": end["content"], "ids": [end["id"]], "tokens": [end["content"]]}
        },
    }
    description, numbers = pack_model(model, file)
    given = {"model": description, "numbers": numbers, "text": "the cat"}
    answer = node(IMPORTS, BEGIN + "return subject.describe(plain).tokens;", given)
    assert answer[0] == {"text": END, "label": END, "added": True}
    assert [one["text"] for one in answer[1:]] == tokenizer.tokens(tokenizer.encode("the cat"))
    assert not any("added" in one for one in answer[1:])


def test_heads_that_rest_are_named_as_the_server_names_them(node, shipped):
    model, tokenizer = shipped
    text = 'A green parrot lived in the tent. Leila said to it, "There is one."'
    description, numbers = pack_model(model, tokenizer_file(tokenizer))
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


@pytest.fixture(scope="module")
def later():
    """A model of later architecture, whose heads rest on keys of their own."""
    tokenizer = BPETokenizer.train([TEXT], vocab_size=270, end=True)
    torch.manual_seed(5)
    shape = {"vocab_size": tokenizer.vocab_size, "context": 37, "layers": 3, "heads": 4, "dim": 20}
    options = {"groups": 2, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}
    options |= {"positions": "rotary", "head_width": 6, "rotary_frequencies": (0.9, 0.21, 0.013)}
    model = with_gains(GPT(GPTConfig(**shape, **options, initial_std=0.9)))
    return ModelSubject(model, tokenizer, title="m", text=TEXT), model, tokenizer


SEEN = """
const changes = given.changes ?? [];
const one = changes.length ? finished(subject.change(plain, changes)) : plain;
const { layers, heads } = subject.model.config;
const range = [0, one.ids.length];
const answers = given.views.map((shows) => {
  const whole = Array.from({ length: layers * heads }, (_, k) =>
    subject.head(one, Math.floor(k / heads), k % heads, shows));
  const layer = whole.slice(heads, 2 * heads);
  const [head] = layer.slice(-1);
  const along = (some) => { for (const steps = readouts(some);;) {
    const { done, value } = steps.next();
    if (done) return value.values;
  } };
  return {
    maps: whole.map((head) => finished(averaged([head], range, range, 1)).values),
    mean: finished(averaged(layer, range, range, 3)).values,
    pictures: finished(pictures(layer, 7)).values,
    sketch: finished(sketched([head], 4)).values,
    row: row(whole, 13),
    column: column(layer, 2),
    along: [along([head]), along(layer)],
    cells: [[13, 2], [0, 0], [3, 9]].map(([query, key]) => cell([head], query, key)),
    steps: [walk(head, 13), walk(head, 11, { first: 2, count: 3, picked: 1 })],
  };
});
"""


def numbers_in(answer):
    """The numbers of lists of lists; JSON has null in place of NaN."""
    if isinstance(answer, list):
        return [number for part in answer for number in numbers_in(part)]
    return [float("nan") if answer is None else answer]


def expected_of(run):
    """What the server answers of a run in a view, as `SEEN` has it of a worker's."""
    length, last = len(run.tokens), len(run.layers[1].heads) - 1
    whole = (0, length)
    places = [(layer, head) for layer in range(len(run.layers)) for head in range(last + 1)]
    now, place = Event(), (1, last)
    tensors = {
        "maps": torch.stack([run.map(*one, Window(whole, whole, 1), now) for one in places]),
        "mean": run.map(1, "mean", Window(whole, whole, 3), now),
        "pictures": run.thumbnails(1, 7),
        "sketch": run.sketch(*place, 4),
        "row": run.row("mean", "mean", 13),
        "column": run.column(1, "mean", 2),
        "along": torch.stack([run.readouts(*place), run.readouts(1, "mean")]),
    }
    cells = [run.cell(*place, query, key) for query, key in [(13, 2), (0, 0), (3, 9)]]
    steps = [run.steps(*place, 13), run.steps(*place, 11, first=2, count=3, picked=1)]
    return tensors, {"cells": cells, "steps": steps}


@pytest.mark.parametrize(
    ("which", "changes"),
    [("subject", []), ("later", []), ("later", CHANGES)],
    ids=["windows", "heads that rest", "changed"],
)
def test_every_view_is_the_servers(node, request, which, changes):
    server, model, tokenizer = request.getfixturevalue(which)
    description, numbers = pack_model(model, tokenizer_file(tokenizer))
    plain = server.read(TEXT)
    run = server.change(plain, Changes(changes=changes).changes) if changes else plain
    views = ["moved", "without"] if changes else ["weight", "moved", "toward", "without"]
    given = {"model": description, "numbers": numbers, "text": TEXT, "views": views}
    code = BEGIN + SEEN + "return { answers, why: subject.objections(one) };"
    answer = node(IMPORTS, code, given | {"changes": changes})
    objections = {one["name"]: one["objection"] for one in run.describe_views()}
    assert answer["why"] == {name: why for name, why in objections.items() if why is not None}
    for view, own in zip(views, answer["answers"], strict=True):
        tensors, others = expected_of(run.seen(view))
        for name, tensor in tensors.items():
            given = torch.tensor(numbers_in(own.pop(name))).view_as(tensor)
            scale = max(1.0, float(tensor.nan_to_num().abs().max()))
            torch.testing.assert_close(
                given / scale,
                tensor / scale,
                rtol=0,
                atol=NEAR,
                equal_nan=True,
                msg=lambda text, what=(view, name): f"{what}: {text}",
            )
        assert_equal(own, others, near=2e-4)
    if which == "later":  # or there were no sinks to leave out
        heads = [run.seen(view).head(1, 0).dense() for view in ("weight", "without")]
        assert (heads[1] - heads[0]).abs().max() > 0.3


@pytest.mark.parametrize("over", ["heads", "keys"])
def test_what_the_next_token_rests_on(ask, subject, over):
    server, _, _ = subject
    reports = []
    expected = server.effects(server.read(TEXT), over, lambda *done: reports.append(done))
    *progress, measured = ask("return finished(subject.effects(plain, given.over));", over=over)
    assert [one["total"] for one in progress] == [len(progress)] * len(progress)
    assert_equal(measured, expected)
    assert max(map(abs, torch.tensor(measured["effects"]).flatten().tolist())) > 0.01


def test_many_heads_begin_with_layers_that_matter_and_go_on_where_they_were_called_off(node):
    tokenizer = BPETokenizer.train([TEXT], vocab_size=270, end=True)
    torch.manual_seed(2)
    shape = {"vocab_size": tokenizer.vocab_size, "context": 41, "layers": 3, "heads": 22, "dim": 44}
    model = with_gains(GPT(GPTConfig(**shape, initial_std=0.5)))
    with torch.no_grad():
        model.h[2].attn.c_proj.weight.mul_(4)  # so that it matters most
    code = """
    const measuring = subject.effects(plain, "heads");
    const lines = [];
    while (lines.length < 3 + 7) lines.push(...[measuring.next().value].filter(Boolean));
    measuring.return();
    return { lines, rest: finished(subject.effects(plain, "heads")) };"""
    description, numbers = pack_model(model, tokenizer_file(tokenizer))
    answer = node(IMPORTS, BEGIN + code, {"model": description, "numbers": numbers, "text": TEXT})
    server = ModelSubject(model, tokenizer, title="m", text=TEXT)
    run = server.read(TEXT)
    expected = server.effects(run, "heads", lambda *_, **__: None)
    assert_equal(answer["rest"][-1], expected, near=1e-4)
    together = []
    for layer in range(3):
        with regard.intervene(model) as change:
            change.ablate(layers=layer)
            logits = model(torch.tensor(tokenizer.encode(TEXT)))[-1].detach()
        together.append(float(logits.log_softmax(-1)[expected["token"]] - expected["unchanged"]))
    order = sorted(range(3), key=lambda layer: -abs(together[layer]))
    assert order[0] == 2
    assert [line.get("over") for line in answer["lines"]] == ["layers"] * 3 + [None] * 7
    assert [line["done"] for line in answer["lines"]] == [1, 2, 3, *range(1, 8)]
    lines = answer["lines"][3:] + answer["rest"][:-1]
    assert len(lines) == 66  # none is measured twice
    assert [one[:2] for one in answer["rest"][0]["measured"]] == [[order[0], h] for h in range(8)]
    measured = {(layer, head) for line in lines for layer, head, _ in line["measured"]}
    assert len(measured) == 66
    assert [line["measured"][-1][0] for line in lines] == [
        layer for layer in order for _ in range(22)
    ]


def test_heads_of_another_text_are_patched_as_the_server_patches_them(ask, subject):
    server, _, _ = subject
    then = server.read(OTHER)
    now = server.read(TEXT)
    expected = server.patch(now, then.id, lambda *_: None)
    code = """
    const then = finished(subject.read(given.other));
    const longer = finished(subject.read(given.text + "s"));
    const [first, again] = [then, then].map((one) => finished(subject.patch(plain, one)));
    try {
      finished(subject.patch(plain, longer));
    } catch (error) {
      return [first, again, error.message];
    }
    """
    (*progress, measured), again, refused = ask(code, other=OTHER)
    assert progress[-1] == {"done": 4, "total": 4}
    assert_equal(measured, expected)
    assert again == [measured]  # it was measured once
    assert min(abs(value) for row in measured["values"] for value in row) > 1e-3
    assert refused.startswith("Patching needs equal positions; one text has ")


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
