"""The catalogue: constraints on scores that are linear, within a sample and across samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from liftednet.constraints.constraint import Array, Constraint, Limits, as_array
from liftednet.errors import DataError
from liftednet.lazy import sparse
from liftednet.validation import integers

_SHOWN = 6  # numbers of an array in a line


class _Linear(Constraint):
    """A constraint that has limits."""

    _told: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Name the class and its numbers."""
        given = {name: getattr(self, name) for name in self._told}
        parts = (f"{name}={_brief(x)}" for name, x in given.items() if x is not None)
        return f"{type(self).__name__}({', '.join(parts)})"


def _brief(given: Array) -> str:
    few = given.size <= _SHOWN
    return str(given.squeeze().tolist()) if few else f"array of shape {given.shape}"


class Bounds(_Linear):
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

    _told = ("lower", "upper")

    def __init__(self, lower: Any = None, upper: Any = None) -> None:
        """Keep the bounds."""
        self.lower, self.upper = _given("Bounds", lower=lower, upper=upper)
        _ends("Bounds", self.lower, self.upper)

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each entry."""
        shape = samples, outputs
        ends = _ends("Bounds", self.lower, self.upper)
        lower, upper = (_spread("the bounds", end, shape) for end in ends)
        each = sparse.identity(samples * outputs, format="csr")
        return Limits(each, lower, upper, shape)

    def each(self, outputs: int) -> Limits:
        """Return one limit for each output."""
        return self.limits(1, outputs)


class Linear(_Linear):
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

    _told = ("coefficients", "lower", "upper", "equal", "inputs")

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
        given = as_array("the coefficients of Linear", coefficients)
        self.coefficients = given[:, None] if given.ndim == 1 else given
        if self.coefficients.ndim != 2 or not self.coefficients.any(axis=0).all():
            raise DataError(
                "the coefficients of Linear must have shape (outputs,) or (outputs, k), none of "
                f"the k all zero; got shape {given.shape}."
            )
        self.lower, self.upper, self.equal = _given("Linear", lower=lower, upper=upper, equal=equal)
        _ends("Linear", self.lower, self.upper, self.equal)
        self.inputs = None if inputs is None else as_array("the inputs of Linear", inputs)
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
        shape = samples, count
        ends = _ends("Linear", self.lower, self.upper, self.equal)
        lower, upper = (_spread("an end of Linear", end, shape) for end in ends)
        each = sparse.csr_matrix(self.coefficients.T)
        return Limits(sparse.kron(sparse.identity(samples), each, "csr"), lower, upper, shape)


class GroupMeans(_Linear):
    """|mean of U over group g - mean of U over all groups| <= within; prices (groups, outputs).

    Demographic parity of the scores: Agarwal et al., A Reductions Approach to Fair Classification
    (2018), section 2, with scores in place of decisions.

    The distances of all groups, each times its size, sum to 0: at `within=0` one of the equations
    follows from the others, and how groups share the price is not unique. The differences are of
    prices divided by the sizes of their groups.

    Args:
        groups: (samples,) the integer group of every sample, or booleans of two groups; a negative
            one is in none.
        within: of the mean of all, in units of the scores, 0 or more.

    Raises:
        DataError: groups are no integers, fewer than two, or overlap; within is negative.

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
        self.within = float(as_array("within", within))
        self.names = np.unique(self.groups[self.groups >= 0])
        if len(self.names) < 2:
            raise DataError(f"GroupMeans needs two groups or more, got {len(self.names)}.")
        if self.within < 0:
            raise DataError(f"within must be 0 or more, got {within}.")

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each group and output."""
        _require_rows("GroupMeans", len(self.groups), samples)
        member = self.groups[None] == self.names[:, None]
        inside = self.groups >= 0
        means = member / member.sum(1, keepdims=True) - inside / inside.sum()
        matrix = sparse.kron(sparse.csr_matrix(means), sparse.identity(outputs), "csr")
        ends = np.full(matrix.shape[0], self.within)
        return Limits(matrix, -ends, ends, (len(self.names), outputs))

    def __repr__(self) -> str:
        """Name the groups and the distance."""
        return f"GroupMeans({len(self.names)} groups, within={self.within:g})"


class Order(_Linear):
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
        flat = [x for pair in pairs for x in pair] if isinstance(pairs, list | tuple) else pairs
        found = integers("the pairs of Order", flat)
        if len(found) == 0 or found.numel() != 2 * len(pairs):
            raise DataError(
                "the pairs of Order must be pairs (i, j) of rows, (pairs, 2), at least one; got "
                f"shape {tuple(found.shape)}."
            )
        self.pairs: Array = found.reshape(-1, 2).cpu().numpy()
        self.margin = float(as_array("the margin of Order", margin))
        same = self.pairs[:, 0] == self.pairs[:, 1]
        if same.any():
            raise DataError(f"Order needs pairs of different rows, got {self.pairs[same][0]}.")

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each pair and output."""
        _require_known("Order", self.pairs, samples)
        count = len(self.pairs)
        ends = np.tile([1.0, -1.0], count)
        rows = np.repeat(np.arange(count), 2)
        differences = sparse.csr_matrix((ends, (rows, self.pairs.reshape(-1))), (count, samples))
        matrix = sparse.kron(differences, sparse.identity(outputs), "csr")
        upper = np.full(matrix.shape[0], -self.margin)
        return Limits(matrix, np.full_like(upper, -np.inf), upper, (count, outputs))

    def __repr__(self) -> str:
        """Name the number of pairs."""
        return f"Order({len(self.pairs)} pairs, margin={self.margin:g})"


