"""A live report in a folder: its files, what the page makes of them, what goes wrong on the way."""

import hashlib
import json
import re

import pytest
import torch
from support.blocks import pair_in_blocks

import regard
from regard.gpt import GPT, CharTokenizer, GPTConfig
from regard.gpt.blocks import blocks_of
from regard.gpt.int8 import Int8Matrix
from regard.page import ModelSubject, PageError, needs_folder
from regard.page.file import live_folder
from regard.page.file.bundle import module
from regard.page.file.live import tokenizer_file
from regard.page.file.live_folder import as_int8, live_files, perplexity

LETTERS = CharTokenizer("abcdefghij klmnopqrstu")
ABOUT = {"limits": {"characters": 5, "tokens": 79, "generate": 3}}
OPTIONS = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "groups": 2, "bias": False}


def small(**options):
    torch.manual_seed(3)
    shape = {"vocab_size": 22, "context": 79, "layers": 3, "heads": 6, "dim": 36}
    return GPT(GPTConfig(**shape, **{"initial_std": 0.5} | options)).eval()


@pytest.fixture
def files(monkeypatch):
    """The files of a small model, in pieces that end within its tensors."""
    monkeypatch.setattr(live_folder, "PIECE", 4096 + 64)
    return made(as_int8(small(**OPTIONS)))


def made(model):
    """The files of a model whose matrices are of int8 or in blocks."""
    return dict(live_files(model, tokenizer_file(LETTERS), ABOUT, {"ids": [1], "notes": []}))


def description_of(files):
    return json.loads(re.search(r'id="model">(.*)</script>', files["index.html"].decode())[1])


def test_pieces_hold_every_tensor_and_are_named_by_what_they_hold(files):
    description = description_of(files)
    assert len(description["pieces"]) > 3
    for piece in [*description["pieces"], description["tokenizer"], description["threads"]]:
        data = files[piece["file"]]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (piece["bytes"], piece["sha256"])
        assert piece["sha256"].startswith(piece["file"].split("-")[1].split(".")[0])
    whole = b"".join(files[piece["file"]] for piece in description["pieces"])
    assert len(whole) == description["bytes"]
    state = as_int8(small(**OPTIONS)).state_dict()
    assert [one["name"] for one in description["tensors"]] == list(state)
    for one in description["tensors"]:
        tensor = state[one["name"]]
        data = whole[one["offset"] : one["offset"] + tensor.nbytes]
        assert torch.equal(torch.frombuffer(bytearray(data), dtype=tensor.dtype), tensor.flatten())
        assert one["offset"] % 64 == 0


BRINGS = """
const log = [];
const kept = new Map();
const damaged = new Set(given.damaged ?? []);
globalThis.fetch = async (url) => {
  log.push(url);
  if (given.broken === log.length) throw new Error("no network");
  const data = Uint8Array.from(Buffer.from(given.files[url.split("/").pop()], "base64"));
  if (damaged.has(url.split("/").pop())) data[0] ^= 1;
  return new Response(data);
};
globalThis.caches = { open: async () => ({
  keys: async () => Array.from(kept.keys(), (url) => ({ url })),
  match: async (url) => kept.get(url)?.clone(),
  put: async (url, answer) => void kept.set(url, answer),
  delete: async (url) => kept.delete(url),
}) };
const kernels = await Kernels.of(readFileSync("./static/kernels.wasm"));
let said = null;
const tell = (done, total) => (said = [done, total]);
const folder = await folderOf(given.model, "https://example.org/a/");
const bring = () => broughtModel(kernels, given.model, folder, tell);
"""
IMPORTS = {"live/pieces.js": "broughtModel, folderOf", "live/tokenizer.js": "tokenizerOf"}


def given(files, **data):
    from base64 import b64encode

    encoded = {name: b64encode(one).decode() for name, one in files.items()}
    return {"model": description_of(files), "files": encoded} | data


