"""Sets of scores by linear limits: within a sample, across samples, and over time."""

from __future__ import annotations

from collections.abc import Sized
from contextlib import suppress
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.lazy import sparse
from liftednet.sets.constraint import Constraint
from liftednet.sets.polyhedron import Array, Limits
from liftednet.validation import finite_numbers, integers, is_missing

__all__ = ["Bounds", "Budget", "GroupMeans", "Linear", "Order", "Rising", "Total", "Values"]

_SHOWN = 6  # numbers of an array in a line


class Bounds(Constraint):
    """l <= U <= h for every sample and output; prices (samples, outputs).

    Args:
        lower: l, a number, or (outputs,), or (samples, outputs); None or -inf for none.
        upper: h, likewise.

    Raises:
        DataError: they are no finite numbers, there is neither, or one lies above the other.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Bounds
        >>> Bounds(lower=0.0).violation(torch.tensor([[0.5], [-0.25]]))
        0.25
    """

    def __init__(self, lower: Any = None, upper: Any = None) -> None:
        """Keep the bounds."""
        self.lower, self.upper, _ = _given("Bounds", lower, upper)

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each entry."""
        each = sparse.identity(samples * outputs, format="csr")
        return _limits("the bounds", each, self.lower, self.upper, (samples, outputs))

    def each(self, outputs: int) -> Limits:
        """Return one limit for each output."""
        return self.limits(1, outputs)

    def of_logarithms(self) -> Constraint:
        """Return log l <= U <= log h, with next to nothing for an l that is not positive."""
        if self.upper is not None and (self.upper <= 0).any():
            raise DataError(f"rates are positive, and {self!r} leaves none.")
        least = np.finfo(np.float64).tiny
        ends = (None if x is None else np.log(x.clip(least)) for x in (self.lower, self.upper))
        return Bounds(*ends)

    def __repr__(self) -> str:
        """Name the ends."""
        return _told(self, "lower", "upper")


class Linear(Constraint):
    """l <= U C + X M <= h within every sample, as of a total or an order; prices (samples, k).

    Args:
        coefficients: C, (outputs,) or (outputs, k).
        lower: l, a number, or (samples,) where k is 1, or (samples, k); None or -inf for none.
        upper: h, likewise.
        equal: both of them.
        inputs: M, (features,) or (features, k), for a relation to raw inputs, which a network holds
            that is declared with `within=`; None for 0.

    Raises:
        DataError: they are no finite numbers, there are none, or one lies above the other.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Linear
        >>> total = Linear(torch.ones(3), equal=1.0)  # outputs that sum to 1
        >>> total.violation(torch.tensor([[0.5, 0.25, 0.5]]))
        0.25
    """

    def __init__(
        self,
        coefficients: Any,
        lower: Any = None,
        upper: Any = None,
        equal: Any = None,
        *,
        inputs: Any = None,
    ) -> None:
        """Keep coefficients and ends."""
        given = finite_numbers("the coefficients of Linear", coefficients)
        self.coefficients = given[:, None] if given.ndim == 1 else given
        if self.coefficients.ndim != 2 or not self.coefficients.any(axis=0).all():
            raise DataError(
                "the coefficients of Linear must have shape (outputs,) or (outputs, k), none of "
                f"the k all zero; got shape {given.shape}."
            )
        self.lower, self.upper, self.equal = _given("Linear", lower, upper, equal)
        self.inputs = None if inputs is None else finite_numbers("the inputs of Linear", inputs)
        if self.inputs is not None and self.inputs.ndim == 1:
            self.inputs = self.inputs[:, None]

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return k limits for each sample."""
        if self.inputs is not None:
            raise DataError(
                "Linear with inputs is held at every input by within=, as in "
                "network.loss(..., within=[...]): scores alone do not tell it."
            )
        return self._limits(samples, outputs)

    def each(self, outputs: int) -> Limits:
        """Return k limits, those of X M = 0."""
        return self._limits(1, outputs)

    def _limits(self, samples: int, outputs: int) -> Limits:
        rows, count = self.coefficients.shape
        if rows != outputs:
            raise DataError(
                f"Linear has coefficients for {rows} outputs, and the network has {outputs}."
            )
        matrix = sparse.kron(sparse.identity(samples), self.coefficients.T, "csr")
        lower, upper = (
            (self.equal, self.equal) if self.equal is not None else (self.lower, self.upper)
        )
        return _limits("an end of Linear", matrix, lower, upper, (samples, count))

    def __repr__(self) -> str:
        """Name the coefficients and ends."""
        return _told(self, "coefficients", "lower", "upper", "equal", "inputs")