class Values(_Linear):
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
        given = as_array("the targets of Values", targets)
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
        matrix = sparse.kron(sparse.csr_matrix(ones, (count, samples)), sparse.identity(outputs))
        flat = self.targets.reshape(-1)
        return Limits(sparse.csr_matrix(matrix), flat, flat, (count, outputs))

    def __repr__(self) -> str:
        """Name the number of rows."""
        return f"Values({len(self.rows)} rows)"


class Budget(_Linear):
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

    _told = ("highest",)

    def __init__(self, highest: Any) -> None:
        """Keep the budget."""
        self.highest = as_array("the budget", highest)

    def limits(self, samples: int, outputs: int) -> Limits:
        """Return one limit for each output."""
        upper = _spread("the budget", self.highest, (outputs,))
        mean = sparse.csr_matrix(np.full((1, samples), 1 / samples))
        matrix = sparse.kron(mean, sparse.identity(outputs), "csr")
        return Limits(matrix, np.full_like(upper, -np.inf), upper, (outputs,))


def _numbered(groups: Any) -> Any:
    """Return booleans as numbers of two groups, others as they are."""
    listed = isinstance(groups, list | tuple) and all(isinstance(x, bool) for x in groups)
    given = np.array(groups) if listed else groups
    return given + 0 if str(getattr(given, "dtype", "")).endswith("bool") else given


def _given(name: str, **ends: Any) -> tuple[Array | None, ...]:
    """Return ends as arrays, those that are None as they are."""
    none = {"lower": -np.inf, "upper": np.inf}
    return tuple(
        x if x is None else as_array(f"{end} of {name}", x, none.get(end))
        for end, x in ends.items()
    )


def _ends(
    name: str, lower: Array | None, upper: Array | None, equal: Array | None = None
) -> tuple[Array, Array]:
    """Return l and h, infinite where there is none."""
    if (equal is None) == (lower is None and upper is None):
        raise DataError(f"{name} needs lower, upper or both, or equal alone.")
    if equal is not None:
        lower = upper = equal
    low = np.array(-np.inf) if lower is None else lower
    high = np.array(np.inf) if upper is None else upper
    try:
        crossed = np.broadcast_arrays(low, high)
    except ValueError as error:
        raise DataError(
            f"lower and upper of {name} have shapes {low.shape} and {high.shape}."
        ) from error
    if (crossed[0] > crossed[1]).any():
        worst = float((crossed[0] - crossed[1]).max())
        raise DataError(f"lower of {name} lies above upper, by up to {worst:.3g}.")
    return low, high


def _spread(name: str, given: Array, shape: tuple[int, ...]) -> Array:
    """Return numbers for all entries of a shape, as one axis."""
    if given.ndim == 1 and len(shape) == 2 and shape[1] == 1:
        given = given[:, None]
    try:
        return np.array(np.broadcast_to(given, shape), dtype=np.float64).reshape(-1)
    except ValueError as error:
        raise DataError(
            f"{name} must be a number or have the shape {shape}; got {given.shape}."
        ) from error


def _require_rows(name: str, given: int, samples: int) -> None:
    if given != samples:
        raise DataError(f"{name} is of {given} samples, and the data have {samples}.")


def _require_known(name: str, rows: Array, samples: int) -> None:
    if rows.min() < 0 or rows.max() >= samples:
        raise DataError(
            f"{name} needs rows from 0 to {samples - 1}; got rows from {rows.min()} to "
            f"{rows.max()}."
        )
