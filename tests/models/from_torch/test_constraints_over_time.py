"""Constraints on answers at every step hold in the torch network that is written back."""

import pytest
import torch
from torch import Tensor, nn

from liftednet import lift
from liftednet.constraints import Bounds, Rising, Total, violations
from liftednet.errors import DataError
from liftednet.losses import SquaredError
from liftednet.models import constraints
from tests.models.networks import refuses
from tests.models.programs.networks import Called


def steps(kind: type[nn.Module], between: bool) -> nn.Module:
    """Return a recurrence, and an answer at every step, of its states or through a layer."""
    states = kind(2, 6, batch_first=True), Called(lambda found: found[0])
    middle = (nn.Linear(6, 7), nn.Tanh()) if between else ()
    return nn.Sequential(*states, *middle, nn.Linear(7 if between else 6, 1)).double()


def drawn() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x[..., :1].abs().cumsum(1)


@pytest.mark.parametrize(("kind", "between"), [(nn.RNN, False), (nn.LSTM, True)])
def test_steps_of_torch_recurrences_meet_constraints(kind, between, monkeypatch) -> None:
    monkeypatch.setattr(constraints, "_ROUNDS", 2)  # the exact fit of the last layer follows
    monkeypatch.setattr(constraints, "_MOST", 10)
    torch.manual_seed(0)
    x, y = drawn()
    model = lift(steps(kind, between), x[:2], loss=SquaredError(), show=False, max_iter=5)
    tops = torch.where(torch.arange(12) < 6, 2.0, 1.5).double()  # of all steps of a sample
    held = [Rising(), Total(upper=4.0), Bounds(upper=tops.repeat_interleave(3).unsqueeze(1))]
    assert max(violations(held[2:], y.reshape(-1, 1))) > 0.3
    model.fit(x, y, constraints=held)
    with torch.no_grad():
        found = model.write_()(x)[..., 0]
    assert float((found[:, :-1] - found[:, 1:]).max()) < 1e-9
    assert float(found.sum(1).max()) < 4.0 + 1e-9
    assert float((found - tops.unsqueeze(1)).max()) < 1e-9
    assert float((found - y[..., 0]).square().mean()) < float(y.var())


def test_steps_that_are_no_answers_are_refused() -> None:
    x, y = drawn()
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 1)).double()
    model = lift(network, x[:2], loss=SquaredError(), show=False)
    refuses(DataError, "no answer for each step", model.fit, x, y[:, -1], constraints=[Rising()])
