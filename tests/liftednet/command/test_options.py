"""Options of estimators as they are written in a shell."""

from __future__ import annotations

from typing import Any

import pytest

from liftednet import LiftedClassifier, LiftedRegressor
from liftednet.command.train import options_of
from liftednet.constraints import Bounds
from liftednet.errors import DataError
from liftednet.models import GaussNewton
from liftednet.penalties import L1, Nonnegative


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_iter=5", 5),
        ("rho=1e-3", 1e-3),
        ("rho=[1, 2.5]", [1, 2.5]),
        ("early_stopping=true", True),
        ("activation=tanh", "tanh"),
        ("device='cpu'", "cpu"),
        ("lipschitz = none", None),
        ("hidden_layer_sizes=(5, 4)", [5, 4]),
        ("monotonic_cst={'age': 1}", {"age": 1}),
        ("method=GaussNewton(steps=7)", GaussNewton(7)),
        ("penalty=L1(0.1) + Nonnegative()", L1(0.1) + Nonnegative()),
    ],
)
def test_values_are_those_of_python(text: str, value: Any) -> None:
    (found,) = options_of(LiftedRegressor, [text]).values()
    assert found == value or repr(found) == repr(value)
    assert type(found) is type(value)


def test_constraints_are_made() -> None:
    found = options_of(LiftedRegressor, ["within=[Bounds(0.0, 1.0)]"])["within"]
    assert len(found) == 1 and isinstance(found[0], Bounds)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["max_iter"], "--set takes name=value"),
        (["max_itr=3"], "no option 'max_itr' of LiftedClassifier: did you mean max_iter?"),
        (["zzz=3"], "there are activation, batch_size"),
        (["rho=1", "rho=2"], "given twice"),
        (["penalty=L9(1)"], "there is no L9"),
        (["penalty=L1()"], "cannot be made"),
        (["penalty=L1(-1)"], "rho must"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(texts: list[str], words: str) -> None:
    with pytest.raises(DataError) as told:
        options_of(LiftedClassifier, texts)
    assert words in str(told.value) and "\n" not in str(told.value)
