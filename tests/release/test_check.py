"""`make check ROOM=…`: every room has an entry, and every folder of tests belongs to one."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load_check():
    spec = importlib.util.spec_from_file_location("check", ROOT / "tools" / "check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["check"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


ROOMS = load_check().ROOMS


def test_what_is_named_exists():
    for room in ROOMS.values():
        for path in (*room.code, *room.tests):
            assert (ROOT / path).exists(), path


def test_every_room_has_an_entry():
    folders = {path.parent.name for path in (ROOT / "regard").glob("*/__init__.py")}
    assert folders <= set(ROOMS)


def test_every_folder_of_tests_judges_a_room_or_the_whole():
    judged = {test.split("/")[1] for room in ROOMS.values() for test in room.tests}
    whole = {"benchmarks", "docs", "release", "support"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert {name for name in folders if name[0] not in "._"} <= judged | whole


def test_an_unknown_room_is_told_the_rooms(capsys):
    assert load_check().main("attic") == 2
    assert "must be one of masks, inputs" in capsys.readouterr().err
