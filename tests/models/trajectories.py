"""Objectives after every block, as the models of version 0.1 had them: what may not change.

Cyclic sweeps over time are not among them: theirs end with their budget, far from converged, and
rounding of 1e-16 in the inputs moved the old objectives by 3e-9, too.

`python -m tests.models.trajectories` wrote trajectories.json, run before the models became graphs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from liftednet.activations import LeakyReLU, ReLU, Sigmoid, Tanh
from liftednet.losses import CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, LiftedMLP, LiftedRNN

RECORD = Path(__file__).with_suffix(".json")
Fitted = Callable[[], Any]


def _rows() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    return x, torch.arange(40) % 3, torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1)


def _mlp(activation: Any, loss: Any, divergence: str, **options: Any) -> Fitted:
    def fitted() -> LiftedMLP:
        x, labels, targets = _rows()
        regression = isinstance(loss, SquaredError)
        lam = (0.5, 0.7, 0.6) if isinstance(loss, SimplexCrossEntropy) else (0.5, 0.7)
        model = LiftedMLP(
            (6, 5, 4, 2 if regression else 3), activation, loss, lam, 0.1, divergence,
            dtype=torch.float64, method=FullBatch(3, tolerance=1e-7, **options),
            standardize=False, start="kaiming",
        )  # fmt: skip
        return model.fit(x, targets if regression else labels)

    return fitted


def _rnn(
    hidden: Any,
    activation: Any,
    divergence: str,
    unequal=False,
    per_step=True,
    tolerance=1e-14,
    **options: Any,
) -> Fitted:
    def fitted() -> LiftedRNN:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(15, 7, 2, generator=generator, dtype=torch.float64)
        lengths = torch.tensor([7, 3, 5] * 5) if unequal else None
        labels = torch.arange(15 * 7).reshape(15, 7) % 3
        y = labels if per_step else labels[:, 0]
        model = LiftedRNN(
            2, hidden, 3, activation, CrossEntropy(), 0.5, (0.1, 0.2), divergence,
            standardize=False, method=FullBatch(3, tolerance=tolerance, extrapolation=False),
            **{"start": "identity", **options},
        )  # fmt: skip
        return model.fit(x, y, lengths=lengths)

    return fitted


CASES: dict[str, Fitted] = {
    "mlp tight relu": _mlp(ReLU(), CrossEntropy(), "tight"),
    "mlp tight sigmoid": _mlp(Sigmoid(), SquaredError(), "tight"),
    "mlp joint relu": _mlp(ReLU(), CrossEntropy(), "joint", extrapolation=False),
    "mlp joint relu, several passes": _mlp(ReLU(), CrossEntropy(), "joint", state_passes=3),
    "mlp joint tanh": _mlp(Tanh(), SquaredError(), "joint"),
    "mlp joint simplex": _mlp(ReLU(), SimplexCrossEntropy(), "joint"),
    "mlp multipliers relu": _mlp(ReLU(), CrossEntropy(), "multipliers"),
    "mlp multipliers tanh": _mlp(Tanh(), SquaredError(), "multipliers"),
    "mlp learned slope": _mlp(LeakyReLU(0.2), CrossEntropy(), "tight", learn_activations=True),
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
    "rnn joint, proximity, orthogonal": _rnn(
        4, ReLU(), "joint", proximity=0.3, start="orthogonal"
    ),
    "rnn joint, red-black": _rnn(4, ReLU(), "joint", state_solver="red-black", tolerance=1e-11),
}  # fmt: skip


def objectives(name: str) -> list[float]:
    """The joint objective at the start and after every block of three sweeps."""
    values: list[float] = CASES[name]().trace.objectives
    return values


def _records() -> Iterator[tuple[str, list[float]]]:
    torch.set_num_threads(1)
    for name in CASES:
        yield name, objectives(name)


if __name__ == "__main__":
    RECORD.write_text(json.dumps(dict(_records()), indent=1) + "\n", encoding="utf-8")
