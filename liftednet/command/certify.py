"""`liftednet certify`: what a saved model is for certain."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from liftednet.command.saved import opened
from liftednet.models import certify


def run_certify(path: Path, semidefinite: bool, activation: str | None) -> None:
    """Print the certificate, and the names of the inputs where the file has them.

    Raises:
        LiftedError: the model cannot be read, or is of a kind that has no certificate.
    """
    saved = opened(path, activation)
    lines = str(certify(saved.model, semidefinite=semidefinite)).splitlines()
    if saved.notes.columns:
        numbered = (f"{n} {name}" for n, name in enumerate(saved.notes.columns))
        lines.append(f"  inputs: {', '.join(numbered)}")
    for line in lines:
        Console().print(line, soft_wrap=True, markup=False, highlight=False)
