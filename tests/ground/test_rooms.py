"""The rooms import in one direction, and heavy packages only when they are used."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FRONT_DOOR = "liftednet"
ROOF = ("liftednet.__main__", "liftednet.command")
HEAVY = frozenset({"cvxpy", "matplotlib", "numba", "pandas", "sklearn", "triton"})
MAY_LOAD = (
    ("liftednet.command.train", "pandas"),
    ("liftednet.command.train", "sklearn"),
    ("liftednet.solvers.compiled", "numba"),
    ("liftednet.solvers.kernels", "triton"),
    ("liftednet.models.estimators", "sklearn"),
)


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

    def parse(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))


def sources(root: Path) -> Iterator[Source]:
    """Every module of the tree, under the name that it is imported by."""
    for room, package in (
        ("liftednet", "liftednet"),
        ("models", "liftednet.models"),
        ("solvers", "liftednet.solvers"),
    ):
        for folder, _, names in os.walk(root / room):  # the links are not followed
            for name in sorted(names):
                if name.endswith(".py"):
                    path = Path(folder, name)
                    parts = path.relative_to(root / room).with_suffix("").parts
                    yield Source(".".join([package, *parts]).removesuffix(".__init__"), path)


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


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(node: ast.AST, package: str, when_loaded: bool = True) -> Iterator[Import]:
    for target in targets(node, package):
        yield Import(target, getattr(node, "lineno", 0), when_loaded)
    put_off = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        only_types = is_for_type_checkers(node) and child not in getattr(node, "orelse", [])
        yield from imports(child, package, when_loaded and not put_off and not only_types)


def upward(root: Path) -> list[str]:
    """Imports from a room that stands higher; the front door may name every room for types."""
    return [
        f"{source.path.relative_to(root)}:{found.line} imports {found.target}"
        for source in sources(root)
        for found in imports(source.parse(), source.package)
        if height(found.target) > height(source.module)
        and (found.when_loaded or source.module != FRONT_DOOR)
    ]


def heavy(root: Path) -> list[str]:
    """Heavy packages that come with the module, but for those that it is about."""
    return [
        f"{source.path.relative_to(root)}:{found.line} imports {found.target}"
        for source in sources(root)
        for found in imports(source.parse(), source.package)
        if found.when_loaded
        and found.target.split(".")[0] in HEAVY
        and not any(
            within(source.module, module) and within(found.target, package)
            for module, package in MAY_LOAD
        )
    ]


def test_no_room_imports_upward() -> None:
    assert upward(ROOT) == []


def test_heavy_packages_wait_until_they_are_used() -> None:
    assert heavy(ROOT) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("liftednet/problems", "liftednet/command", "models/methods", "solvers/kernels"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("liftednet/export.py", "from liftednet.models.builders import LiftedMLP"),
        ("liftednet/export.py", "from liftednet import solvers"),
        ("liftednet/export.py", "def f():\n    from .solvers import ridge"),
        ("liftednet/export.py", "import liftednet\nliftednet.solvers.solve(1)"),
        ("liftednet/export.py", "from importlib import import_module\nimport_module('.models', 1)"),
        ("liftednet/problems/fit.py", "from ..solvers import ridge"),
        ("liftednet/__init__.py", "from liftednet import models"),
        ("solvers/ridge.py", "from ..models import builders"),
        ("solvers/ridge.py", "if TYPE_CHECKING:\n    from liftednet.models import builders"),
        ("models/methods/small.py", "import liftednet.command"),
        ("models/builders.py", "from liftednet.command import app"),
    ],
)
def test_a_planted_upward_import_is_found(tree: Path, name: str, text: str) -> None:
    (tree / name).write_text(text)
    assert [line.split(":")[0] for line in upward(tree)] == [name]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("solvers/reference.py", "import cvxpy as cp", True),
        ("solvers/reference.py", "try:\n    import triton\nexcept ImportError:\n    pass", True),
        ("solvers/kernels/nnls.py", "import triton.language as tl", False),
        ("solvers/reference.py", "from liftednet.lazy import cvxpy as cp", False),
        ("solvers/reference.py", "def f():\n    import cvxpy", False),
        ("solvers/reference.py", "if TYPE_CHECKING:\n    import cvxpy", False),
        ("solvers/reference.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import cvxpy", True),
    ],
)
def test_a_planted_heavy_import_is_found(tree: Path, name: str, text: str, found: bool) -> None:
    (tree / name).write_text(text)
    assert bool(heavy(tree)) is found
