"""Files that cannot be written: the error names what the user named, not a temporary file."""

import pytest

from regard._files import replace_file, require_writable


def test_a_file_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(NotADirectoryError) as refused:
        replace_file(tmp_path / "file" / "new", b"new")
    assert refused.value.filename == str(tmp_path / "file" / "new")


def test_a_file_that_cannot_be_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        replace_file(tmp_path / "folder", b"new")
    assert refused.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_in_which_no_file_can_be_made(tmp_path, monkeypatch):
    def refuse(*, dir):  # noqa: A002 - the name that tempfile has for it
        raise PermissionError(13, "Permission denied", f"{dir}/tmp_a1b2c3d4")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(PermissionError) as refused:
        require_writable(tmp_path / "folder")
    assert refused.value.filename == str(tmp_path / "folder")