class GroupMeans(Constraint):
    """Mean scores, not rates of decisions: |mean of U in a group - mean of all| <= within.

    Scores of a classifier are log-odds, of which a few outliers may satisfy it while decisions stay
    as unequal as before: `GroupRates` speaks of these, `GroupProbabilities` of mean probabilities.
    Prices are (groups, outputs). Agarwal et al., A Reductions Approach to Fair Classification
    (2018), section 2, with scores in place of decisions.

    The distances of all groups, each times its size, sum to 0: at `within=0` one of the equations
    follows from the others, and how groups share the price is not unique. The differences are of
    prices divided by the sizes of their groups.

    Args:
        groups: (samples,) the group of every sample, an integer, a boolean or a name; a negative
            one is in none.
        within: of the mean of all, in units of the scores, 0 or more.

    Raises:
        DataError: groups are none of these, fewer than two, or overlap; within is negative.

    Example:
        >>> import torch
        >>> from liftednet.constraints import GroupMeans
        >>> GroupMeans([0, 0, 1, 1]).violation(torch.tensor([[0.0], [1.0], [2.0], [3.0]]))
        1.0
    """

    def __init__(self, groups: Any, within: float = 0.0) -> None:
        """Keep the groups."""
        found = integers("the groups of GroupMeans", _numbered(groups))
        if found.ndim != 1:
            raise DataError(
                "GroupMeans needs one group for each sample, (samples,), so that none overlap; got "
                f"shape {tuple(found.shape)}. For groups that overlap give several GroupMeans."
            )
        self.groups: Array = found.cpu().numpy()
        self.within = _number("within", within)
        self.names = np.unique(self.groups[self.groups >= 0])
        if len(self.names) < 2:
            raise DataError(f"GroupMeans needs two groups or more, got {len(self.names)}.")
        if self.within < 0:
            raise DataError(f"within must be 0 or more, got {within}.")

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each group and output."""
        if len(self.groups) != samples:
            raise DataError(
                f"GroupMeans is of {len(self.groups)} samples, and the data have {samples}."
            )
        member = self.groups[None] == self.names[:, None]
        inside = self.groups >= 0
        means = member / member.sum(1, keepdims=True) - inside / inside.sum()
        within = np.array(self.within)
        return _limits("within", _alike(means, outputs), -within, within, (len(means), outputs))

    def taken(self, rows: Array, samples: int) -> Constraint:
        """Return the same on some rows, whose groups have means of their own."""
        return GroupMeans(self.groups[rows], self.within)

    def __repr__(self) -> str:
        """Name the groups and the distance."""
        return f"GroupMeans({len(self.names)} groups, within={self.within:g})"


class Order(Constraint):
    """U_i + margin <= U_j for given pairs (i, j) of samples; prices (pairs, outputs).

    Args:
        pairs: (pairs, 2) rows i and j.
        margin: in units of the scores.

    Raises:
        DataError: pairs are no pairs of different rows.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Order
        >>> Order([(0, 1), (1, 2)]).violation(torch.tensor([[1.0], [2.0], [1.5]]))
        0.5
    """

    def __init__(self, pairs: Any, margin: float = 0.0) -> None:
        """Keep the pairs."""
        paired = isinstance(pairs, list | tuple) and all(isinstance(x, Sized) for x in pairs)
        found = integers(
            "the pairs of Order", [x for pair in pairs for x in pair] if paired else pairs
        )
        if len(found) == 0 or found.numel() != 2 * len(pairs):
            raise DataError(
                "the pairs of Order must be pairs (i, j) of rows, (pairs, 2), at least one; got "
                f"shape {tuple(found.shape)}."
            )
        self.pairs: Array = found.reshape(-1, 2).cpu().numpy()
        self.margin = _number("the margin of Order", margin)
        same = self.pairs[:, 0] == self.pairs[:, 1]
        if same.any():
            raise DataError(f"Order needs pairs of different rows, got {self.pairs[same][0]}.")

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each pair and output."""
        _require_known("Order", self.pairs, samples)
        return _ordered(self.pairs, self.margin, samples, outputs)

    def __repr__(self) -> str:
        """Name the number of pairs."""
        return f"Order({len(self.pairs)} pairs, margin={self.margin:g})"


