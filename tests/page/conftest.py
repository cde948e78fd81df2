"""Subjects of the tests: a small model, a recording with all options, and their server.

Axes: N sequences, H query heads, G key/value heads, L queries and keys, D head dimension.
"""

import contextlib
import http.client
import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from starlette.testclient import TestClient
from support.explorer import TRAINED
from support.notebook import Comm
from torch import nn

import regard
from regard.gpt import GPT, BPETokenizer, GPTConfig, TrainConfig, train
from regard.page import Explorer, RecordingSubject
from regard.page._interface import application
from regard.page._work import Work
from regard.page.subjects import ModelSubject

TEXT = "the cat sat on the mat, the dog sat on the cat"
N, H, G, L, D = 2, 6, 3, 13, 5
PADDING = 4


class Layer(nn.Module):
    def forward(self, query, key, mask):
        if mask is None:
            return F.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
        return F.scaled_dot_product_attention(query, key, key, attn_mask=mask, enable_gqa=True)


class Layers(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.h = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, given, masks):
        for layer, (query, key), mask in zip(self.h, given, masks, strict=True):
            layer(query, key, mask)


@pytest.fixture(scope="session")
def make_recording():
    """Record layers that are handed their queries and keys; masks None for causal."""

    def make(given, masks=None, **options):
        with regard.record(model := Layers(len(given)), **options) as recording:
            model(given, [None] * len(given) if masks is None else masks)
        return recording

    return make


def _weights(query, key, visible):
    """The definition, dense and in float64: masked scores and weights, ``(N, H, L, L)``."""
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query.double() @ key.mT / query.shape[-1] ** 0.5
    masked = scores.masked_fill(~visible, -torch.inf)
    return masked, masked.softmax(-1).nan_to_num(0.0)


@pytest.fixture(scope="session")
def padded(make_recording):
    """Two sequences, the second padded on its left; grouped heads; and what their weights are."""
    generator = torch.Generator().manual_seed(1)
    given = [
        (
            2 * torch.randn(N, H, L, D, generator=generator),
            2 * torch.randn(N, G, L, D, generator=generator),
        )
        for _ in range(2)
    ]
    visible = torch.ones(L, L, dtype=torch.bool).tril().repeat(N, 1, 1, 1)
    visible[1, ..., :PADDING] = False
    names = [[f"{'ab'[n]}{position}" for position in range(L)] for n in range(N)]
    recording = make_recording(given, [visible, visible], tokens=names)
    dense = [_weights(query, key, visible) for query, key in given]
    return SimpleNamespace(
        recording=recording,
        names=names,
        given=given,
        visible=visible,
        masked=[masked for masked, _ in dense],
        weights=[weights for _, weights in dense],
    )


@pytest.fixture(scope="session")
def dense():
    """The definition, dense and in float64."""
    return _weights


@pytest.fixture(scope="session")
def network():
    """An untrained model of 2 layers × 3 heads with a context of 31 tokens."""
    tokenizer = BPETokenizer.train([TEXT], vocab_size=263)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=263, context=31, layers=2, heads=3, dim=15))
    with torch.no_grad():
        for block in model.h:
            block.attn.c_attn.weight.mul_(20)  # untrained heads look everywhere alike
    return model.eval(), tokenizer


@pytest.fixture(scope="module")
def train_folder(tmp_path_factory):
    """Train a model for six updates; the folder."""

    def make(**options):
        folder = tmp_path_factory.mktemp("run") / "mine"
        recipe = TrainConfig(tokenizer="char", steps=6, warmup=1, batch=3, **options)
        gpt = GPTConfig(context=23, layers=2, heads=3, dim=15)
        train(folder, texts=[TRAINED], gpt=gpt, config=recipe, console=Console(quiet=True))
        return folder

    return make


@pytest.fixture
def subject(network):
    return ModelSubject(*network, title="a model", text=TEXT)


@pytest.fixture
def recorded(padded, make_recording):
    """The padded recording as if just made: no log-sum-exp is known from another test's reading."""
    masks = [padded.visible, padded.visible]
    recording = make_recording(padded.given, masks, tokens=padded.names)
    return RecordingSubject(recording, title="a recording")


@contextlib.contextmanager
def _asking():
    with contextlib.ExitStack() as clients:

        def make(subject, **options):
            base_url = "http://127.0.0.1:8000"
            return clients.enter_context(TestClient(application(subject), base_url, **options))

        yield make


@pytest.fixture
def ask():
    """Make a client of something's server."""
    with _asking() as make:
        yield make


@pytest.fixture(scope="module")
def ask_once():
    """The same for servers that several tests of a file share."""
    with _asking() as make:
        yield make


@pytest.fixture(scope="module")
def shared(ask_once, network):
    """A client of a model's server that the tests of a file share."""
    return ask_once(ModelSubject(*network, title="a model", text=TEXT))


@pytest.fixture(scope="module")
def shared_reader(ask_once, padded):
    """A client of a recording's server that the tests of a file share."""
    return ask_once(RecordingSubject(padded.recording, title="a recording"))


@pytest.fixture
def client(ask, subject):
    return ask(subject)


@pytest.fixture
def reader(ask, recorded):
    """A client of the recording's server."""
    return ask(recorded)


@pytest.fixture
def first(client):
    (name,) = client.get("/api/about").json()["runs"]
    return client.get(f"/api/runs/{name}").json()


@pytest.fixture(scope="module")
def shared_first(shared):
    """The first run of that server, for requests that are refused and so change nothing."""
    (name,) = shared.get("/api/about").json()["runs"]
    return shared.get(f"/api/runs/{name}").json()


@pytest.fixture
def refused():
    """Require an answer that refuses in a sentence; return the sentence."""

    def require(answer, status):
        assert answer.status_code == status, answer.text
        body = answer.json()
        assert list(body) == ["error"]
        sentence = body["error"]
        assert sentence
        assert "Traceback" not in sentence
        assert "\n" not in sentence
        return sentence

    return require


@pytest.fixture
def floats():
    """Read an answer's numbers, shaped as its headers say."""

    def read(answer, *names):
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/octet-stream"
        numbers = torch.frombuffer(bytearray(answer.content), dtype=torch.float32)
        return numbers.view([int(answer.headers[name]) for name in names] or [-1])

    return read


@pytest.fixture(scope="session")
def lines():
    """Read an answer of a line of JSON each."""

    def read(answer):
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.text.endswith("\n")
        return [json.loads(line) for line in answer.text.splitlines()]

    return read


@pytest.fixture
def serve():
    """Serve something on a port of its own, for what needs a true connection."""
    running = []

    def start(subject, **options):
        explorer = Explorer(subject, **options)
        explorer.start()
        running.append(explorer)
        return explorer

    yield start
    for explorer in running:
        explorer.stop()


@pytest.fixture
def work():
    work = Work()
    yield work
    work.close()


@pytest.fixture
def raw():
    """Send a request whose path and headers go out as they are given."""

    def send(explorer, path, headers=(), method="GET", body=None):
        connection = http.client.HTTPConnection(explorer.host, explorer.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            given = {"Host": f"{explorer.host}:{explorer.port}", **dict(headers)}
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return SimpleNamespace(
                status=answer.status,
                headers={name.lower(): value for name, value in answer.getheaders()},
                body=answer.read(),
            )
        finally:
            connection.close()

    return send


@pytest.fixture
def comms(monkeypatch):
    """The channels of the widgets that are made, without a kernel."""
    comm = pytest.importorskip("comm")
    opened = []

    def create(**options):
        opened.append(Comm(**options))
        return opened[-1]

    monkeypatch.setattr(comm, "create_comm", create)
    return opened
