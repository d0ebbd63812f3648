"""How far the answers of a fitted network move with each of its inputs, in units of y."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .lifted import Lifted

_SHIFTS = 20  # other rows that each row is given an input of


def relevance_of(model: Lifted, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return how far answers move with inputs of other rows, (groups, outputs), in units of y.

    sqrt(E (f(x) - f(x'))^2 / 2), where x' has the inputs of a group from another training row: of a
    linear network |b| times the standard deviation of the input, of any the square root of the
    total index of Sobol' where inputs are independent (Homma and Saltelli, Importance Measures in
    Global Sensitivity Analysis of Nonlinear Models, 1996). Of probabilities the differences are
    those of probabilities.

    Args:
        model: fitted on arrays, with one input and one loss.
        groups: columns of the input that belong together, as those of one category.

    Raises:
        NotFittedError: the model holds no data.
    """
    data = model._on_data()
    (variable,) = model.network.inputs
    x, known = data.values[variable], model._by_parameter()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    turned = order.argsort()

    def answers(rows: Tensor) -> Tensor:
        values = model.structure.passed({**data.values, **known, variable: rows})
        found: Tensor = model._answers(values, data)
        return found.double()

    here, found = answers(x), []
    shifts = torch.linspace(1, len(x) - 1, min(_SHIFTS, len(x) - 1)).round().long().tolist()
    for group in groups:
        total = torch.zeros_like(here[0])
        for shift in shifts:
            moved = x.clone()
            moved[:, group] = x[order.roll(shift)[turned]][:, group]
            total += (answers(moved) - here).square().mean(0)
        found.append((total / (2 * max(1, len(shifts)))).sqrt())
    return torch.stack(found)
