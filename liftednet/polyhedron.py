"""The nearest points of polyhedra, one for each sample: exact, and with derivatives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from liftednet.errors import DataError, SolverError

_MET = 1e-9  # by how much limits and the signs of prices may be off, relative to a sample's scale
_RIDGE = 1e-10  # on the products of rows of norm 1, while rows that bind may contradict each other
_PATIENCE = 3  # exchanges of all rows that are wrong, without fewer of them


class _Point(NamedTuple):
    prices: Tensor
    values: Tensor  # A v


def nearest_in_polyhedron(rows: Tensor, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return argmin |v - u|^2 subject to l <= A v <= h for every sample, of the type of u.

    Which limits bind is found by block principal pivoting (Judice and Pires, Computers and
    Operations Research 21, 1994), all samples at once. Then v is affine in u and in the ends, and
    differentiated as that: with B the rows that bind, v = u - B'(B B')^-1 (B u - ends).

    Args:
        rows: A, (limits, units).
        u: (samples, units).
        lower: l, (samples, limits), -inf where there is none.
        upper: h, likewise.

    Raises:
        DataError: no v meets the limits of a sample.
        SolverError: pivoting has not ended.

    Example:
        >>> import torch
        >>> from liftednet.polyhedron import nearest_in_polyhedron
        >>> rows = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])  # of the simplex
        >>> low, high = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, torch.inf, torch.inf]])
        >>> nearest_in_polyhedron(rows, torch.tensor([[0.2, 0.6]]), low, high)
        tensor([[0.3000, 0.7000]])
    """
    scaled = rows.to(u.device, torch.float64)
    norms = scaled.norm(dim=1)
    scaled, point = scaled / norms.unsqueeze(-1), u.double()
    low, high = lower.double() / norms, upper.double() / norms
    with torch.no_grad():
        side = _binding(scaled, point, low, high)
    ends = torch.where(side < 0, low, high)
    for _ in range(2):  # the ridge is less where limits do not contradict, and its rest then gone
        found = _at(scaled, point, side, ends, 1e-3 * _RIDGE)
        point = point - found.prices @ scaled
    off = torch.where(side != 0, (found.values - ends).abs(), 0.0).amax(-1)
    if bool((empty := off > _met(u)).any()):
        raise DataError(
            f"no scores meet the limits of sample {int(empty.nonzero()[0])}, counted from 0: they "
            "contradict each other."
        )
    return point.to(u)


def _met(u: Tensor) -> Tensor:
    """Return by how much limits may be off, (samples,)."""
    return _MET * (1 + u.abs().amax(-1))


def _at(rows: Tensor, u: Tensor, side: Tensor, ends: Tensor, ridge: float) -> _Point:
    """Return the prices that bring limits that bind to their ends, and all values there."""
    binds = side != 0
    excess = u @ rows.T - torch.where(binds, ends, 0.0)
    both = binds.unsqueeze(-1) & binds.unsqueeze(-2)
    rest = torch.diag_embed(torch.where(binds, ridge, 1.0).to(u))
    products = torch.where(both, rows @ rows.T, 0.0) + rest
    excess = torch.where(binds, excess, 0.0)
    prices = torch.linalg.solve(products, excess.unsqueeze(-1)).squeeze(-1)
    return _Point(prices, (u - prices @ rows) @ rows.T)


def _binding(rows: Tensor, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return at which end each limit binds, (samples, limits): -1, 1, or 0 where it does not."""
    count = len(rows)
    sides = u.new_zeros(len(u), count)
    todo = torch.arange(len(u), device=u.device)
    least = torch.full_like(todo, count + 1)
    patience = torch.full_like(todo, _PATIENCE)
    for _ in range(100 + 20 * count):
        x, low, high, side = u[todo], lower[todo], upper[todo], sides[todo]
        equal, met = low == high, _met(x).unsqueeze(-1)
        side = torch.where(equal & (side == 0), 1.0, side)
        ends = torch.where(side < 0, low, high)
        prices, values = _at(rows, x, side, ends, _RIDGE)
        passed = (values > high + met).double() - (values < low - met).double()
        wrong = torch.where(side == 0, passed != 0, ~equal & (prices * side < -met))
        wrongs = wrong.sum(-1)
        sides[todo] = torch.where(side == 0, 0.0, side)
        done = wrongs == 0
        fewer = wrongs < least[todo]
        least[todo] = torch.minimum(wrongs, least[todo])
        left = torch.where(fewer, _PATIENCE, patience[todo] - 1)
        patience[todo] = left
        last = count - 1 - wrong.flip(-1).int().argmax(-1, keepdim=True)
        alone = torch.zeros_like(wrong).scatter(-1, last, True) & wrong
        exchanged = torch.where((left > 0).unsqueeze(-1), wrong, alone)
        sides[todo] = torch.where(exchanged, torch.where(side == 0, passed, 0.0), side)
        todo = todo[~done]
        if not len(todo):
            return sides
    raise SolverError(
        f"which limits of sample {int(todo[0])}, counted from 0, bind was not found: leave out "
        "those that follow from others."
    )
