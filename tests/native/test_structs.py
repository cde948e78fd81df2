"""Structs and numbers of the header, as Python has them."""

import re
import struct
from pathlib import Path

import pytest

from regard.backends.native import _structs, library
from regard.backends.native._arguments import CODES

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
    kinds = _structs.Struct.kinds.items()
    ours = {name: list(fields.items()) for name, fields in kinds if name not in {"", "double"}}
    header = {name: list(fields.items()) for name, fields in declared().items()}
    assert ours == header
    assert header["problem"][12:15] == [("seed", "q"), ("query.data", "q"), ("query.batch", "q")]
    assert HEADER.count("typedef struct") == len(header)


def test_a_struct_is_packed_by_the_fields_of_its_name():
    for name, packed in vars(_structs).items():
        if isinstance(packed, _structs.Struct):
            fields = declared()[name.lower()]
            numbers = [float(i) if code == "d" else i for i, code in enumerate(fields.values())]
            assert len(packed.pack(*numbers)) == packed.size == 8 * len(fields)
            assert list(map(packed.offset, fields)) == list(range(0, packed.size, 8))
            with pytest.raises(struct.error, match=f"expected {len(fields)} items"):
                packed.pack(*numbers[1:])


def test_the_version_and_the_numbers_of_dtypes_are_those_of_the_header():
    assert f"#define REGARD_ABI {library._ABI}\n" in HEADER
    (listed,) = re.findall(r"enum \{ (REGARD_FLOAT32.*?) \};", HEADER)
    ours = (f"REGARD_{str(dtype).upper()[6:]} = {code}" for dtype, code in CODES.items())
    assert listed == ", ".join(ours)
