from importlib.metadata import version
from itertools import pairwise

import pytest

COMMANDS = ["explain", "train", "generate", "doctor"]


def test_version(regard):
    assert regard("--version") == (0, f"regard {version('regard')}\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands_and_an_example(regard, arguments):
    done = regard(*arguments)
    assert (done.status, done.err) == (0, "")
    assert all(command in done.out for command in COMMANDS)
    assert "regard explain " in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(regard, command):
    done = regard(command, "--help")
    assert done.status == 0
    assert f"  regard {command}" in done.out.split("\n  Example")[1]


@pytest.mark.parametrize("command", [*COMMANDS, "effects", "trace", "explore", "check"])
def test_the_text_of_a_help_breaks_where_a_line_is_full(regard, command):
    text = regard(command, "--help").out.split("\n  Example")[0]
    lines = [line.strip() for line in text.splitlines()]
    for line, following in pairwise(lines):
        if line and following and not line.endswith(":"):
            assert len(line) + 1 + len(following.split()[0]) > 76


def test_an_unknown_command_is_refused_in_one_line(misused):
    line = misused("paint")
    assert "No such command 'paint'" in line
    assert "(see regard --help)" in line
