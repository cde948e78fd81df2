"""A learner's file: in a process of its own where it may do harm, else in this one."""

import pytest
from regard_course import check_file, exercise
from regard_course._child import reply_to

import regard

RIGHT = """
import torch
def causal_mask(length):
    return torch.ones(length, length).tril().bool()
answer = 1
answer_5_3 = [1 / 2, 1 / 2, 0]
"""


@pytest.fixture
def reply(tmp_path, monkeypatch):
    """What the process of a file would answer, in this process."""
    monkeypatch.setattr("sys.path", [*__import__("sys").path])

    def to(number, text, name="my.py"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return reply_to(exercise(number), str(path))

    return to


@pytest.mark.parametrize("number", ["5.1", "5.3", "5.5"])
def test_a_file_holds_functions_and_answers(reply, number):
    assert reply(number, RIGHT)["right"]


def test_a_wrong_answer_of_a_file(reply):
    content = reply("5.3", "answer = [1, 0, 0]")
    assert not content["right"]
    assert "Mistake: itself hidden." in content["text"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def causal_mask(:", "my.py is not Python: invalid syntax (line 1)"),
        ("\nraise KeyError('x')", "my.py raises KeyError in line 2: 'x'; mend it until"),
        ("raise SystemExit(3)", "my.py raises SystemExit in line 1: 3; mend it"),
        ("def mask(length): ...", "my.py does not define a function causal_mask(length); define"),
        ("def causal_maks(length): ...", "causal_mask(length); define it, or rename causal_maks"),
        ("def causal_mask(length):\n    return length.x", "object has no attribute 'x' (line 2)"),
        ("def causal_mask(): ...", "causal_mask(1) raises TypeError: causal_mask() takes 0 pos"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_checked(reply, text, error):
    assert error in reply("5.5", text)["error"]


def test_a_missing_answer_names_the_variable(reply):
    message = "my.py does not define answer_5_2 or answer (one of: less than half, more"
    assert reply("5.2", "anser = 1")["error"].startswith(message)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def causal_mask(n):\n    while True: pass", "still running in line 3 after 0.5 seconds"),
        ("import os\nos._exit(3)", "ended the process (exit status 3) before it was checked"),
    ],
)  # fmt: skip
def test_a_file_that_hangs_or_ends_the_process(tmp_path, capsys, text, error):
    path = tmp_path / "my.py"
    path.write_text(f"print('seen')\n{text}", "utf-8")
    with pytest.raises(regard.Error) as failure:
        check_file("5.5", path, seconds=0.5)
    assert error in str(failure.value)
    assert capsys.readouterr().out == "seen\n"


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(regard.Error, match=r"no\.py is not a file; name the Python file"):
        check_file("5.5", tmp_path / "no.py")
