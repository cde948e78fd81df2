"""The example of a server: requests beside each other get what each gets alone."""

import contextlib
import importlib.util
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
import uvicorn
from support import small_models

import regard
from regard import lens
from regard.lens.spans.weights import read_passages

ROOT = Path(__file__).parents[2]
CLIENTS = 8
WORDS = "the cat sat on the mat, the dog sat on the cat. Leo put the red kite in the attic."


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("serving", ROOT / "docs/examples/serving.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def answers(example, tmp_path_factory):
    folder = small_models.save_llama(
        tmp_path_factory.mktemp("llama") / "small", small_models.tokenizer(WORDS)
    )
    return example.AnswerPipeline(regard.models.open(folder))


def asked(number):
    """One of seven requests, each of another length."""
    words = WORDS.split()
    document = " ".join(words[: 3 + number]) + "\n\n" + " ".join(words[number : number + 5])
    return {"document": document, "question": words[-number - 1], "tokens": 1 + number % 3}


def numbers(answer):
    """The numbers of an answer, in one tensor."""
    parts = [share["logit"] for share in answer["toward"]]
    weights = [passage["weight"] for passage in answer["passages"]]
    return torch.tensor([answer["logit"], *parts, *weights])


def test_an_answer_has_the_numbers_of_the_lenses(answers):
    request = asked(4)
    found = answers({key: request[key] for key in ("document", "question")}, tokens=2)
    opened = answers.opened
    prompt = opened.read(f"{request['document']}\n\n{request['question']}")
    ids = torch.tensor(prompt.ids)
    for _ in range(2):
        ids = torch.cat([ids, opened(ids)[-1:].argmax(-1)])
    answer = lens.Answer(slice(len(prompt.ids), len(ids)))
    parts = lens.toward(opened, ids, answer)
    assert found["answer"] == opened.tokenizer.decode(ids[-2:])
    assert found["logit"] == pytest.approx(parts.logit, abs=1e-4)
    largest = found["toward"][0]
    share = float(parts.sources[:, :, largest["position"]].sum())
    assert largest["logit"] == pytest.approx(share, abs=1e-4)
    head = opened.read(f"{request['document']}\n\nN/A").ids
    neutral = torch.tensor([*head, *opened.tokenizer.encode(" N/A")])
    passages = lens.split_passages(request["document"], prompt.offsets)
    weights = read_passages(  # which records nothing
        opened.module,
        ids,
        passages,
        answer,
        neutral=(neutral, lens.Answer(slice(len(head), len(neutral)))),
    )
    assert len(found["passages"]) == 2
    shares = [passage["weight"] for passage in found["passages"]]
    assert shares == pytest.approx(weights.difference[:2].tolist(), abs=1e-5)


@contextlib.contextmanager
def served(app):
    """Serve an application on a free port; give its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize("requests", [40, pytest.param(1000, marks=pytest.mark.thorough)])
def test_nothing_is_mixed_between_requests(example, answers, requests):
    resource = pytest.importorskip("resource")
    alone = [answers(asked(k), tokens=asked(k)["tokens"]) for k in range(7)]
    with served(example.server(answers)) as address, httpx.Client(base_url=address) as client:

        def ask(number):
            answer = client.post("/answers", json=asked(number % 7), timeout=120)
            assert answer.status_code == 200, answer.text
            return answer.json()

        with ThreadPoolExecutor(CLIENTS) as clients:
            memory = []
            for _ in range(2):  # the first half fills what is allocated once
                for number, found in enumerate(clients.map(ask, range(requests // 2))):
                    wanted = alone[number % 7]
                    assert found["answer"] == wanted["answer"]
                    torch.testing.assert_close(numbers(found), numbers(wanted), rtol=0, atol=1e-4)
                memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    module = answers.opened.module
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, of the most that it ever was
    assert unit * (memory[1] - memory[0]) < 2**24


def test_a_request_beyond_the_limits_is_refused(example, answers):
    with served(example.server(answers)) as address, httpx.Client(base_url=address) as client:
        wrongs = ({"tokens": 65}, {"document": ""}, {"document": " \n"}, {"question": "x" * 2001})
        for wrong in (*wrongs, {"document": "the cat " * 99}):
            assert client.post("/answers", json=asked(1) | wrong).status_code == 422
