"""What is installed: liftednet and nothing else, from wheel, sdist and editable install alike."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "liftednet", "models", "solvers")


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel except RECORD, which lists the others."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")
        }


def packages_in_tree() -> set[str]:
    """Every folder that holds Python, under its package name; the links are not followed."""
    return {
        ".".join(("liftednet", *Path(folder).relative_to(ROOT / base).parts))
        for base, room in ((".", "models"), (".", "solvers"), ("liftednet", "liftednet"))
        for folder, _, names in os.walk(ROOT / room)
        if any(name.endswith(".py") for name in names)
    }


def setup_cfg() -> ConfigParser:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that building leaves nothing in the repository."""
    copy = tmp_path_factory.mktemp("sources")
    for name in filter(lambda name: (ROOT / name).exists(), SOURCES):
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and in `via-sdist` the wheel that was built from the sdist."""
    out = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the tree itself."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, tree, cwd=out)
    return next(out.glob("*.whl"))


def test_every_package_of_the_tree_is_listed() -> None:
    assert set(setup_cfg()["options"]["packages"].split()) == packages_in_tree()


def test_wheel_holds_every_source_file(wheel: Path) -> None:
    packed = contents(wheel)
    assert {name.split("/")[0] for name in packed if ".dist-info/" not in name} == {"liftednet"}
    assert "liftednet/py.typed" in packed
    for package in packages_in_tree():
        for path in (ROOT / package.replace(".", "/")).glob("*.py"):
            assert packed[path.relative_to(ROOT).as_posix()] == path.read_bytes()


def test_sdist_builds_the_same_wheel(built: Path, wheel: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"models/__init__.py", "solvers/__init__.py", "setup.cfg", "LICENSE"} <= names
    assert contents(next(built.glob("*.whl"))) == contents(wheel)
