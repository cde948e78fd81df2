"""The mutants of `make mutants` name lines that stand in the code, once each."""

from mutants import ROOT, mutants


def test_each_line_stands_in_its_file_once():
    for one in mutants():
        assert (ROOT / one.file).read_text(encoding="utf-8").count(one.old) == 1, one
        assert one.new != one.old
        assert one.tests == "driver" or all((ROOT / path).exists() for path in one.tests.split())