LOGITS = """
const { weights, tokenizer } = await bring();
const model = new GPT(kernels, given.model.config, weights);
const cache = model.cache(given.ids.length);
const logits = given.ids.map((id) => finished(model.read([id], cache)));
const atOnce = finished(model.read(given.ids, model.cache(given.ids.length)));
return { logits, atOnce, said, count: log.length, tokens: tokenizerOf(tokenizer).tokens([0, 1]) };
"""
# Inputs of 16 bits are off by 2e-5 of the largest, through 12 products; logits are some 3 large.
NEAR = 0.01


@pytest.mark.parametrize("options", [OPTIONS, {}, {"qk_norm": True, "hidden": 41}], ids=str)
def test_logits_are_those_of_the_same_rounded_matrices(node, options):
    model = as_int8(small(**options))
    ids = torch.randint(22, (71,), generator=torch.Generator().manual_seed(4))
    answer = node(IMPORTS, BRINGS + LOGITS, given(made(model), ids=ids.tolist()))
    expected = in_float64(model)(ids)
    assert expected.std() > 2
    torch.testing.assert_close(torch.tensor(answer["logits"]).double(), expected, rtol=0, atol=NEAR)
    torch.testing.assert_close(
        torch.tensor(answer["atOnce"]), torch.tensor(answer["logits"][-1]), rtol=0, atol=1e-3
    )
    assert answer["said"] == [answer["said"][1]] * 2
    assert answer["tokens"] == LETTERS.tokens([0, 1])


@torch.no_grad()
def in_float64(model):
    """The same numbers in a model that computes in float64."""
    exact = GPT(model.config)
    state = {
        f"{path}.weight": part.dequantized()
        for path, part in model.named_modules()
        if isinstance(part, Int8Matrix)
    }
    rest = {name: one for name, one in model.state_dict().items() if name in exact.state_dict()}
    exact.load_state_dict(state | rest)
    exact = exact.double().eval()

    def logits(ids):
        with torch.no_grad():
            return exact(ids)

    return logits


def test_rows_of_a_matrix_are_those_of_int8_times_their_scales(node, files):
    code = """
    const { weights } = await bring();
    return new GPT(kernels, given.model.config, weights).rows("wte", 3, 8, 36);"""
    rows = node(IMPORTS, BRINGS + code, given(files))
    expected = as_int8(small(**OPTIONS)).wte.dequantized()[3:8].flatten()
    assert torch.equal(torch.tensor(rows), expected)


def in_blocks(**options):
    """A model with blocks of every kind, those of a map in two, and the same in float64."""
    shape = {"vocab_size": 61, "context": 79, "layers": 3, "heads": 8, "dim": 256, "hidden": 512}
    return pair_in_blocks(GPTConfig(**shape | OPTIONS | options))


@pytest.mark.parametrize("options", [{"bias": True}, {"tied": False, "mlp": "gelu"}], ids=str)
def test_logits_are_those_of_the_numbers_of_the_blocks(node, options):
    model, exact = in_blocks(**options)
    ids = torch.randint(61, (71,), generator=torch.Generator().manual_seed(4))
    answer = node(IMPORTS, BRINGS + LOGITS, given(made(model), ids=ids.tolist()))
    with torch.no_grad():
        expected = exact(ids)
    # As of a step in tests/gpt/test_blocks.py, for thirteen maps in place of nine.
    near = 65 * 2**-17 * float(expected.std())
    logits = torch.tensor(answer["logits"]).double()
    torch.testing.assert_close(logits, expected, rtol=0, atol=near)
    at_once = torch.tensor(answer["atOnce"]).double()
    torch.testing.assert_close(at_once, expected[-1], rtol=0, atol=near)


