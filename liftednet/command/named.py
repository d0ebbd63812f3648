"""Objects that a user names on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from liftednet.activation import Activation
from liftednet.data import Classification, digits, mnist
from liftednet.errors import DataError, DeclarationError
from liftednet.names import activation_named
from liftednet.validation import name_of

IMAGES: dict[str, Callable[[], Classification]] = {"digits": digits, "mnist": mnist}


def activation_from(name: str) -> Activation:
    """Return an activation by a name of the catalogue, or by module:Name.

    Raises:
        DataError: there is nothing of that name.
        DeclarationError: what is there is no activation.
    """
    return declared_activation(name) if ":" in name else activation_named(name)


def declared_activation(name: str) -> Activation:
    """Return the activation module:Name, made without arguments where it is a class.

    The module is looked for in the folder at hand first.

    Raises:
        DataError: the module cannot be imported or lacks the name.
        DeclarationError: what is there is no activation, or cannot be made without arguments.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise DataError(f"name the activation as module:Name, as in my_file:MyReLU; got {name!r}.")
    found = _attribute(module.removesuffix(".py"), attribute)
    made = _made(name, found) if isinstance(found, type) else found
    if not isinstance(made, Activation):
        raise DeclarationError(
            f"{name} is no activation but {name_of(found)}: derive it from liftednet.Activation, "
            "or wrap a function by Activation.from_function."
        )
    return made


def _attribute(module: str, attribute: str) -> Any:
    sys.path.insert(0, "")
    try:
        return getattr(import_module(module), attribute)
    except AttributeError as error:
        raise DataError(f"{module} has no {attribute!r}: {error}.") from error
    except Exception as error:  # whatever the user's own module raises
        raise DataError(f"{module} cannot be imported: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove("")


def _made(name: str, found: type[Any]) -> Any:
    try:
        return found()
    except TypeError as error:
        raise DeclarationError(
            f"{name} cannot be made without arguments ({error}): name an object instead, such as "
            f"small = {found.__name__}(...) in the module."
        ) from error
