"""Rho under constraints on scores: raised by rows that are set aside, and by nothing else."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from liftednet.activations import Tanh
from liftednet.constraints import Bounds, Budget, GroupMeans, Linear, Order, Values, violations
from liftednet.losses import BinaryCrossEntropy, SquaredError
from liftednet.models import LiftedMLP
from tests.draws import normal
from tests.models.networks import trace_of

ROWS = np.array([0, 2, 3, 5])
PAIRS = [
    (Bounds(upper=[[0.0], [1], [2], [3], [4], [5]]), Bounds(upper=[[0.0], [2], [3], [5]])),
    (Linear([2.0], equal=[0.0, 1, 2, 3, 4, 5]), Linear([2.0], equal=[0.0, 2, 3, 5])),
    (Order([(1, 0), (5, 2), (0, 3)]), Order([(3, 1), (0, 2)])),
    (Values([1, 3], [7.0, 9.0]), Values([2], [9.0])),
    (GroupMeans([0, 1, 1, 1, 1, 0], 0.1), GroupMeans([0, 1, 1, 0], 0.1)),
    (Budget(-0.3), Budget(-0.3)),
]  # fmt: skip


@pytest.mark.parametrize(("whole", "own"), PAIRS)
def test_what_is_asked_of_some_rows_is_what_speaks_of_them_alone(whole, own) -> None:
    scores = normal(4, 1)
    wanted = own.violation(scores)
    assert whole.taken(ROWS, 6).violation(scores) == pytest.approx(wanted, rel=1e-12)
    assert wanted > 0


def drawn(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, most of them of no use, labels that are half noise, and groups."""
    generator = torch.Generator().manual_seed(seed)
    x, noise = normal(samples, 12, seed=generator), normal(2, samples, seed=generator)
    return x, (x[:, 0] + noise[0] > 0).double().unsqueeze(1), (x[:, 1] + noise[1] > 0).long()


def test_rows_set_aside_raise_rho_and_new_rows_agree() -> None:
    x, y, group = drawn(240, 0)
    held = [GroupMeans(group, 0.05)]
    new, labels, _ = drawn(4_000, 1)

    def model(**settings: Any) -> LiftedMLP:
        return LiftedMLP((12, 20, 1), loss=BinaryCrossEntropy(), max_iter=60, **settings)

    found = {}
    for name, one in {"chosen": model(), "given": model(rho=1.0)}.items():
        one.fit(x, y, constraints=held)
        assert max(violations(held, one.scores(x))) < 1e-9
        loss = torch.nn.functional.binary_cross_entropy_with_logits(one.scores(new), labels)
        found[name] = float(loss), one.structure.penalties, trace_of(one)
    rhos = [{x.curvature / 2 for x in penalties.values()} for _, penalties, _ in found.values()]
    assert len(rhos[0]) == 1 and rhos[0] <= {3.0, 9.0} and rhos[1] == {1.0}
    assert found["chosen"][0] < found["given"][0]
    assert "times its rho" in str(found["chosen"][2].reason)


def test_fits_of_few_rows_and_without_constraints_keep_their_rho() -> None:
    x = torch.linspace(-1, 1, 30, dtype=torch.float64).unsqueeze(1)
    free = LiftedMLP((1, 3, 1), loss=SquaredError()).fit(x, x**2)
    held = LiftedMLP((1, 3, 1), loss=SquaredError()).fit(x, x**2, constraints=[Budget(9.0)])
    pairs = zip(free.structure.penalties.values(), held.structure.penalties.values(), strict=True)
    assert all(a.curvature == b.curvature for a, b in pairs)


def test_orders_of_pairs_take_the_rho_at_which_new_pairs_keep_to_them() -> None:
    x, y = map(torch.from_numpy, load_diabetes(return_X_y=True, scaled=True))
    x, y = x / x.std(0), ((y - y.mean()) / y.std()).unsqueeze(1)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    higher = x[rows][:, [2, 3, 8]]
    pairs = (higher[:, None] < higher[None]).all(-1)
    seen, new = pairs[:331, :331].nonzero()[::40].numpy(), pairs[331:, 331:].nonzero().numpy()
    off: list[float] = []
    losses: list[float] = []
    for rho in (None, 1.0):
        model = LiftedMLP((10, 20, 1), Tanh(), SquaredError(), standardize=False, rho=rho)
        model.fit(x[rows[:331]], y[rows[:331]], constraints=[Order(seen)])
        assert rho or "9 times its rho" in repr(model)
        scores = model.scores(x[rows[331:]])
        off += violations([Order(new)], scores)
        losses.append(float((scores - y[rows[331:]]).square().mean()))
    assert off[0] < off[1] / 2
    assert losses[0] < losses[1]
    # After the usual rounds a constant alone met this order in most draws: its loss is 1.
    w, b = cp.Variable((10, 1)), cp.Variable()  # the linear fit under the same order
    f = x[rows[:331]].numpy() @ w + b
    held = [f[seen[:, 0]] <= f[seen[:, 1]]]
    cp.Problem(cp.Minimize(cp.sum_squares(f - y[rows[:331]].numpy())), held).solve("CLARABEL")
    linear = x[rows[331:]].numpy() @ w.value + b.value
    assert losses[0] < 1.15 * float(np.square(linear - y[rows[331:]].numpy()).mean())
