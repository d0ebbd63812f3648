"""The rows of the four tables of Lifted Recurrent Neural Networks, section 6."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from benchmarks.data import timer
from liftednet.data import echo, running_sum

TRAIN, TEST, CLASSES = 200, 1000, 10  # as printed
VALIDATION = 500


@dataclass(frozen=True)
class Row:
    """One row of a printed table.

    Attributes:
        table: "echo", "sum", "timer dependency" or "timer length".
        length: steps of a sequence.
        parameter: the lag of an echo, the largest timer; 0 for the sum.
        lifted: printed accuracy of the lifted model.
        sgd: printed accuracy of the network trained by SGD.
        possible: the largest accuracy that any answer can have on average.
    """

    table: str
    length: int
    parameter: int
    lifted: float
    sgd: float
    possible: float = 1.0

    @property
    def label(self) -> str:
        """What varies in the table."""
        if self.table == "echo":
            return f"lag {self.parameter}"
        if self.table == "timer dependency":
            return f"dependency {self.parameter}"
        return f"length {self.length}"

    @property
    def hidden(self) -> int:
        """Units of the recurrent layer, as printed."""
        return 20 if self.table == "echo" else 10

    def data(self, samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return sequences, with timer inputs in units of the largest timer."""
        if self.table == "echo":
            return echo(samples, self.length, self.parameter, CLASSES, seed)
        if self.table == "sum":
            return running_sum(samples, self.length, seed)
        x, y = timer(samples, self.length, self.parameter, seed=seed)
        x[..., 0] /= self.parameter
        return x, y


ECHO = (
    Row("echo", 10, 1, 0.91, 0.91, 0.91),
    Row("echo", 10, 2, 0.82, 0.82, 0.82),
    Row("echo", 10, 3, 0.25, 0.73, 0.73),
    Row("echo", 10, 4, 0.15, 0.64, 0.64),
)
SUM = (
    Row("sum", 10, 0, 0.92, 0.79),
    Row("sum", 20, 0, 0.92, 0.75),
    Row("sum", 50, 0, 0.88, 0.72),
    Row("sum", 75, 0, 0.875, 0.65),
    Row("sum", 100, 0, 0.85, 0.60),
    Row("sum", 200, 0, 0.80, 0.50),
    Row("sum", 300, 0, 0.78, 0.50),
    Row("sum", 400, 0, 0.72, 0.50),
)
DEPENDENCY = (
    Row("timer dependency", 60, 5, 1.0, 1.0),
    Row("timer dependency", 60, 10, 0.88, 0.97),
    Row("timer dependency", 60, 20, 0.84, 0.89),
    Row("timer dependency", 60, 30, 0.80, 0.60),
    Row("timer dependency", 60, 40, 0.65, 0.50),
)
LENGTH = (
    Row("timer length", 60, 20, 0.99, 1.0),
    Row("timer length", 100, 20, 0.96, 0.89),
    Row("timer length", 200, 20, 0.84, 0.50),
    Row("timer length", 300, 20, 0.80, 0.50),
    Row("timer length", 400, 20, 0.65, 0.50),
)
TABLES = {"echo": ECHO, "sum": SUM, "timer_dependency": DEPENDENCY, "timer_length": LENGTH}
