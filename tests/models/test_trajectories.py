"""Objectives after every block, as version 0.6 had them: what may not change.

Data and starts are fractions of 64, drawn as integers: the same bits on every processor. Cyclic
sweeps over time are not among them: theirs end with their budget, far from converged.

`python -m tests.models.test_trajectories` wrote trajectories.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from liftednet.activations import ReLU, Sigmoid, Tanh
from liftednet.losses import CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, LiftedMLP, LiftedRNN
from liftednet.problems import Weights

RECORD = Path(__file__).with_name("trajectories.json")
Fitted = Callable[[], Any]
Model = TypeVar("Model", LiftedMLP, LiftedRNN)


def _drawn(*shape: int, seed: int, most: int = 128) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator).double() / 64


def _started(model: Model, most: int = 48) -> Model:
    """Return a model that begins at weights of the same bits on every processor."""
    shapes = [(p.shape, p.bias) for p in model.network.parameters]
    model.start = [
        Weights(_drawn(*shape, seed=n, most=most), torch.zeros(shape[1]).double() if bias else None)
        for n, (shape, bias) in enumerate(shapes)
    ]
    return model


def _rows() -> tuple[Tensor, Tensor, Tensor]:
    x = _drawn(40, 6, seed=4)
    return x, torch.arange(40) % 3, torch.stack([x[:, 0] * x[:, 1], x[:, 2] ** 2], 1)


def _mlp(activation: Any, loss: Any, divergence: str, **options: Any) -> Fitted:
    def fitted() -> Any:
        x, labels, targets = _rows()
        regression = isinstance(loss, SquaredError)
        lam = (0.5, 0.7, 0.6) if isinstance(loss, SimplexCrossEntropy) else (0.5, 0.7)
        model = LiftedMLP(
            (6, 5, 4, 2 if regression else 3), activation, loss, lam=lam, rho=0.1,
            divergence=divergence,
            dtype=torch.float64, method=FullBatch(3, tolerance=1e-13, **options),
            standardize=False,
        )  # fmt: skip
        return _started(model).fit(x, targets if regression else labels)

    return fitted


def _rnn(
    hidden: Any,
    activation: Any,
    divergence: str,
    unequal=False,
    per_step=True,
    **options: Any,
) -> Fitted:
    def fitted() -> Any:
        x = _drawn(15, 7, 2, seed=5)
        lengths = torch.tensor([7, 3, 5] * 5) if unequal else None
        labels = torch.arange(15 * 7).reshape(15, 7) % 3
        y = labels if per_step else labels[:, 0]
        model = LiftedRNN(
            2, hidden, 3, activation, CrossEntropy(), lam=0.5, rho=(0.1, 0.2),
            divergence=divergence,
            standardize=False, method=FullBatch(3, tolerance=1e-14, extrapolation=False),
            **options,
        )  # fmt: skip
        return _started(model, most=24).fit(x, y, lengths=lengths)

    return fitted


CASES: dict[str, Fitted] = {
    "mlp tight relu": _mlp(ReLU(), CrossEntropy(), "tight"),
    "mlp tight sigmoid": _mlp(Sigmoid(), SquaredError(), "tight"),
    "mlp joint relu": _mlp(ReLU(), CrossEntropy(), "joint", extrapolation=False),
    "mlp joint relu, several passes": _mlp(ReLU(), CrossEntropy(), "joint", state_passes=3),
    "mlp joint tanh": _mlp(Tanh(), SquaredError(), "joint"),
    "mlp joint simplex": _mlp(ReLU(), SimplexCrossEntropy(), "joint"),

    "rnn joint relu": _rnn(4, ReLU(), "joint"),
    "rnn tight relu": _rnn(4, ReLU(), "tight"),
    "rnn tight tanh, last step": _rnn(4, Tanh(), "tight", per_step=False),
    "rnn joint, two layers": _rnn((4, 3), ReLU(), "joint"),
    "rnn tight, two layers": _rnn((4, 3), Tanh(), "tight"),
    "rnn joint, both directions": _rnn(4, ReLU(), "joint", bidirectional=True),
    "rnn tight, both directions, two layers, unequal lengths": _rnn(
        (4, 3), ReLU(), "tight", bidirectional=True, unequal=True
    ),
    "rnn joint, unequal lengths, learned start": _rnn(
        4, ReLU(), "joint", unequal=True, learn_initial_state=True
    ),
    "rnn tight, both directions, learned start, last step": _rnn(
        (4, 3), Tanh(), "tight", bidirectional=True, learn_initial_state=True, unequal=True,
        per_step=False,
    ),
    "rnn joint, proximity": _rnn(4, ReLU(), "joint", proximity=0.3),
}  # fmt: skip
# The prox of curved maps is iterated, to a tolerance that extrapolation carries on.
ITERATED = {"mlp tight sigmoid": 2e-8, "mlp joint tanh": 2e-8}


def objectives(name: str) -> list[float]:
    """Return the joint objective at the start and after every block of three sweeps."""
    values: list[float] = CASES[name]().trace.objectives
    return values


@pytest.mark.parametrize("name", CASES)
def test_every_block_has_the_objective_on_record(name, monkeypatch):
    # by the solvers of the record: others end elsewhere within their tolerance
    monkeypatch.setattr("liftednet.solvers.compiled.loops.has_numba", lambda: False)
    monkeypatch.setattr(Tanh, "closed_prox", True)
    wanted = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    assert objectives(name) == pytest.approx(wanted, rel=ITERATED.get(name, 1e-11), abs=0)


if __name__ == "__main__":
    RECORD.write_text(json.dumps({n: objectives(n) for n in CASES}, indent=1) + "\n", "utf-8")
