"""Public names: what is shown, and an example in every docstring that runs."""

import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import liftednet

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "index.md"
PACKAGES = re.findall(r"^ +(liftednet\S*)$", REFERENCE.read_text("utf-8"), flags=re.MULTILINE)


def test_dir_shows_the_public_names_alone() -> None:
    assert dir(liftednet) == sorted(liftednet.__all__)
    shown = {name for name in dir(liftednet) if not name.startswith("_")}
    assert shown == {*liftednet._HOMES, *liftednet._ROOMS}


@pytest.mark.parametrize("room", liftednet._ROOMS)
def test_a_room_names_what_is_public(room: str) -> None:
    module = import_module(f"liftednet.{room}")
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("home", ["activation", "errors", "export", "network"])
def test_a_module_names_what_liftednet_takes_from_it(home: str) -> None:
    taken = {name for name, place in liftednet._HOMES.items() if place == home}
    assert taken <= set(import_module(f"liftednet.{home}").__all__)


def public() -> Iterator[tuple[str, Any]]:
    """Yield what every package of the reference names as public, once, and the ways to declare."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            named = getattr(module, name)
            if callable(named) and id(named) not in seen:
                seen.add(id(named))
                yield f"{package}.{name}", named
    for way in ("from_function", "from_potential"):
        yield f"Activation.{way}", getattr(liftednet.Activation, way)


PUBLIC = dict(public())


def test_the_reference_has_every_room() -> None:
    assert {"liftednet", *(f"liftednet.{room}" for room in liftednet._ROOMS)} <= set(PACKAGES)


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_stands_in_the_docstring_and_runs(name, request) -> None:
    if name == "liftednet.data.mnist":
        request.getfixturevalue("data_folder")  # skips where it is not there
    text = inspect.cleandoc(inspect.unwrap(PUBLIC[name]).__doc__ or "")  # none of a base class
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert "Example:" in text
    assert any(statement.want for statement in example.examples)
    said: list[str] = []
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # beneath
        doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)