def test_rows_of_a_matrix_in_blocks_are_its_numbers(node):
    model, _ = in_blocks(tied=False)
    code = """
    const { weights } = await bring();
    const model = new GPT(kernels, given.model.config, weights);
    return given.places.map((place) => model.rows(...place));"""
    places, expected = [], []
    for path, matrix in blocks_of(model).items():
        outputs, inputs = matrix.shape
        first, last = outputs // 3 - 5, outputs // 3 + 6  # on both sides of where parts meet
        places.append([path, first, last, inputs])
        expected.append(matrix.dequantized()[first:last].flatten())
    rows = node(IMPORTS, BRINGS + code, given(made(model), places=places))
    for one, other in zip(rows, expected, strict=True):
        assert torch.equal(torch.tensor(one), other)


def test_a_model_in_blocks_is_written_as_it_is(tmp_path, monkeypatch):
    from regard.page import _live

    model, _ = in_blocks()
    letters = CharTokenizer(" " + "".join(map(chr, range(63, 63 + 60))))
    options = {"tokenizer": letters, "text": "abc", "live": True}
    assert needs_folder(ModelSubject(model, letters, title="m", text="abc"))
    size = regard.report(model, tmp_path / "letters", **options)
    held = sum(rows.nbytes for blocks in blocks_of(model).values() for _, rows in blocks.parts)
    rest = sum(parameter.nbytes for parameter in model.parameters())
    beside = sum(
        file.stat().st_size
        for file in (tmp_path / "letters").iterdir()
        if not file.name.startswith("weights")
    )
    assert held + rest <= size - beside < held + rest + 64 * len(model.state_dict())
    html = (tmp_path / "letters" / "index.html").read_text()
    report = json.loads(re.search(r'id="report">(.*)</script>', html)[1])
    assert re.fullmatch(
        r"Its matrices are those of its file, in Q4_0, Q4_1, Q4_K, Q6_K, Q8_0: \d+ tokens of "
        r"English have perplexity [\d.]+\.",
        report["about"]["numbers"],
    )
    with pytest.raises(PageError, match="weights in blocks, and a page is made of one in floating"):
        regard.report(model, tmp_path / "letters.html", **options)
    monkeypatch.setattr(_live, "FOLDER_SIZE", held - 1)
    with pytest.raises(PageError, match=r"takes \d+ MB in a page, and at most"):
        regard.report(model, tmp_path / "other", **options)
    assert [one.name for one in tmp_path.iterdir()] == ["letters"]


def test_what_came_before_an_interruption_is_not_fetched_again(node, files):
    count = len(description_of(files)["pieces"]) + 1
    code = """
    const error = await bring().catch(({ message }) => message);
    const before = log.length;
    await bring();
    const between = log.length - before;
    await bring();
    return { error, before, between, after: log.length - before - between };"""
    answer = node(IMPORTS, BRINGS + code, given(files, broken=3))
    assert "no network). Reload the page to go on; what came is kept" in answer["error"]
    assert (answer["before"], answer["between"], answer["after"]) == (3, count - 2, 0)


def test_a_damaged_piece_is_refused(node, files):
    piece = description_of(files)["pieces"][1]["file"]
    code = (
        "return { error: await bring().catch(({ message }) => message), kept: [...kept.keys()] };"
    )
    answer = node(IMPORTS, BRINGS + code, given(files, damaged=[piece]))
    assert answer["error"].startswith(f"{piece} is damaged")
    assert not any(piece in url for url in answer["kept"])


def test_what_was_kept_and_is_damaged_is_fetched_anew(node, files):
    code = """
    await bring();
    const [url] = [...kept.keys()].filter((one) => one.endsWith(".bin"));
    kept.set(url, new Response(new Uint8Array(given.model.pieces[0].bytes)));
    const before = log.length;
    await bring();
    return { fetched: log.slice(before), url };"""
    answer = node(IMPORTS, BRINGS + code, given(files))
    assert answer["fetched"] == [answer["url"]]


