"""The choice of lam and rho by Bayesian optimization (Lifted Neural Networks, section 7.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError, LiftedError, SolverError
from liftednet.validation import as_tensor, is_number, require_count, require_positive

from .data import ArrayLike
from .lifted import Lifted

Range = tuple[float, float]


@dataclass(frozen=True)
class Trial:
    """One pair that was tried.

    Attributes:
        lam: weight of the divergences.
        rho: weight of the squared norms.
        error: share of wrong labels, or mean squared error, on the held-out samples; infinite
            where the training failed.

    Example:
        >>> from liftednet.models import Trial
        >>> tried = [Trial(lam=1.0, rho=0.1, error=0.04), Trial(lam=10.0, rho=0.1, error=0.03)]
        >>> min(tried, key=lambda trial: trial.error).lam
        10.0
    """

    lam: float
    rho: float
    error: float


def search(
    build: Callable[[float, float], Lifted],
    X: ArrayLike,
    y: ArrayLike,
    *,
    trials: int = 30,
    validation: float = 0.2,
    lam: Range = (1e-2, 1e2),
    rho: Range = (1e-6, 1.0),
    seed: int = 0,
    on_trial: Callable[[Trial], None] | None = None,
) -> list[Trial]:
    """Try pairs of lam and rho, each where the ones before make it promising.

    Optuna's tree-structured Parzen estimator on a logarithmic scale. An interrupt ends the search
    and keeps what is done.

    Args:
        build: makes a network from lam and rho.
        X: (samples, inputs).
        y: labels (samples,), or targets (samples, outputs).
        trials: budget.
        validation: share of the samples that is held out.
        lam: smallest and largest.
        rho: smallest and largest.
        seed: of the split and of the search.
        on_trial: told after every trial.

    Returns:
        The trials, the best first.

    Raises:
        DataError: a range, the budget or the share cannot be used.
        LiftedError: optuna is not installed.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import LiftedMLP, Minibatch, search
        >>> digits, method = data.digits(), Minibatch(epochs=2)
        >>> build = lambda lam, rho: LiftedMLP((64, 20, 10), lam=lam, rho=rho, method=method)
        >>> tried = search(build, digits.x_train, digits.y_train, trials=3)
        >>> len(tried), tried[0].error == min(trial.error for trial in tried)
        (3, True)
    """
    require_count("trials", trials, 1)
    for name, limits in (("lam", lam), ("rho", rho)):
        _require_range(name, limits)
    kept, held = _split(as_tensor("X", X), as_tensor("y", y), validation, seed)
    study = _study(seed)
    done: list[Trial] = []
    try:
        for _ in range(trials):
            done.append(_trial(study, build, (lam, rho), kept, held))
            if on_trial is not None:
                on_trial(done[-1])
    except KeyboardInterrupt:
        if not done:
            raise
    return sorted(done, key=lambda trial: trial.error)


@dataclass(frozen=True)
class _Samples:
    x: Tensor
    y: Tensor


def _trial(
    study: Any,
    build: Callable[[float, float], Lifted],
    ranges: tuple[Range, Range],
    kept: _Samples,
    held: _Samples,
) -> Trial:
    asked = study.ask()
    lam, rho = (
        asked.suggest_float(name, *limits, log=True)
        for name, limits in zip(("lam", "rho"), ranges, strict=True)
    )
    trial = Trial(lam, rho, _error(build(lam, rho), kept, held))
    study.tell(asked, trial.error)
    return trial


def _split(x: Tensor, y: Tensor, validation: float, seed: int) -> tuple[_Samples, _Samples]:
    held = round(validation * len(x)) if is_number(validation) and 0 < validation < 1 else 0
    if not 0 < held < len(x):
        raise DataError(
            f"validation must hold out some of the samples and keep some; a share of "
            f"{validation!r} of {len(x)} does not."
        )
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    return (
        _Samples(x[order[held:]], y[order[held:].to(y.device)]),
        _Samples(x[order[:held]], y[order[:held].to(y.device)]),
    )


def _error(model: Lifted, kept: _Samples, held: _Samples) -> float:
    """Return the held-out error of the feedforward rule; a failed training has an infinite one."""
    try:
        predicted = model.fit(kept.x, kept.y).predict(held.x)
    except SolverError:
        return float("inf")
    if predicted.is_floating_point():
        return float((predicted - held.y.reshape(predicted.shape)).square().mean())
    truth = held.y if held.y.ndim == predicted.ndim else held.y.argmax(-1)
    return float((predicted != truth.to(predicted.device)).double().mean())


def _require_range(name: str, limits: Range) -> None:
    for limit in limits:
        require_positive(f"the range of {name}", limit)
    if not limits[0] < limits[1]:
        raise DataError(f"the range of {name} must grow, got {limits}.")


def _study(seed: int) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise LiftedError("search needs optuna: pip install 'liftednet[search]'.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
