"""Public names: what is shown, and an example in every docstring that runs."""

from __future__ import annotations

import doctest
import inspect
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import liftednet

LANGUAGE = ("activations", "divergences", "losses", "penalties")


def test_dir_shows_the_public_names_alone() -> None:
    assert dir(liftednet) == sorted(liftednet.__all__)
    shown = {name for name in dir(liftednet) if not name.startswith("_")}
    assert shown == {*liftednet._HOMES, *liftednet._ROOMS}


@pytest.mark.parametrize("room", liftednet._ROOMS)
def test_a_room_names_what_is_public(room: str) -> None:
    module = import_module(f"liftednet.{room}")
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("home", ["activation", "errors", "export", "network", "solution"])
def test_a_module_names_what_liftednet_takes_from_it(home: str) -> None:
    taken = {name for name, place in liftednet._HOMES.items() if place == home}
    assert taken <= set(import_module(f"liftednet.{home}").__all__)


def public() -> Iterator[tuple[str, Any]]:
    """Yield the names of the front door and of the language, with what they are."""
    for name in liftednet._HOMES:
        yield f"liftednet.{name}", getattr(liftednet, name)
    for room in LANGUAGE:
        module = import_module(f"liftednet.{room}")
        for name in module.__all__:
            yield f"liftednet.{room}.{name}", getattr(module, name)
    yield "solve_differentiable", liftednet.solvers.solve_differentiable
    for way in ("from_function", "from_potential", "from_expression", "from_divergence"):
        yield f"Activation.{way}", getattr(liftednet.Activation, way)


PUBLIC = dict(public())


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_stands_in_the_docstring_and_runs(name: str) -> None:
    text = inspect.getdoc(inspect.unwrap(PUBLIC[name])) or ""
    assert "Example:" in text
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of packages beneath
        doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)
