"""What is checked, at which points, how far off the worst is, and whether that is near enough."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Tight
from liftednet.errors import DeclarationError

_EXACT, _DERIVED = 1e-5, 1e-4  # of a CVXPY solution; of one with a derived stand-in
_SAMPLES = 24
_SPREAD = 2.0  # standard deviation of the pre-activations
_FAR = 3.0  # log10 of the farthest pre-activations
_LARGEST = 1e6  # of the states of far pre-activations: beyond, squares lose what is compared


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
        for column in ("property", "tested", "worst", "allowed", ""):
            table.add_column(column, justify="right" if column in ("worst", "allowed") else "left")
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


@dataclass(frozen=True)
class Subject:
    """An activation and the points it is tested at; a sample is one unit where units are alone.

    Attributes:
        activation: the activation under test.
        units: how many units a sample has.
        generator: where the points come from.
    """

    activation: Activation
    units: int
    generator: torch.Generator

    @cached_property
    def divergence(self) -> Tight:
        """The tight divergence, of which phi is the argmin."""
        return Tight(self.activation)

    @cached_property
    def u(self) -> Tensor:
        """Pre-activations (samples, pre-units), nearest to zero first, to three decimals."""
        points = _SPREAD * self.normal(_SAMPLES, self.units)
        return points[points.norm(dim=-1).argsort()].round(decimals=3)

    @cached_property
    def v(self) -> Tensor:
        """The states phi(u), (samples, units)."""
        return self.activation.forward(self.u).detach()

    @cached_property
    def other(self) -> Tensor:
        """States that belong to other pre-activations, (samples, units)."""
        order = torch.randperm(len(self.u), generator=self.generator)
        return self.v[order]

    @cached_property
    def wide_u(self) -> Tensor:
        """The same, and some from 0.001 to 1,000, where phi is below a million."""
        sizes = torch.logspace(-_FAR, _FAR, 25, dtype=torch.float64).repeat(2).unsqueeze(-1)
        if self.units == 1 and self.u.shape[1] == 1:
            far = sizes * torch.tensor([[-1.0], [1.0]]).repeat_interleave(25, 0)
        else:
            far = sizes * self.normal(len(sizes), self.u.shape[1])
        states = self.activation.forward(far).detach()
        return torch.cat([self.u, far[(states.abs() <= _LARGEST).all(-1)]])

    @cached_property
    def wide_v(self) -> Tensor:
        """The states phi(u) at near and far pre-activations."""
        return self.activation.forward(self.wide_u).detach()

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers in float64."""
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def uniform(self, count: int) -> Tensor:
        """Return uniform numbers from 0 to 1 in float64, (count,)."""
        return torch.rand(count, dtype=torch.float64, generator=self.generator)

    def tolerance(self, method: str) -> float:
        """Return the error allowed where CVXPY solves with an expression, declared or derived."""
        return _EXACT if self.activation.declares(method) else _DERIVED


def judge(name: str, tested: str, error: Tensor, allowed: float, tell: str, *rows: Tensor) -> Check:
    """Return the check that every error, (samples,), is within what is allowed.

    Args:
        name: the property.
        tested: what is compared.
        error: one error per sample; NaN fails.
        allowed: the largest error that passes.
        tell: what is wrong at a sample, with braces for its rows.
        rows: (samples, ...) numbers that it tells.
    """
    bad = ~(error <= allowed)
    worst = float(error.nan_to_num(torch.inf).abs().max()) if len(error) else 0.0
    failure = None
    if bool(bad.any()):
        i = int(bad.nonzero()[0])
        failure = tell.format(*(shown(x[i]) for x in rows))
    return Check(name, tested, worst, allowed, failure)


def relative(found: Tensor, right: Tensor) -> Tensor:
    """Return the largest |found - right| / (1 + |right|) of each sample, (samples,)."""
    return ((found - right).abs() / (1 + right.abs())).flatten(1).amax(-1)


def shown(row: Tensor | float) -> str:
    """Return a number or a row of numbers to six digits."""
    numbers = torch.as_tensor(row, dtype=torch.float64).flatten().tolist()
    words = [f"{number:.6g}" for number in numbers]
    return words[0] if len(words) == 1 else "(" + ", ".join(words) + ")"
