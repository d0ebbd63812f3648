"""Arguments that a beginner gets wrong, and numbers of numpy's, at the doors of the language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from liftednet import losses
from liftednet.activations import Clipped, MaxPooling, ReLU
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solvers import solve
from liftednet.solvers.dual import Dual
from liftednet.validation import require_device, require_finite, require_positive, require_seed

U = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(4, 3)


def test_numbers_that_are_finite_pass_though_their_sum_is_not() -> None:
    huge = torch.full((2, 3), torch.finfo(torch.float32).max)
    require_finite("X", huge)
    for bad in (torch.inf, -torch.inf, torch.nan):
        with pytest.raises(DataError, match=r"X has 1 entries .* index \(1, 2\)"):
            huge_with = huge.clone()
            huge_with[1, 2] = bad
            require_finite("X", huge_with)


def untyped(value: Any) -> Any:
    return value


@pytest.mark.parametrize("loss", [losses.CrossEntropy(), losses.BinaryCrossEntropy(), "squared"])
def test_an_output_fit_refuses_a_loss_without_output_states(loss) -> None:
    with pytest.raises(DeclarationError, match="SquaredError"):
        OutputFit(loss, U, tight(ReLU()), U)


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    problem = StateFit(tight(ReLU()), U, lam=untyped(np.float32(0.5)))
    assert type(problem.lam) is float
    assert problem.lam == 0.5
    assert type(SquaredFrobenius(untyped(np.float32(0.5))).rho) is float
    assert type(require_positive("x", untyped(np.int64(3)))) is float
    assert type(require_seed(untyped(np.int64(1)))) is int


@pytest.mark.parametrize("value", [True, "1", None, 1j, np.bool_(True)])
def test_what_is_no_number_stays_refused(value) -> None:
    with pytest.raises(DataError, match="must be a real number"):
        require_positive("lam", value)
    with pytest.raises(DataError, match="seed must be an integer"):
        require_seed(value)


@pytest.mark.parametrize("divergence", [ReLU(), "relu", None])
def test_a_forgotten_divergence_is_named(divergence) -> None:
    link = Link(divergence, torch.eye(3, dtype=torch.float64), U[0], U)
    for build in (
        lambda: StateFit(divergence, U),
        lambda: StateFit(tight(ReLU()), U, (link,)),
        lambda: OutputFit(losses.SquaredError(), U, divergence, U),
        lambda: WeightFit(divergence, Design(U), U, SquaredFrobenius(1.0)),
    ):
        with pytest.raises(DeclarationError, match=r"tight\(ReLU\(\)\) or joint"):
            build()


def test_parts_of_another_kind_are_refused() -> None:
    link = Link(joint(ReLU()), torch.eye(3, dtype=torch.float64), U[0], U)
    with pytest.raises(DeclarationError, match="penalty must be a Penalty"):
        WeightFit(joint(ReLU()), Design(U), U, untyped(0.1))
    with pytest.raises(DeclarationError, match="design must be a Design"):
        WeightFit(joint(ReLU()), untyped(U), U, SquaredFrobenius(1.0))
    with pytest.raises(DeclarationError, match=r"links=\(link,\)"):
        StateFit(joint(ReLU()), U, untyped(link))
    with pytest.raises(DeclarationError, match="Link"):
        StateFit(joint(ReLU()), U, untyped((U,)))


@pytest.mark.parametrize("problem", [3, None, U])
def test_solve_names_the_problems_it_takes(problem) -> None:
    with pytest.raises(DeclarationError, match="WeightFit"):
        solve(problem)


@pytest.mark.parametrize("solver", [None, 3, Dual])
def test_solve_names_the_solvers_it_takes(solver) -> None:
    with pytest.raises(DeclarationError, match="'auto'"):
        solve(StateFit(tight(ReLU()), U), solver=solver)


def test_sparse_data_and_devices_without_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"dense.*to_dense"):
        Design(U.to_sparse())
    with pytest.raises(DataError, match="no numbers"):
        require_device("meta")
    with pytest.raises(DataError, match="cannot be used"):
        require_device(untyped(None.__class__))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Clipped(untyped("a"), 1.0),
        lambda: MaxPooling(untyped("2")),
        lambda: tight(untyped("relu")),
        lambda: joint(untyped("relu")),
        lambda: tight(untyped(ReLU)),
    ],
)
def test_parameters_of_another_kind_are_refused(build) -> None:
    with pytest.raises(DeclarationError, match=r"needs.*got"):
        build()
