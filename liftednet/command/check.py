"""`liftednet check`: one activation of the user's, checked."""

from __future__ import annotations

from rich.console import Console

from liftednet.check import FailedCheckError, check_activation
from liftednet.command.named import declared_activation


def run_check(name: str) -> None:
    """Print the table of all checks.

    Args:
        name: the activation as module:Name.

    Raises:
        DeclarationError: a check failed; the table up to it has been printed.
    """
    console = Console()
    try:
        console.print(check_activation(declared_activation(name)))
    except FailedCheckError as error:
        console.print(error.report)
        raise