class Values(Constraint):
    """U_i = t_i for given rows i; prices (rows, outputs).

    Args:
        rows: (rows,) of the samples.
        targets: t, (rows, outputs), or (rows,) where there is one output.

    Raises:
        DataError: a row comes twice, or there are not as many targets as rows.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Values
        >>> Values([1], [2.0]).violation(torch.tensor([[0.0], [2.5]]))
        0.5
    """

    def __init__(self, rows: Any, targets: Any) -> None:
        """Keep rows and targets."""
        self.rows: Array = integers("the rows of Values", rows).cpu().numpy()
        given = finite_numbers("the targets of Values", targets)
        self.targets = given[:, None] if given.ndim == 1 else given
        if self.rows.ndim != 1 or self.targets.ndim != 2 or len(self.rows) != len(self.targets):
            raise DataError(
                "Values needs rows (rows,) and targets (rows, outputs), as many of both; got "
                f"shapes {self.rows.shape} and {given.shape}."
            )
        known, counts = np.unique(self.rows, return_counts=True)
        if len(known) == 0 or counts.max() > 1:
            twice = known[counts > 1]
            raise DataError(f"Values needs each row once, at least one; rows that come twice: "
                            f"{twice[:5].tolist()}.")  # fmt: skip

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one equality for each row and output."""
        _require_known("Values", self.rows, samples)
        count = len(self.rows)
        if self.targets.shape[1] != outputs:
            raise DataError(
                f"Values has targets of {self.targets.shape[1]} outputs, and the network has "
                f"{outputs}."
            )
        ones = (np.ones(count), (np.arange(count), self.rows))
        matrix, ends = _alike(sparse.csr_matrix(ones, (count, samples)), outputs), self.targets
        return _limits("the targets of Values", matrix, ends, ends, ends.shape)

    def __repr__(self) -> str:
        """Name the number of rows."""
        return f"Values({len(self.rows)} rows)"


class Budget(Constraint):
    """mean of U over all samples <= b; prices (outputs,).

    Args:
        highest: b, a number or (outputs,), in units of the scores.

    Raises:
        DataError: b is no finite number.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Budget
        >>> Budget(1.0).violation(torch.tensor([[3.0], [0.0]]))
        0.5
    """

    def __init__(self, highest: Any) -> None:
        """Keep the budget."""
        self.highest = finite_numbers("the budget", highest)

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each output."""
        matrix = _alike(np.full((1, samples), 1 / samples), outputs)
        return _limits("the budget", matrix, None, self.highest, (outputs,))

    def taken(self, rows: Array, samples: int) -> Constraint:
        """Return the same: some rows have a mean of their own."""
        return self

    def __repr__(self) -> str:
        """Name the budget."""
        return _told(self, "highest")


class _OverSteps(Constraint):
    """Limits on the steps of every sequence together, whose rows stand one after the other."""

    lengths: Array | None = None

    def of_sequences(self, lengths: Array) -> Constraint:
        """Return the same for sequences of so many steps."""
        found = copy(self)
        found.lengths = np.asarray(lengths)
        return found

    def _numbers(self, samples: int) -> Array:
        """Return the number of the sequence of every row, (samples,)."""
        if self.lengths is None:
            raise DataError(
                f"{self!r} speaks of the steps of sequences, and this model has no answer for each "
                "step: take LiftedRNN or LiftedSequenceClassifier with y for every step."
            )
        if self.lengths.sum() != samples:
            raise DataError(
                f"{self!r} is of {self.lengths.sum()} steps, and the data have {samples}."
            )
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


class Rising(_OverSteps):
    """U_t + margin <= U_{t+1} for every two steps of a sequence; prices (pairs, outputs).

    Args:
        margin: in units of the scores.

    Raises:
        DataError: the margin is no finite number; at first use, there are no sequences.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Rising
        >>> rows = torch.tensor([[1.0], [2.0], [0.0], [-0.5]])  # two sequences of two steps
        >>> Rising().of_sequences([2, 2]).violation(rows)
        0.5
    """

    def __init__(self, margin: float = 0.0) -> None:
        """Keep the margin."""
        self.margin = _number("the margin of Rising", margin)

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each pair of steps and output."""
        numbers = self._numbers(samples)
        first = np.flatnonzero(numbers[1:] == numbers[:-1])
        return _ordered(np.c_[first, first + 1], self.margin, samples, outputs)

    def __repr__(self) -> str:
        """Name the margin."""
        return f"Rising(margin={self.margin:g})"


class Total(_OverSteps):
    """l <= sum of U over the steps of a sequence <= h; prices (sequences, outputs).

    Args:
        lower: l, a number, or (outputs,), or (sequences, outputs); None or -inf for none.
        upper: h, likewise.
        equal: both of them.

    Raises:
        DataError: they are no finite numbers, there are none, or one lies above the other; at first
            use, there are no sequences.

    Example:
        >>> import torch
        >>> from liftednet.constraints import Total
        >>> rows = torch.tensor([[1.0], [2.0], [0.0], [-0.5]])  # two sequences of two steps
        >>> Total(equal=[[3.0], [0.0]]).of_sequences([2, 2]).violation(rows)
        0.5
    """

    def __init__(self, lower: Any = None, upper: Any = None, equal: Any = None) -> None:
        """Keep the ends."""
        self.lower, self.upper, self.equal = _given("Total", lower, upper, equal)

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each sequence and output."""
        numbers = self._numbers(samples)
        ones = (np.ones(samples), (numbers, np.arange(samples)))
        count = 0 if self.lengths is None else len(self.lengths)
        sums = _alike(sparse.csr_matrix(ones, (count, samples)), outputs)
        ends = (self.lower, self.upper) if self.equal is None else (self.equal, self.equal)
        return _limits("an end of Total", sums, *ends, (count, outputs))

    def __repr__(self) -> str:
        """Name the ends."""
        return _told(self, "lower", "upper", "equal")


