"""The numbers of page 10 that a command made are those that it stored."""

import json

import forming


def test_the_table_is_of_the_stored_numbers():
    lines = forming.table(json.loads(forming.STORED.read_text("utf-8")))
    assert len(lines) == 1 + forming.LISTED // 25
    assert "\n".join(lines) in forming.PAGE.read_text("utf-8")
