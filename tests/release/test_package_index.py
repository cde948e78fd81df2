"""The index against which a release is rehearsed: uploads, lists and yanks as PyPI's does."""

import hashlib
import urllib.error
import urllib.request

import pytest

import package_index

FILE, DATA = "some_package-1.2-py3-none-any.whl", bytes(range(256)) * 3


def upload(index, name, data, digest=None):
    """As twine sends it; returns the status."""
    digest = digest or hashlib.sha256(data).hexdigest()
    head = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    body = head % (b"sha256_digest", b"", digest.encode())
    body += head % (b"content", f'; filename="{name}"'.encode(), data) + b"--x--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    request = urllib.request.Request(f"{index.address}/upload/", data=body, headers=kind)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def read(index, path):
    with urllib.request.urlopen(f"{index.address}/{path}") as answer:
        return answer.read()


def test_a_file_is_listed_with_its_checksum_and_never_replaced(tmp_path):
    (tmp_path / "other-3-py3-none-any.whl").write_bytes(b"there")
    with package_index.serving(tmp_path) as index:
        assert read(index, "files/other-3-py3-none-any.whl") == b"there"
        assert upload(index, FILE, DATA, "0" * 64) == 400
        assert upload(index, FILE, DATA) == 200
        assert upload(index, FILE, b"another") == 400
        digest = hashlib.sha256(DATA).hexdigest()
        link = f'href="/files/{FILE}#sha256={digest}">{FILE}<'
        assert link.encode() in read(index, "simple/some-package/")
        assert read(index, f"files/{FILE}") == DATA
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(index, "simple/none/")


def test_a_yanked_version_is_marked_and_no_other(tmp_path):
    with package_index.serving(tmp_path) as index:
        upload(index, FILE, DATA)
        upload(index, FILE.replace("1.2", "1.3"), DATA)
        index.yank("some-package", "1.2", 'wrong "numbers"')
        first, second = read(index, "simple/some-package/").decode().splitlines()[2:4]
        assert 'data-yanked="wrong &quot;numbers&quot;"' in first
        assert "data-yanked" not in second
        assert read(index, f"files/{FILE}") == DATA
