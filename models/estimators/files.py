"""What the file of an estimator says beside its model: settings, labels, names of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from liftednet import processes
from liftednet.errors import DataError
from liftednet.storage import Catalogue, Description, describe, rebuild

from .base import Estimator
from .feedforward import LiftedClassifier, LiftedRegressor
from .input import Kinds, by_name
from .sequences import LiftedSequenceClassifier

_KINDS: dict[str, type[Estimator]] = {
    kind.__name__: kind for kind in (LiftedClassifier, LiftedRegressor, LiftedSequenceClassifier)
}


def described_estimator(estimator: Any, known: Catalogue) -> Description:
    """Return the notes of an estimator's file, as JSON values.

    Names of columns and labels stand where the command has them, too. A setting that a file cannot
    hold, such as a generator or an activation of one's own, is left out, and told: the loaded
    estimator has its default.

    Raises:
        DataError: it is of a class of the user's, or its labels are no JSON values.
    """
    if _KINDS.get(type(estimator).__name__) is not type(estimator):
        raise DataError(
            f"save knows {', '.join(_KINDS)}; {type(estimator).__name__} is another class: save "
            "its network, .model_."
        )
    given = estimator.get_params(deep=False)
    for name in ("monotonic_cst", "convex"):
        if isinstance(marks := by_name(given.get(name)), Mapping):
            given[name] = [marks.get(x, 0) for x in estimator.feature_names_in_]
    settings = {name: describe(value, known) for name, value in given.items()}
    if left := [name for name, value in settings.items() if _is_foreign(value)]:
        processes.warn(
            f"a file cannot hold {', '.join(f'{name}={given[name]!r}' for name in left)}: the "
            "estimator that is loaded has the default, for other fits; its model is whole."
        )
    fitted = {
        name: _as_json(name, value)
        for name, value in vars(estimator).items()
        if name.endswith("_") and name != "model_"
    }
    labels = getattr(estimator, "classes_", None)
    return {
        "columns": list(map(str, getattr(estimator, "feature_names_in_", ()))),
        "labels": None if labels is None else labels.tolist(),
        "estimator": {
            "name": type(estimator).__name__,
            "settings": {name: x for name, x in settings.items() if name not in left},
            "fitted": fitted,
            "kinds": _described_kinds(getattr(estimator, "_kinds", None)),
            "one": getattr(estimator, "_one", True),
        },
    }


def rebuilt_estimator(description: Description, model: Any, known: Catalogue) -> Estimator:
    """Return the estimator of a file, around its model.

    Raises:
        DataError: the file describes none.
    """
    if (kind := _KINDS.get(str(description["name"]))) is None:
        raise DataError(f"the file names the estimator {description['name']!r}.")
    settings = {
        name: rebuild(value, name, known) for name, value in description["settings"].items()
    }
    estimator = kind(**settings)
    for name, value in description["fitted"].items():
        if not (name.isidentifier() and name.endswith("_") and not name.startswith("_")):
            raise DataError(f"the file names {name!r} as found by a fit.")
        array = isinstance(value, dict) and {"values", "dtype"} == set(value)
        setattr(estimator, name, np.array(value["values"], value["dtype"]) if array else value)
    if isinstance(estimator, LiftedClassifier | LiftedRegressor):
        estimator._kinds = _rebuilt_kinds(description.get("kinds"))
        estimator._inputs = model.network.inputs[0].units
    if isinstance(estimator, LiftedRegressor):  # earlier files do not say the shape of answers
        estimator._one = description.get("one", model.network.terms[0].argument.units == 1)
    estimator.model_ = model
    return estimator


def _rebuilt_kinds(described: Any) -> Kinds | None:
    if described is None:
        return None
    names = tuple(described["names"])
    return Kinds(names, {names[place]: np.array(values) for place, values in described["seen"]})


def _described_kinds(kinds: Kinds | None) -> Description | None:
    """Return kinds by the place of their column, whose name may be a number."""
    if kinds is None:
        return None
    seen = [
        [place, kinds.seen[x].tolist()] for place, x in enumerate(kinds.names) if x in kinds.seen
    ]
    return {"names": list(kinds.names), "seen": seen}


def _as_json(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    values = value.tolist()
    plain = all(isinstance(x, int | float | str) for x in values)
    if value.dtype.kind not in "biufUO" or not plain:
        raise DataError(f"{name} holds {value.dtype}, which no file holds: use numbers or text.")
    return {"values": values, "dtype": "object" if value.dtype.kind == "O" else str(value.dtype)}


def _is_foreign(described: Any) -> bool:
    """Say whether a description holds something that was declared outside of the library."""
    if isinstance(described, list):
        return any(map(_is_foreign, described))
    if not isinstance(described, dict):
        return False
    inside = [*described.get("parameters", {}).values(), described.get("pairs", [])]
    return "declared" in described or any(map(_is_foreign, inside))
