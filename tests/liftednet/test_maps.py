"""Linear maps against their own matrices, and blocks over them against CVXPY."""

import cvxpy as cp
import pytest
import torch

from liftednet import activations, maps
from liftednet.divergences import joint
from liftednet.layers.convolution import AveragePooling, Convolution
from liftednet.layers.time import advanced, delayed
from liftednet.maps import Composed, Diagonal, LinearMap, Moved, Rows, Summed, Times, composed
from liftednet.penalties import L1, Nonnegative
from liftednet.problems import BlockFit, Design, Link
from liftednet.problems.priors import BoxedStates, PenalizedWeights
from liftednet.problems.states_over_time import picked
from liftednet.samples import Weights
from liftednet.solvers import solve
from tests.draws import normal

_CONVOLUTION = Convolution((2, 3, 3), 2, (2, 2), (2, 1), (1, 0))
_KERNEL = Weights(normal(8, 2), normal(2))

MAPS: dict[str, tuple[LinearMap, tuple[int, ...]]] = {
    "identity": (maps.Identity(), (3, 4)),
    "times": (Times(normal(4, 2)), (3, 4)),
    "rows": (Rows(Design(normal(5, 3))), (4, 2)),
    "rows without a bias": (Rows(Design(normal(5, 3), False)), (3, 2)),
    "rows, wide": (Rows(Design(normal(2, 6))), (7, 2)),
    "diagonal": (Diagonal(normal(3, 4)), (3, 4)),
    "diagonal that samples share": (Diagonal(normal(4)), (3, 4)),
    "delay": (Moved(delayed, advanced), (3, 2, 4)),
    "picked": (picked(torch.tensor([[True, True], [True, False], [False, True]])), (3, 2, 4)),
    "columns": (maps.Columns(slice(1, 4), 6), (5, 3)),
    "traced": (maps.Traced(lambda v: (2 * v @ normal(4, 3) + 1).flip(0), normal(3, 4)), (3, 4)),
    "convolution": (_CONVOLUTION.map(0, [normal(3, 18)], _KERNEL), (3, 18)),
    "convolution of weights": (_CONVOLUTION.weight_map([normal(3, 18)], _KERNEL), (9, 2)),
    "pooling": (AveragePooling((2, 4, 4), (3, 2), (1, 2)).map(0, [normal(3, 32)], None), (3, 32)),
    "composed": (Composed(Times(normal(4, 2)), Diagonal(normal(3, 4, seed=2))), (3, 4)),
    "summed": (Summed(Diagonal(normal(3, 4)), Times(normal(4, 4))), (3, 4)),
}
EXACT = ("identity", "times", "rows", "rows without a bias", "rows, wide", "diagonal",
         "diagonal that samples share", "delay", "picked", "columns")  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_what_a_map_says_of_itself_is_true_of_its_matrix(name):
    map_, shape = MAPS[name]
    like, v = torch.zeros(shape, dtype=torch.float64), normal(*shape, seed=3)
    units = torch.eye(like.numel(), dtype=torch.float64).unflatten(1, like.shape)
    matrix = torch.stack([map_.apply(unit).flatten() for unit in units], 1)  # a column for each
    wanted = map_.apply(v)
    torch.testing.assert_close(map_.matrix(like), matrix)
    torch.testing.assert_close((matrix @ v.flatten()).view(wanted.shape), wanted)
    u = normal(*wanted.shape, seed=4)
    torch.testing.assert_close(map_.adjoint(u), (matrix.T @ u.flatten()).view(shape))
    norm = float(torch.linalg.matrix_norm(matrix, 2)) ** 2
    assert norm <= map_.squared_norm * (1 + 1e-9) and map_.squared_norm <= 4 * norm
    if name in EXACT:
        assert map_.squared_norm == pytest.approx(norm)
    if map_.moves:
        assert bool(((matrix == 0) | (matrix == 1)).all())
        assert float(matrix.sum(0).max()) == 1 == float(matrix.sum(1).max())
    if map_.by_sample:
        other = v + 1
        other[0] = v[0]
        assert wanted[0].equal(map_.apply(other)[0])
        torch.testing.assert_close(map_.rows(slice(1, 3)).apply(v[1:3]), wanted[1:3])
    if len(shape) == 2:
        rows, variable = wanted.flatten(0, -2), cp.Variable(shape, value=v.numpy())
        stated = map_.expression(variable, v, tuple(rows.shape))
        torch.testing.assert_close(torch.from_numpy(stated.value), rows)


SQUARES: list[LinearMap] = [
    maps.Identity(), Times(normal(4, 4)), Diagonal(normal(4)),
    Composed(Times(normal(4, 4, seed=6)), Diagonal(normal(4))),
    maps.Summed(Times(normal(4, 4)), Diagonal(normal(4))),
    Moved(lambda v: v.flip(0), lambda u: u.flip(0)),
]  # fmt: skip


@pytest.mark.parametrize("outer", SQUARES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("inner", SQUARES, ids=lambda m: type(m).__name__)
def test_simplified_maps_are_the_plain_ones(outer, inner):
    v, u = normal(3, 4, seed=7), normal(3, 4, seed=8)
    for simple, plain in (
        (composed(outer, inner), Composed(outer, inner)),
        (maps.summed(outer, inner), Summed(outer, inner)),
    ):
        torch.testing.assert_close(simple.apply(v), plain.apply(v))
        torch.testing.assert_close(simple.adjoint(u), plain.adjoint(u))
        assert simple.squared_norm <= plain.squared_norm * (1 + 1e-9)
    product = v
    for factor in reversed(maps.chain(composed(outer, inner))):
        product = factor.apply(product)
    torch.testing.assert_close(product, outer.apply(inner.apply(v)))


_RELU = joint(activations.ReLU())


def _links(map_: LinearMap, *shape: int) -> tuple[Link, ...]:
    offset, target = normal(2, *shape, seed=11)
    return (Link(_RELU, map_, offset, target.relu(), 0.7),)


BLOCKS = {
    "states": BlockFit(
        BoxedStates(_RELU, 0.8, (3, 4), None, normal(3, 4)), normal(3, 4, seed=13),
        _links(Diagonal(normal(3, 4, seed=9)), 3, 4),
    ),
    "nonnegative kernel": BlockFit(
        PenalizedWeights(Nonnegative(0.1) + L1(0.05), _KERNEL), None,
        _links(_CONVOLUTION.weight_map([normal(3, 18)], _KERNEL), 3, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_any_maps_is_solved_as_by_cvxpy(name):
    fast, reference = solve(BLOCKS[name]), solve(BLOCKS[name], "reference")
    assert fast.solver != reference.solver
    assert fast.residual <= 1e-6
    assert fast.objective == pytest.approx(reference.objective, rel=1e-6, abs=1e-6)


def test_they_are_differentiated_in_the_rows_and_in_the_inputs():
    x, rows = normal(3, seed=25).requires_grad_(), normal(3, seed=26).requires_grad_()
    (pulled,) = maps.pulled_back([x**3], [x], [rows], create_graph=True)
    direction = normal(3, seed=27)
    ahead, bent = torch.autograd.grad(pulled, (rows, x), direction)
    assert torch.allclose(ahead, 3 * x**2 * direction)
    assert torch.allclose(bent, 6 * x * rows * direction)
