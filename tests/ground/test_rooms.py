"""The rooms import in one direction, and what is installed is liftednet and nothing else."""

import ast
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.versions import TESTS, run

ROOT = Path(__file__).parents[2]
FRONT_DOOR = "liftednet"
ROOF = ("liftednet.__main__", "liftednet.command")


class Import(NamedTuple):
    target: str
    line: int
    when_loaded: bool  # not put off to a call, nor only for type checkers


class Source(NamedTuple):
    module: str
    path: Path

    @property
    def package(self) -> str:
        return self.module if self.path.stem == "__init__" else self.module.rpartition(".")[0]


def sources(root: Path) -> Iterator[Source]:
    """Every module of the tree, under the name that it is imported by."""
    for room, above in (("liftednet", ()), ("models", ("liftednet",)), ("solvers", ("liftednet",))):
        for folder, _, names in os.walk(root / room):  # the links are not followed
            for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
                parts = path.relative_to(root).with_suffix("").parts
                yield Source(".".join([*above, *parts]).removesuffix(".__init__"), path)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def height(module: str) -> int:
    """The language is the ground floor, then the solvers, the models and the roof."""
    if any(within(module, package) for package in ROOF):
        return 3
    return 2 * within(module, "liftednet.models") + within(module, "liftednet.solvers")


def absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def targets(node: ast.AST, package: str) -> list[str]:
    """The modules that one node names: by a statement, an attribute or import_module."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(names=names):
            return [f"{absolute(node, package)}.{alias.name}" for alias in names]
        case ast.Attribute(value=ast.Name(id="liftednet"), attr=name):
            return [f"liftednet.{name}"]
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [package + name if name.startswith(".") else name]
    return []


def imports(tree: ast.AST, package: str) -> Iterator[Import]:
    waiting = [(tree, True)]
    while waiting:
        node, when_loaded = waiting.pop()
        for target in targets(node, package):
            yield Import(target, getattr(node, "lineno", 0), when_loaded)
        put_off = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        only_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            loaded = child in node.orelse if only_types else not put_off  # type: ignore
            waiting.append((child, when_loaded and loaded))


def upward(root: Path) -> list[str]:
    """Imports from a room that stands higher; the front door may name every room for types."""
    return [
        f"{source.path.relative_to(root)}:{found.line} imports {found.target}"
        for source in sources(root)
        for found in imports(ast.parse(source.path.read_text("utf-8")), source.package)
        if height(found.target) > height(source.module)
        and (found.when_loaded or source.module != FRONT_DOOR)
    ]


def test_no_room_imports_upward() -> None:
    assert upward(ROOT) == []


PLANTED = [
    ("liftednet/export.py", "from liftednet.models.builders import LiftedMLP"),
    ("liftednet/export.py", "def f():\n    from .solvers import ridge"),
    ("liftednet/export.py", "import liftednet\nliftednet.solvers.solve(1)"),
    ("liftednet/export.py", "from importlib import import_module\nimport_module('.models', 1)"),
    ("liftednet/__init__.py", "from liftednet import models"),
    ("solvers/ridge.py", "from ..models import builders"),
    ("solvers/ridge.py", "if TYPE_CHECKING:\n    from liftednet.models import builders"),
    ("models/methods/small.py", "import liftednet.command"),
]


@pytest.mark.parametrize(("name", "text"), PLANTED)
def test_a_planted_upward_import_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    assert [line.split(":")[0] for line in upward(tmp_path)] == [name]


SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "liftednet", "models", "solvers")


def packages_in_tree() -> set[str]:
    """Every folder that holds Python, under its package name."""
    return {source.package for source in sources(ROOT)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and in `via-sdist` the wheel that was built from the sdist.

    They are of a copy of the sources, so that building leaves nothing in the repository.
    """
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("built")
    for name in filter(lambda name: (ROOT / name).exists(), SOURCES):
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, copy)
    result = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=out)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def test_every_package_of_the_tree_is_listed() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert set(config["options"]["packages"].split()) == packages_in_tree()


def test_what_every_version_runs_is_there() -> None:
    for place, _, test in (name.partition("::") for name in TESTS):
        assert f"def {test or 'test_'}" in (ROOT / "tests" / place).read_text("utf-8")


def test_a_wheel_built_from_the_sdist_holds_every_source_file(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"models/__init__.py", "solvers/__init__.py", "setup.cfg", "LICENSE"} <= names
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    assert {name.split("/")[0] for name in packed if ".dist-info/" not in name} == {"liftednet"}
    assert "liftednet/py.typed" in packed
    for package in packages_in_tree():
        for path in (ROOT / package.replace(".", "/")).glob("*.py"):
            assert packed[path.relative_to(ROOT).as_posix()] == path.read_bytes()
