"""What happens on `import liftednet`, each time in a fresh interpreter."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import liftednet

ROOT = Path(__file__).parents[2]
PUBLIC = sorted({*liftednet._HOMES, *liftednet._ROOMS})
SKLEARN = {name for name in PUBLIC if name.startswith("Lifted") and name != "LiftedError"}
SKLEARN |= {"NotFittedError"}  # estimators, and the error that is scikit-learn's, too
ROOMS = ("models", "solvers")
HEAVY = {"cvxpy", "matplotlib", "numba", "pooch", "sklearn", "triton"}


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], cwd=ROOT, capture_output=True, text=True
    )


def loaded_after(*parts: str) -> list[set[str]]:
    """Return which packages one interpreter has loaded after each part of a program."""
    result = python("\n".join(f"{part}\nimport sys\nprint(*sys.modules)" for part in parts))
    assert result.returncode == 0, result.stderr
    return [{name.split(".")[0] for name in line.split()} for line in result.stdout.splitlines()]


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "liftednet" / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: (node.module or "").removeprefix("liftednet.")
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {**liftednet._HOMES, **dict.fromkeys(liftednet._ROOMS, "liftednet")}


WAYS_IN = ("liftednet", "liftednet.command", *(f"liftednet.{room}" for room in ROOMS), *ROOMS)


@pytest.mark.parametrize("module", WAYS_IN)
def test_before_installing_one_sentence_says_what_to_do(module: str) -> None:
    result = python(f"import {module}", "-S")  # -S: without any installed package
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "`make demo`" in last
    assert "`pip install -c constraints.txt -e .`" in last


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_imported_through_liftednet_only(room: str) -> None:
    result = python(f"import {room}")
    assert result.returncode == 1
    assert f"import liftednet.{room}" in result.stderr.splitlines()[-1]


def test_a_missing_package_is_named_when_it_is_used() -> None:
    code = """
import sys
sys.modules["cvxpy"] = None
from liftednet.lazy import cvxpy as cp
try:
    cp.Variable(3)
except ImportError as error:
    print(error)
"""
    assert "run `pip install cvxpy`" in python(code).stdout


def test_what_a_model_needs_are_ninety_modules_at_most() -> None:
    found = python("import sys\nfrom liftednet.models import LiftedMLP\nprint(*sys.modules)")
    assert sum(name.startswith("liftednet") for name in found.stdout.split()) <= 90


def test_public_names_load_no_heavy_package_and_first_calls_neither_sympy_nor_numba() -> None:
    """Torch's compiler takes two to five seconds, and empty modules and metas lead to it."""
    light = f"from liftednet import {', '.join(set(PUBLIC) - SKLEARN)}\nmodels.LiftedMLP"
    code = """
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from liftednet import LiftedRegressor, certify, to_torch
X, y = (part[:60] for part in load_diabetes(return_X_y=True))
certify(LiftedRegressor().fit(X, 2 ** (y / 50)))  # skewed: of a power
bounded = LiftedRegressor((5,), lipschitz=9.0, max_iter=2).fit(X, y)
to_torch(bounded)
certify(bounded)
network = nn.Sequential(
    nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 6, 2), nn.BatchNorm2d(6), nn.ELU(), nn.Flatten(),
    nn.Linear(6, 4), nn.LayerNorm(4), nn.Softmax(-1),
)
certify(network.eval(), torch.zeros(1, 4))
"""
    recurrent = """
import torch
from liftednet import to_torch
from liftednet.losses import SquaredError
from liftednet.models import LiftedRNN
x = torch.randn(9, 3, 4)
to_torch(LiftedRNN(4, 5, 1, loss=SquaredError(), max_iter=1).fit(x, x[..., :1]))
"""
    names, first, both = loaded_after(light, code, recurrent)
    assert not names & HEAVY
    assert not first & {"cvxpy", "numba", "sympy", "triton"}
    assert not both & {"cvxpy", "sympy", "triton"}
