"""Decoding of UTF-8 text: line ends and byte order marks are normalised."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator

from regard.errors import Error


class NotUTF8Error(Error):
    """Bytes that are not UTF-8 text."""


def decode_utf8(blocks: Iterable[bytes], source: str) -> Iterator[str]:
    r"""The text of UTF-8 bytes; all line ends become line feeds, a byte order mark is dropped.

    Args:
        blocks: the bytes, cut anywhere.
        source: where they come from, for the error.

    Returns:
        The text in pieces, as the blocks are read.

    Raises:
        NotUTF8Error: the bytes are not UTF-8; it names the first that is wrong.

    >>> "".join(decode_utf8([b"\xef\xbb\xbfone\r", b"\ntwo\rthree\n"], "a file"))
    'one\ntwo\nthree\n'
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    read = 0
    try:
        for block in blocks:
            read += len(block)
            yield lines.decode(decoder.decode(block))
        yield lines.decode(decoder.decode(b"", final=True), final=True)
    except UnicodeDecodeError as error:
        offset = read - len(error.object) + error.start
        raise NotUTF8Error(
            f"{source} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {offset}"
        ) from None


def normalized(text: str) -> str:
    r"""Return a text with the line ends of `decode_utf8`, and without a byte order mark.

    >>> normalized("\ufeffone\r\ntwo\r")
    'one\ntwo\n'
    """
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    return lines.decode(text.removeprefix("\ufeff"), final=True)