def test_what_an_earlier_version_left_is_removed(node, files):
    code = """
    await bring();
    const before = [...kept.keys()];
    kept.set("https://example.org/a/weights-0123456789ab.bin", new Response("old"));
    await folderOf(given.model, "https://example.org/a/index.html?now");
    return { before, after: [...kept.keys()] };"""
    answer = node(IMPORTS, BRINGS + code, given(files))
    assert len(answer["before"]) > 3
    assert answer["after"] == answer["before"]


def test_a_first_text_is_no_longer_than_what_the_page_has_room_for(tmp_path, monkeypatch):
    model = small(**OPTIONS | {"initial_std": 0.1})
    monkeypatch.setattr(live_folder, "_CACHE", 4 * 3 * (36 + 2 * 2 * 6) * 41)
    regard.report(model, tmp_path / "a", tokenizer=LETTERS, text="abc def " * 9, live=True)
    html = (tmp_path / "a" / "index.html").read_text()
    report = json.loads(re.search(r'id="report">(.*)</script>', html)[1])
    assert report["about"]["limits"]["tokens"] == 41
    assert report["about"]["shape"].endswith("context 79, 41 in this page")
    first = report["first"]
    assert first["ids"] == LETTERS.encode("abc def " * 9)[:41]
    assert (first["run"]["length"], first["run"]["notes"]) == (41, first["notes"])
    assert "room for 41 tokens" in first["notes"][0]


def test_perplexity_is_that_of_the_definition():
    model, ids = small(), [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.no_grad():
        shares = model.double()(torch.tensor(ids)).softmax(-1)
    each = torch.stack([shares[k, token] for k, token in enumerate(ids[1:])])
    assert perplexity(model, ids) == pytest.approx(float(each.prod() ** (-1 / 7)), rel=1e-9)


def test_a_model_is_written_into_a_folder_with_what_rounding_costs(tmp_path):
    folder = tmp_path / "new" / "letters"
    options = {"tokenizer": LETTERS, "text": "abc", "live": True}
    size = regard.report(small(initial_std=0.1), folder, **options)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert size == sum(map(len, files.values()))
    assert [file.name for file in folder.parent.iterdir()] == ["letters"]  # and nothing beside it
    report = json.loads(re.search(r'id="report">(.*)</script>', files["index.html"].decode())[1])
    assert re.search(
        r"have perplexity [\d.]+, in float32 [\d.]+ \([+-]\d\.\d %\)", report["about"]["numbers"]
    )
    run = report["first"]["run"]
    assert (run["text"], run["length"], run["id"]) == ("abc", 3, "1")
    expected = in_float64(as_int8(small(initial_std=0.1)))(torch.tensor(LETTERS.encode("abc")))[
        -1
    ].softmax(-1)
    assert run["next"][0]["probability"] == pytest.approx(float(expected.max()), abs=1e-4)
    with pytest.raises(FileExistsError, match="not an empty folder"):
        regard.report(small(initial_std=0.1), folder, **options)


def test_what_can_not_stand_in_a_folder_is_refused(tmp_path, monkeypatch):
    from regard.page import _live

    monkeypatch.setattr(_live, "FOLDER_SIZE", 1000)
    options = {"tokenizer": LETTERS, "text": "abc", "live": True}
    with pytest.raises(PageError, match="MB in a page, and at most"):
        regard.report(small(), tmp_path / "a", **options)
    monkeypatch.undo()
    coarse = small()
    with torch.no_grad():  # one large number a row leaves the others no digits
        for name, parameter in coarse.named_parameters():
            if name.endswith("c_fc.weight"):
                parameter[:, 0] = 300.0
    with pytest.raises(PageError, match=r"perplexity on .* in place of .* a page may cost 1 %"):
        regard.report(coarse, tmp_path / "a", **options)
    assert not any(tmp_path.iterdir())


def test_the_threads_of_a_page_share_no_guarded_static_variable():
    """The C++ library's guard aborts a thread that arrives while another fills the variable."""
    kernels = module("kernels_threads.wasm")
    assert kernels.startswith(b"\0asm")
    assert b"__cxa_guard_acquire" not in kernels  # which names itself as it aborts
