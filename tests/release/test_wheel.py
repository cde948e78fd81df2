"""A wheel is installed where no compiler is, and everything that README shows works there."""

import hashlib
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from regard.backends import native

pytestmark = [
    pytest.mark.skipif(native.describe() is None, reason="needs the native library"),
    pytest.mark.skipif(
        not all(map(find_spec, ("build", "scikit_build_core", "wheel"))),
        reason="needs what builds a wheel: make test installs it",
    ),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this platform, around the library that the tests use."""
    from assemble_wheel import add_library, build_pure

    folder = tmp_path_factory.mktemp("wheel")
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return add_library(build_pure(folder), Path(native.describe().path), tag, folder)


def share_packages(python):
    """Let an environment have the packages of this one, as links, without regard itself."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    for folder in map(Path, sys.path):
        if folder.name == "site-packages":
            for package in folder.iterdir():
                link = site / package.name
                if "regard" not in link.name and link.suffix != ".pth" and not link.exists():
                    link.symlink_to(package)


@pytest.mark.thorough  # and make release-check installs one
@pytest.mark.skipif(sys.platform == "win32", reason="needs links between folders")
def test_a_wheel_serves_without_a_compiler(wheel, tmp_path):
    import fresh_install

    python = fresh_install.make_environment(tmp_path / "environment")
    share_packages(python)
    assert fresh_install.install(python, wheel, "--no-index") == 0
    assert fresh_install.run_readme(python) == 0


@pytest.mark.thorough
def test_a_wheel_has_what_belongs_to_it_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"regard"}
    assert len([name for name in names if name.endswith((".so", ".dylib", ".dll"))]) == 1
    for needed in ("gpt/shipped/model.safetensors", "page/static/index.html", "py.typed"):
        assert f"regard/{needed}" in names
    licences = {Path(name).name for name in names if "dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE.md"}
    assert wheel.stat().st_size < 15_000_000


@pytest.mark.thorough
def test_archives_are_the_same_when_they_are_built_again(wheel, tmp_path):
    from assemble_wheel import build_pure

    build_pure(tmp_path)
    built = sorted(wheel.parent.glob("*.tar.gz")) + sorted(wheel.parent.glob("*-any.whl"))
    assert len(built) == 2
    for path in built:
        again = tmp_path / path.name
        assert digest(again) == digest(path), path.name


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
