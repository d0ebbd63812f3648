"""Gradients through solutions, against finite differences and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from liftednet import Activation, activations
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.losses import Declared as DeclaredLoss
from liftednet.losses import Huber, Quantile, SimplexCrossEntropy, SquaredError
from liftednet.maps import Times
from liftednet.penalties import L1, Declared, GroupLasso, Nonnegative, SquaredFrobenius
from liftednet.problems import (
    BlockFit,
    Design,
    Link,
    OutputFit,
    StateFit,
    StatesOverTime,
    TimeLink,
    WeightFit,
    Weights,
)
from liftednet.problems.priors import BoxedStates, PenalizedWeights
from liftednet.solvers import solve, solve_differentiable

STEP, CLOSE = 1e-3, 1e-4  # of central differences, which a solution to 1e-8 blurs by 1e-5
LAM, RHO = (torch.tensor(x, dtype=torch.float64) for x in (0.6, 0.3))


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def agrees(value: Callable[..., Tensor], *data: Tensor) -> None:
    points = tuple(x.clone().requires_grad_() for x in data)
    assert gradcheck(value, points, eps=STEP, atol=CLOSE, rtol=1e-3, fast_mode=True)


SMOOTH = (
    activations.Identity(),
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.Clipped(-0.5, 0.5),
    activations.Sigmoid(),
    activations.Softplus(),
    activations.Softmax(),
    activations.SimplexProjection(),
    Activation.from_function(torch.nn.functional.softsign),
)


@pytest.mark.parametrize("activation", [*SMOOTH, activations.Sign()], ids=repr)
def test_states(activation: Any) -> None:
    units, above = 3, 2
    linked = activation if activation.lipschitz is not None else activations.ReLU()
    for kind in (tight, joint) if activation.lipschitz is not None else (tight,):

        def states(u: Tensor, w: Tensor, c: Tensor, v: Tensor, lam: Tensor) -> Any:
            target = linked.forward(v)
            link = Link(kind(linked), w, c, target, 0.7)  # noqa: B023
            fit = StateFit(kind(activation), u, (link,), 1.0)  # noqa: B023
            return solve_differentiable(fit, lam=lam).value

        data = normal(4, units), normal(units, above, seed=1), normal(above, seed=2)
        agrees(states, *data, normal(4, above, seed=3), LAM)


def test_states_between_bounds_and_without_links() -> None:
    def bounded(u: Tensor, w: Tensor) -> Any:
        link = Link(joint(activations.ReLU()), w, w[0] * 0, u[:, :2].relu(), 0.7)
        fit = StateFit(tight(activations.Tanh()), u, (link,), 0.5, bounds=(-0.3, 0.4))
        return solve_differentiable(fit).value

    agrees(bounded, normal(5, 3), normal(3, 2, seed=1))
    agrees(
        lambda u: solve_differentiable(StateFit(tight(activations.Tanh()), u)).value, normal(2, 2)
    )


@pytest.mark.parametrize("activation", SMOOTH[:5] + SMOOTH[6:7], ids=repr)
@pytest.mark.parametrize("kind", [tight, joint])
def test_weights(activation: Any, kind: Any) -> None:
    weights = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)

    def value(x: Tensor, v: Tensor, w: Tensor, c: Tensor, lam: Tensor, rho: Tensor) -> Any:
        target = activation.forward(v)
        fit = WeightFit(
            kind(activation), Design(x, weights=w), target, SquaredFrobenius(1.0), 1.0, c
        )
        found = solve_differentiable(fit, lam=lam, rho=rho).value
        return found.stacked() if activation.per_unit else found.matrix  # b + 1 is as good as b

    data = normal(8, 2), normal(8, 3, seed=1), weights, 0.3 * normal(8, 3, seed=2), LAM, RHO
    agrees(value, *data)


@pytest.mark.parametrize("penalty", [L1, GroupLasso])
def test_weights_with_a_penalty_that_has_a_kink(penalty: Any) -> None:
    def value(x: Tensor, v: Tensor, rho: Tensor) -> Any:
        fit = WeightFit(joint(activations.Identity()), Design(x), v, penalty(1.0))
        return solve_differentiable(fit, rho=rho).value.stacked()

    agrees(value, normal(8, 4), normal(8, 2, seed=1), 4 * RHO)


def test_nonnegative_weights() -> None:
    def value(x: Tensor, v: Tensor) -> Any:
        fit = WeightFit(tight(activations.Sigmoid()), Design(x), v.sigmoid(),
                        Nonnegative() + SquaredFrobenius(0.2))  # fmt: skip
        return solve_differentiable(fit).value.stacked()

    agrees(value, normal(8, 4), normal(8, 2, seed=1))


@pytest.mark.parametrize("loss", [SquaredError(), Huber(0.5), Quantile(0.3)], ids=repr)
@pytest.mark.parametrize("activation", [SMOOTH[1], SMOOTH[4], SMOOTH[8]], ids=repr)
def test_outputs(loss: Any, activation: Any) -> None:
    def states(y: Tensor, u: Tensor, lam: Tensor) -> Any:
        return solve_differentiable(OutputFit(loss, y, tight(activation), u), lam=lam).value

    agrees(states, normal(4, 3), normal(4, 3, seed=1), LAM)


@pytest.mark.parametrize("soft", [True, False])
def test_outputs_on_the_simplex(soft: bool) -> None:
    simplex, one_hot = joint(activations.SimplexProjection()), torch.eye(3).double()

    def states(y: Tensor, u: Tensor, lam: Tensor) -> Any:
        target = y.softmax(-1) if soft else one_hot
        fit = OutputFit(SimplexCrossEntropy(), target, simplex, u)
        return solve_differentiable(fit, lam=lam).value

    agrees(states, normal(3, 3), normal(3, 3, seed=1), LAM)


@pytest.mark.parametrize("kind", [tight, joint])
@pytest.mark.parametrize("activation", [activations.Tanh(), activations.ReLU()], ids=repr)
def test_states_over_time(kind: Any, activation: Any) -> None:
    lengths = torch.tensor([4, 2])
    counted = torch.arange(4)[:, None] == lengths - 1

    def states(d: Tensor, w: Tensor, v: Tensor, out: Tensor, lam: Tensor) -> Any:
        target = out.softmax(-1).expand(4, 2, 2)
        link = TimeLink(tight(activations.Softmax()), v, v[0] * 0, target, counted, 0.5)
        fit = StatesOverTime(kind(activation), d, w, (link,), lengths)
        return solve_differentiable(fit, lam=lam).value

    data = normal(4, 2, 3), 0.3 * normal(3, 3, seed=1), normal(3, 2, seed=2)
    agrees(states, *data, normal(2, 2, seed=3), LAM)


def test_blocks_of_states_and_of_weights() -> None:
    like, relu = torch.zeros(4, 3, dtype=torch.float64), activations.Sigmoid()

    def states(p: Tensor, w: Tensor, v: Tensor, lam: Tensor) -> Any:
        link = Link(tight(relu), Times(w), w[0] * 0, v.sigmoid(), 0.7)
        block = BoxedStates(tight(relu), 1.0, (4, 3), None, like)
        return solve_differentiable(BlockFit(block, p, (link,)), lam=lam).value

    agrees(states, normal(4, 3), normal(3, 2, seed=1), normal(4, 2, seed=2), LAM)

    def weights(p: Tensor, x: Tensor) -> Any:
        link = Link(joint(relu), Times(x.T), x[0, 0] * 0 + torch.zeros(5).double(),
                    torch.full((3, 5), 0.5).double())  # fmt: skip
        held = Weights(torch.zeros(3, 4, dtype=torch.float64), None)
        block = PenalizedWeights(SquaredFrobenius(0.3), held)
        return solve_differentiable(BlockFit(block, p, (link,))).value.matrix

    agrees(weights, normal(3, 4), normal(5, 4, seed=1))


def test_the_value_is_that_of_solve_and_large_fits_take_products_alone() -> None:
    x, v = normal(60, 30), normal(60, 25, seed=1)
    fit = WeightFit(tight(activations.Sigmoid()), Design(x), v.sigmoid(), SquaredFrobenius(0.3))
    assert (x.shape[1] + 1) * v.shape[1] > 600
    rho = RHO.clone().requires_grad_()
    found = solve_differentiable(fit, rho=rho)
    torch.testing.assert_close(found.value.matrix, solve(fit).value.matrix)
    found.value.matrix.square().sum().backward()
    ends = [
        float(solve(WeightFit(fit.divergence, fit.design, fit.targets,
                              SquaredFrobenius(0.3 + h))).value.matrix.square().sum())
        for h in (STEP, -STEP)
    ]  # fmt: skip
    assert float(rho.grad or 0) == pytest.approx((ends[0] - ends[1]) / (2 * STEP), rel=1e-5)


def test_a_float32_fit_has_float32_gradients() -> None:
    u = normal(4, 3).float().requires_grad_()
    value = solve_differentiable(StateFit(tight(activations.Tanh()), u)).value
    assert value.dtype is torch.float32
    value.sum().backward()
    torch.testing.assert_close(u.grad, 1 - u.detach().tanh() ** 2)


def test_what_has_no_derivative_is_refused() -> None:
    u = normal(4, 3).requires_grad_()
    declared = DeclaredLoss(lambda y, z: cp.sum_squares(y - z))
    with pytest.raises(DeclarationError, match="no derivative"):
        solve_differentiable(OutputFit(declared, u, tight(activations.ReLU()), u))
    by_cvxpy = Declared(lambda W: cp.sum_squares(W))
    with pytest.raises(DeclarationError, match=r"prox of Declared.*no derivative"):
        solve_differentiable(WeightFit(joint(activations.ReLU()), Design(u), u, by_cvxpy))
    for wrong in (torch.tensor(-1.0), torch.ones(2), 1.0):
        untyped: Any = wrong
        with pytest.raises(DataError, match="lam must be a positive tensor"):
            solve_differentiable(StateFit(tight(activations.ReLU()), u), lam=untyped)
    with pytest.raises(DataError, match="rho is for a weight fit"):
        solve_differentiable(StateFit(tight(activations.ReLU()), u), rho=RHO)


def test_a_minimizer_that_is_not_unique_has_no_derivative() -> None:
    x = torch.ones(4, 2, dtype=torch.float64)  # two columns that are the same
    v = normal(4, 1).requires_grad_()
    fit = WeightFit(joint(activations.Identity()), Design(x, bias=False), v, L1(1e-3))
    value = solve_differentiable(fit, "proximal-weights").value.matrix  # between both
    with pytest.raises(SolverError, match="not unique"):
        value[0].sum().backward()


def test_a_validation_loss_chooses_rho() -> None:
    """Gradient steps on rho lower the error of ridge regression on data it has not seen."""
    x, beta = normal(60, 20), normal(20, 1, seed=1)
    y = x @ beta + 5 * normal(60, 1, seed=2)
    fit = WeightFit(joint(activations.Identity()), Design(x[:30]), y[:30], SquaredFrobenius(1.0))
    log_rho = torch.zeros((), dtype=torch.float64, requires_grad=True)
    errors = []
    for _ in range(30):
        weights = solve_differentiable(fit, rho=log_rho.exp()).value
        error = (weights.apply(x[30:]) - y[30:]).square().mean()
        errors.append(float(error.detach()))
        (slope,) = torch.autograd.grad(error, log_rho)
        log_rho = (log_rho - 0.1 * slope).detach().requires_grad_()
    assert abs(float(slope.detach())) < 1e-2 * errors[0]
    assert errors[-1] < errors[0]
