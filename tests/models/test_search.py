"""The choice of lam and rho."""

from __future__ import annotations

import pytest
import torch

from liftednet import DataError, SolverError, losses
from liftednet.models import LiftedMLP, Minibatch, search
from tests.models.networks import labeled

X, Y = labeled(samples=40)


def _build(lam: float, rho: float) -> LiftedMLP:
    method = Minibatch(epochs=3, batch_size=10)
    return LiftedMLP((4, 6, 3), lam=lam, rho=rho, method=method)


def test_ranges_budget_and_share_are_refused_before_any_work():
    for options, word in (
        ({"lam": (1.0, 0.1)}, "lam"),
        ({"rho": (0.0, 1.0)}, "rho"),
        ({"trials": 0}, "trials"),
        ({"validation": 1.0}, "hold out"),
    ):
        with pytest.raises(DataError, match=word):
            search(_build, X, Y, **options)


def test_the_trials_come_best_first_and_stay_within_their_ranges():
    pytest.importorskip("optuna")
    trials = search(_build, X, Y, trials=8, rho=(1e-4, 1e2))
    assert [t.error for t in trials] == sorted(t.error for t in trials)
    assert all(0.01 <= t.lam <= 100 and 1e-4 <= t.rho <= 100 for t in trials)
    assert trials == search(_build, X, Y, trials=8, rho=(1e-4, 1e2))


def test_it_finds_the_penalty_that_ridge_regression_wants():
    pytest.importorskip("optuna")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 20, generator=generator, dtype=torch.float64)
    y = (x[:, :1] + torch.randn(60, 1, generator=generator, dtype=torch.float64)).double()

    def build(lam: float, rho: float) -> LiftedMLP:
        return LiftedMLP(
            (20, 1), loss=losses.SquaredError(), rho=rho, method="full", standardize=False
        )

    trials = search(build, x, y, trials=15, rho=(1e-4, 1e4), validation=0.5)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    kept, held = order[30:], order[:30]

    def exact(rho: float) -> float:
        a, b = x[kept] - x[kept].mean(0), y[kept] - y[kept].mean(0)
        system = a.T @ a + 2 * rho * torch.eye(20, dtype=torch.float64)
        w = torch.linalg.solve(system, a.T @ b)
        return float(((x[held] - x[kept].mean(0)) @ w + y[kept].mean(0) - y[held]).square().mean())

    assert all(t.error == pytest.approx(exact(t.rho), rel=1e-6) for t in trials)
    assert trials[0].error <= 1.1 * min(exact(10**k) for k in range(-4, 5))


def test_a_failed_training_is_the_worst_trial_and_an_interrupt_keeps_what_is_done():
    pytest.importorskip("optuna")
    seen = []

    def build(lam: float, rho: float) -> LiftedMLP:
        seen.append(lam)
        if len(seen) == 1:
            raise_in = LiftedMLP((4, 3))
            raise_in.fit = _fails  # type: ignore[method-assign]
            return raise_in
        if len(seen) == 4:
            raise KeyboardInterrupt
        return _build(lam, rho)

    trials = search(build, X, Y, trials=10)
    assert len(trials) == 3 and trials[-1].error == float("inf")


def _fails(*_: object, **__: object) -> LiftedMLP:
    raise SolverError("planted")
