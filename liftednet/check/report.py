"""What was checked, how far off the worst point is, and whether that is near enough."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from liftednet.errors import DeclarationError


@dataclass(frozen=True)
class Check:
    """One property of a declaration.

    Attributes:
        name: the property.
        tested: what was compared, and at how many points.
        worst: the largest error found.
        allowed: the error that still passes.
        failure: the first point that fails, in words, or None.

    Example:
        >>> from liftednet import check_activation
        >>> from liftednet.activations import ReLU
        >>> check = check_activation(ReLU()).checks[0]
        >>> check.name, check.worst <= check.allowed, check.failure
        ('forward: finite', True, None)
    """

    name: str
    tested: str
    worst: float
    allowed: float
    failure: str | None = None

    @property
    def passed(self) -> bool:
        """Whether no point fails."""
        return self.failure is None


@dataclass(frozen=True)
class Report:
    """The checks of one activation, in the order in which they were made.

    Attributes:
        activation: the activation, as it prints itself.
        checks: one for each property that the declaration has.

    Example:
        >>> from liftednet import check_activation
        >>> from liftednet.activations import ReLU
        >>> report = check_activation(ReLU())
        >>> report.passed, all(check.passed for check in report.checks)
        (True, True)
    """

    activation: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def __rich__(self) -> Table:
        """Return the table that rich prints."""
        verdict = "the declaration holds" if self.passed else "the declaration does not hold"
        table = Table(title=f"{self.activation}: {verdict}", title_justify="left")
        table.add_column("property")
        table.add_column("tested")
        table.add_column("worst", justify="right")
        table.add_column("allowed", justify="right")
        table.add_column("")
        for check in self.checks:
            figures = f"{check.worst:.1e}", f"{check.allowed:.1e}"
            table.add_row(check.name, check.tested, *figures, "ok" if check.passed else "FAILS")
        return table

    def __str__(self) -> str:
        """Return the table as text."""
        text = io.StringIO()
        Console(file=text, width=110, force_jupyter=False).print(self)
        return text.getvalue()


class FailedCheckError(DeclarationError):
    """A declaration does not hold at a point that the message names.

    Attributes:
        report: the checks up to the one that failed.

    Example:
        >>> import torch
        >>> from liftednet import Activation, check_activation
        >>> from liftednet.check import FailedCheckError
        >>> try:
        ...     report = check_activation(Activation.from_function(torch.tanh, lipschitz=0.5))
        ... except FailedCheckError as error:
        ...     print(error.report.checks[-1].name)
        lipschitz
    """

    def __init__(self, report: Report) -> None:
        """Name the first point that fails."""
        failed = next(check for check in report.checks if not check.passed)
        super().__init__(f"{report.activation} fails the check {failed.name!r}: {failed.failure}")
        self.report = report
