"""The structs that Python packs are those of the header."""

import re
from pathlib import Path

from regard.backends.native import _structs

HEADER = (Path(__file__).parents[2] / "src" / "native" / "abi.h").read_text("utf-8")


def declared():
    """The fields of each struct of abi.h: the format of each by its name, in order."""
    structs = {}
    code = re.sub(r"//.*", "", HEADER)
    for body, name in re.findall(r"typedef struct \{(.*?)\} regard_(\w+);", code, re.DOTALL):
        fields = structs[name] = {}
        for declaration in filter(None, map(str.strip, body.split(";"))):
            kind, names = re.fullmatch(r"(?:const )?(\w+)\s(.*)", declaration, re.DOTALL).groups()
            for place in map(str.strip, names.split(",")):
                if place.startswith("*") or kind in {"int64_t", "uint64_t"}:
                    fields[place.lstrip("*")] = "q"
                elif kind == "double":
                    fields[place] = "d"
                else:
                    inner = structs[kind.removeprefix("regard_")].items()
                    fields |= {f"{place}.{part}": code for part, code in inner}
    return structs


def test_structs_have_the_fields_of_the_header_in_its_order():
    ours = {name: list(each.fields.items()) for name, each in _structs.Struct.named.items()}
    header = {name: list(fields.items()) for name, fields in declared().items()}
    assert ours == header
    assert header["problem"][12:15] == [("seed", "q"), ("query.data", "q"), ("query.batch", "q")]
    assert HEADER.count("typedef struct") == len(header)


def test_a_field_is_found_by_its_name():
    for each in _structs.Struct.named.values():
        for number, name in enumerate(each.fields):
            assert each.offset(name) == 8 * number
        assert each.size == 8 * len(each.fields)
