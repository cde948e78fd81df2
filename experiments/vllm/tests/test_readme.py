"""The README's program, its server and its client as they stand there, and other answers."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import torch

import regard
import regard_vllm

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
(SERVE,) = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
PROMPT = "w5 w27 w3 w29 w5"


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Where the README's code runs: it has a model and a folder for recordings."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my-model").symlink_to(model("llama"))
    (folder / "recordings").mkdir()
    return folder


@pytest.fixture(scope="module")
def server(folder):
    """The server of the README, on a free port; its address."""
    with closing(socket.socket()) as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
    command = SERVE.strip().replace("8000", str(port))
    assert str(port) in command
    options = shlex.split("--enforce-eager --max-model-len 256 --dtype float32")
    variables, *rest = shlex.split(command)
    name, value = variables.split("=")
    assert rest.pop(0) == "python"
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *rest, *options],
            cwd=folder,
            env=os.environ | {name: value},
            stdout=file,
            stderr=file,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None, log.read_text("utf-8")
            try:
                httpx.get(f"{address}/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(1)  # vLLM says by nothing else that it is there
        yield address
    finally:
        process.terminate()
        process.wait()


def post(server, path="completions", **body):
    own = {"prompt": PROMPT} if path == "completions" else {}
    body = {"model": "my-model", "max_tokens": 8, "temperature": 0, "ignore_eos": True} | own | body
    return httpx.post(f"{server}/v1/{path}", json=body, timeout=300).raise_for_status().json()


def get(server, response, **options):
    return httpx.get(f"{server}/v1/regard/{response['id']}", params=options, timeout=300)


def take(server, response, **options):
    data = get(server, response, **options).raise_for_status().content
    return regard_vllm.Answer.from_bytes(data)


def test_the_program(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(PYTHON[0], "README.md", "exec"), names)
    answer, output = names["answer"], names["outputs"][0]
    length = 5 + len(output.outputs[0].token_ids) - 1
    assert answer.rows == range(length)
    assert answer.readings["received"].parts[0].shape == (1, 6, length)
    recording = regard.load(answer.recording)
    assert Path(answer.recording).parent == Path("recordings")
    assert len(recording) == 2


def test_the_client(server):
    names = {}
    exec(compile(PYTHON[1].replace("http://127.0.0.1:8000", server), "README.md", "exec"), names)
    spans = names["answer"].readings["spans"].values
    assert spans.shape[:3] == (1, 1, 6)
    assert spans.shape[-1] == 2


def test_prompts_and_choices_have_answers_of_their_own(server):
    ask = regard_vllm.ask(["entropy"])
    other = "w28 w29 w30 w31 w32 w33 w34"
    body = {"n": 2, "temperature": 1, "seed": 5, "vllm_xargs": ask}
    both = post(server, prompt=[PROMPT, other], **body)
    for prompt, length in enumerate((12, 14)):
        for choice in range(2):
            assert take(server, both, prompt=prompt, choice=choice).rows == range(length)
    assert get(server, both, prompt=2).status_code == 404


def test_a_chat_is_read(server):
    messages = [{"role": "user", "content": PROMPT}]
    ask = regard_vllm.ask(["received"], heads=[3])
    response = post(server, "chat/completions", messages=messages, vllm_xargs=ask)
    received = take(server, response).readings["received"]
    assert received.values.shape == (3, 1, 1, 12)
    total = received.values.sum(-1)
    torch.testing.assert_close(total, torch.full_like(total, 12), rtol=0, atol=1e-5)


def test_an_answer_is_handed_out_once(server):
    response = post(server, vllm_xargs=regard_vllm.ask(["entropy"]))
    take(server, response)
    again = get(server, response)
    assert again.status_code == 404
    assert "handed out before" in again.json()["error"]["message"]
    assert get(server, post(server)).status_code == 404


def test_a_request_that_cannot_be_read_is_served_and_says_why(server):
    response = post(server, vllm_xargs={"regard_read": ["recording"]})
    assert response["usage"]["completion_tokens"] == 8
    refused = get(server, response)
    assert refused.status_code == 422
    assert "no folder for recordings" in refused.json()["error"]["message"]


def test_a_salt_has_the_whole_prompt_computed(server):
    prompt = " ".join(f"w{20 + i % 70}" for i in range(150))
    ask = regard_vllm.ask(["entropy"], layers=[0])
    post(server, prompt=prompt)
    assert take(server, post(server, prompt=prompt, vllm_xargs=ask)).rows.start == 128
    salted = post(server, prompt=prompt, vllm_xargs=ask, cache_salt="of its own")
    assert take(server, salted).rows.start == 0
