"""A compiled loop never costs a user: no wait for a compiler, no error without a cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numba.core import caching

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.losses import SimplexCrossEntropy
from liftednet.models import GaussNewton, LiftedRNN
from liftednet.problems import Link, OutputFit, StateFit
from liftednet.solvers import choose, solve
from liftednet.solvers.compiled import loops, solvers
from liftednet.solvers.compiled.lanes import compiled, filled

ROOT = Path(__file__).parents[3]
SMALL = """
import numba.core.caching as caching
if {nowhere}:
    caching.CacheImpl._locator_classes.clear()
from tests.solvers.compiled.test_first_calls import states
from liftednet.solvers import solve
print(*(solve(states(columns), name).solver for columns in (3, 40) for name in ("auto", "dual")))
"""


def states(columns: int, dtype: torch.dtype = torch.float64, samples: int = 50) -> StateFit:
    """Return a fit below one link, which a compiled loop would serve."""
    source = torch.Generator().manual_seed(columns)
    u, w, t = (torch.randn(*s, generator=source, dtype=dtype)
               for s in ((samples, 6), (6, columns), (samples, columns)))  # fmt: skip
    relu = joint(activations.ReLU())
    return StateFit(relu, u, (Link(relu, w, torch.zeros(columns, dtype=dtype), t),))


@pytest.mark.parametrize("nowhere", [False, True])
def test_small_problems_wait_for_no_compiler(nowhere: bool, tmp_path: Path) -> None:
    """Nor where Numba finds no place to keep anything, which it says by a RuntimeError."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", SMALL.format(nowhere=nowhere)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["dual", "dual", "proximal", "dual"]
    assert not list(tmp_path.rglob("*.nbi"))  # nothing has been compiled


def test_large_problems_are_worth_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "WORTH_COMPILING", 1 << 20)
    monkeypatch.setattr(solvers, "at_hand", lambda *_, **__: False)
    assert not choose(states(3)).name.startswith("compiled")
    assert choose(states(3, samples=1 << 18)).name == "compiled-newton"
    assert choose(states(40, samples=1 << 18)).name == "compiled-descent"


def test_what_is_at_hand_is_known_before_a_problem_is_there() -> None:
    """The types that are asked for are those of the calls: else small problems never had loops."""
    double, single = torch.float64, torch.float32
    held = loops.at_hand.__wrapped__  # not what this process had found before there was a loop
    for dtype in (double, single):
        for columns in (3, 40):
            problem = states(columns, dtype)
            assert solve(problem).solver.startswith("compiled")
        assert held("newton_rows", "newton_rows", kind=dtype, links=1)
        y, u = torch.eye(3, dtype=dtype), torch.ones(3, 3, dtype=dtype)
        found = solve(
            OutputFit(SimplexCrossEntropy(), y, tight(activations.SimplexProjection()), u)
        )
        assert found.solver == "compiled-simplex"
        assert held("simplex_rows", "simplex_rows", kind=dtype)
    assert held("descent_rows", "descend", "sweep", "panelled")
    assert not held("descent_rows", "descend", kind=single)
    assert not held("newton_rows", "newton_rows", kind=double, links=7)  # that no test has
    x = torch.randn(8, 4, 2, generator=torch.Generator().manual_seed(0))
    LiftedRNN(2, 3, 2, method=GaussNewton(2)).fit(x, torch.arange(8) % 2)
    assert held("recurrent_rows", "passed", "ahead", "back")


def test_without_a_place_to_keep_them_loops_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert compiled(filled.py_func)(9) == 16