def _numbered(groups: Any) -> Any:
    """Return booleans and names as numbers of their groups, others as they are."""
    if isinstance(groups, Tensor):
        return groups + 0 if groups.dtype is torch.bool else groups
    with suppress(ValueError):  # rows of several lengths, of which `integers` tells
        found = np.asarray(groups)
        if found.dtype.kind == "b":
            return found + 0
        entries = groups if isinstance(groups, list | tuple) else []
        if any(map(is_missing, entries)):  # of which NumPy makes words beside words
            return groups
        if found.size and all(isinstance(x, str) for x in found.ravel().tolist()):
            return np.unique(found.astype(str), return_inverse=True)[1].reshape(found.shape)
    return groups


def _given(
    name: str, lower: Any, upper: Any, equal: Any = None
) -> tuple[Array | None, Array | None, Array | None]:
    """Return ends as arrays, those that are None as they are."""
    if (equal is None) == (lower is None and upper is None):
        raise DataError(f"{name} needs lower, upper or both, or equal alone.")
    given = {"lower": (lower, -np.inf), "upper": (upper, np.inf), "equal": (equal, None)}
    low, high, both = (
        None if x is None else finite_numbers(f"{end} of {name}", x, none)
        for end, (x, none) in given.items()
    )
    if low is not None and high is not None:
        try:
            worst = float(np.max(low - high))  # no end is infinite on the other side
        except ValueError as error:
            raise DataError(
                f"lower and upper of {name} have shapes {low.shape} and {high.shape}."
            ) from error
        if worst > 0:
            raise DataError(f"lower of {name} lies above upper, by up to {worst:.3g}.")
    return low, high, both


def _limits(
    name: str, matrix: Any, lower: Array | None, upper: Array | None, shape: tuple[int, ...]
) -> Limits:
    """Return l <= A u <= h, ends of fewer numbers spread over the shape of prices."""
    ends: list[Array] = []
    for end, none in ((lower, -np.inf), (upper, np.inf)):
        given = np.array(none) if end is None else end
        if given.ndim == 1 and len(shape) == 2 and shape[1] == 1:
            given = given[:, None]
        try:
            ends.append(np.array(np.broadcast_to(given, shape), dtype=np.float64).reshape(-1))
        except ValueError as error:
            raise DataError(
                f"{name} must be a number or have the shape {shape}; got {given.shape}."
            ) from error
    low, high = ends
    return Limits(matrix, low, high, shape)


def _ordered(pairs: Array, margin: float, samples: int, outputs: int) -> Limits:
    """Return U_i + margin <= U_j for pairs (i, j) of rows, (pairs, 2), or for none."""
    count = len(pairs)
    places = np.repeat(np.arange(count), 2), pairs.reshape(-1)
    differences = sparse.csr_matrix((np.tile([1.0, -1.0], count), places), (count, samples))
    matrix = _alike(differences, outputs)
    return _limits("the margin", matrix, None, np.array(-margin), (count, outputs))


def _alike(rows: Any, outputs: int) -> Any:
    """Return A of R U for every output alike, of R (rows, samples)."""
    return sparse.kron(sparse.csr_matrix(rows), sparse.identity(outputs), "csr")


def _told(constraint: Constraint, *names: str) -> str:
    """Return a constraint's class and numbers, the shapes of many."""
    parts = []
    for name in names:
        if (x := getattr(constraint, name)) is not None:
            few = x.size <= _SHOWN
            told = str(x.squeeze().tolist()) if few else f"array of shape {x.shape}"
            parts.append(f"{name}={told}")
    return f"{type(constraint).__name__}({', '.join(parts)})"


def _require_known(name: str, rows: Array, samples: int) -> None:
    if rows.min() < 0 or rows.max() >= samples:
        raise DataError(
            f"{name} needs rows from 0 to {samples - 1}; got rows from {rows.min()} to "
            f"{rows.max()}."
        )


def _number(name: str, value: Any) -> float:
    """Return one number, or raise `DataError`."""
    array = finite_numbers(name, value)
    if array.ndim:
        raise DataError(f"{name} must be one number, got some of shape {array.shape}.")
    return float(array)
