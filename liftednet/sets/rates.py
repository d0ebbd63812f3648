"""Shares of decisions, and mean probabilities: what people mean by rates, which is no convex set.

Every rate is linear in the decisions D (samples, classes), of which each row has a one where the
label that is predicted stands: the mean, over some rows, of the decisions that count. So is a mean
probability in the probabilities P. A constraint on rates is limits l <= A d <= h on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from torch import Tensor

from liftednet.errors import DataError
from liftednet.lazy import sparse
from liftednet.sets.polyhedron import Array, Limits, giving_way, least_excess
from liftednet.validation import is_missing

__all__ = ["GroupProbabilities", "GroupRates", "Rate"]

_KINDS = ("selection", "true_positive", "false_positive", "error")
_FIRM = 1e3  # how much firmer it is that rows are decided than what is asked of the decisions


@dataclass(frozen=True, eq=False)
class Share:
    """The share, among some rows, of the decisions that count.

    Attributes:
        name: of the rows, and of the class where there are several.
        rows: (some,) numbers of the samples.
        counts: (some, classes) booleans, the decisions that count in each row.
    """

    name: str
    rows: Array
    counts: Array

    def of(self, decisions: Array) -> float:
        """Return it, of decisions or probabilities (samples, classes)."""
        return float(decisions[self.rows][self.counts].sum()) / len(self.rows)


@dataclass(frozen=True, eq=False)
class Comparison:
    """l <= first - second <= h, or l <= first <= h.

    Attributes:
        first: a share.
        second: another one, of other rows, or None for 0.
        lower: l.
        upper: h.
    """

    first: Share
    second: Share | None
    lower: float
    upper: float

    @property
    def parts(self) -> list[tuple[float, Share]]:
        """The shares with their signs."""
        return [(1.0, self.first), *([] if self.second is None else [(-1.0, self.second)])]

    def of(self, decisions: Array) -> float:
        """Return the difference, of decisions or probabilities (samples, classes)."""
        return sum(sign * share.of(decisions) for sign, share in self.parts)

    @property
    def name(self) -> str:
        """What reports call it."""
        return " - ".join(share.name for _, share in self.parts)


class RateConstraint(ABC):
    """Limits on shares of decisions, or on mean probabilities, of a classifier.

    Shares count every row once, whatever its weight in training.

    Attributes:
        soft: whether it speaks of probabilities.

    Example:
        >>> from liftednet.constraints import GroupRates, RateConstraint
        >>> isinstance(GroupRates([0, 1], within=0.1), RateConstraint)
        True
    """

    soft = False

    @abstractmethod
    def comparisons(self, labels: Array, classes: int) -> list[Comparison]:
        """Return what is held, for the numbers of the labels (samples,).

        Raises:
            DataError: it does not fit these samples, or speaks of rows that there are none of.
        """

    @abstractmethod
    def taken(self, rows: Array) -> Self:
        """Return the same on some rows (some,) of the samples, in this order."""

    def numbered(self, labels: Array) -> Self:
        """Return the same with the numbers of labels in place of labels (classes,)."""
        return self

    def violation(self, decisions: Any, labels: Any) -> float:
        """Return by how much decisions or probabilities break it at most.

        Args:
            decisions: (samples,) the number of every decision, or (samples, classes).
            labels: (samples,) the number of every true label.

        Example:
            >>> from liftednet.constraints import GroupRates
            >>> GroupRates(["a", "a", "b", "b"]).violation([1, 1, 0, 1], [0, 1, 0, 1])
            0.48
        """
        given, truth = np.asarray(decisions), np.asarray(labels)
        if given.ndim == 1:
            given = np.eye(max(2, int(given.max()) + 1, int(truth.max()) + 1))[given.astype(int)]
        found = self.comparisons(truth, given.shape[1])
        at = ((one.of(given), one) for one in found)
        return round(max(max(one.lower - x, x - one.upper, 0.0) for x, one in at), 12)


class GroupRates(RateConstraint):
    """|rate of group a - rate of group b| <= within for every two groups, of decisions.

    Agarwal et al., A Reductions Approach to Fair Classification (2018), section 2: "selection" is
    the share that is decided positive (demographic parity), "true_positive" that of the rows whose
    label is positive (equal opportunity), "false_positive" that of the others, "error" the share
    that is decided wrongly. Of two classes the second is positive; of more, each is in its turn.

    Args:
        groups: (samples,) the group of every sample, of any type; or (samples, k), where each
            combination of the k is a group (their intersections). For several groupings, each by
            itself, give several constraints.
        within: the largest difference, 0 to 1.
        of: "selection", "true_positive", "false_positive" or "error".

    Raises:
        DataError: groups are fewer than two, within is no share, or `of` is none of these.

    Example:
        >>> from liftednet.constraints import GroupRates
        >>> GroupRates(["a", "a", "b", "b"], within=0.1).violation([1, 1, 0, 1], [0, 1, 0, 1])
        0.4
    """

    def __init__(self, groups: Any, within: float = 0.02, of: str = "selection") -> None:
        """Keep the groups."""
        kind = type(self).__name__
        self.group, self.names = _groups(kind, groups)
        self.within, self.of = _share(f"within of {kind}", within), _kind(of, _KINDS)

    def comparisons(self, labels: Array, classes: int) -> list[Comparison]:
        """Return the differences of every two groups, for each class that counts."""
        _require_rows(self, len(self.group), len(labels))
        found = []
        once = classes == 2 or self.of == "error"  # else every class is positive in its turn
        for label in (1,) if once else range(classes):
            shares = [
                _counted(self.of, name if classes == 2 else f"{name} (class {label})",
                         self.group == number, labels, classes, label)
                for number, name in enumerate(self.names)
            ]  # fmt: skip
            pairs = combinations(shares, 2)
            found += [Comparison(*pair, -self.within, self.within) for pair in pairs]
        return found

    def taken(self, rows: Array) -> Self:
        """Return the same on some rows."""
        found = copy(self)
        found.group = self.group[rows]
        return found

    def __repr__(self) -> str:
        """Name the groups, the distance and the rate."""
        of = "" if self.soft else f", of={self.of!r}"
        return f"{type(self).__name__}({len(self.names)} groups, within={self.within:g}{of})"


class GroupProbabilities(GroupRates):
    """|mean probability of group a - mean probability of group b| <= within for every two groups.

    Of the positive class, or of every class where there are more than two. Decisions are not
    meant: equal mean probabilities may go with unequal rates.

    Args:
        groups: as `GroupRates` takes them.
        within: the largest difference, 0 to 1.

    Raises:
        DataError: as `GroupRates`.

    Example:
        >>> import numpy as np
        >>> from liftednet.constraints import GroupProbabilities
        >>> chances = np.array([[0.5, 0.5], [0.25, 0.75]])
        >>> GroupProbabilities(["a", "b"], within=0.05).violation(chances, [0, 1])
        0.2
    """

    soft = True

    def __init__(self, groups: Any, within: float = 0.02) -> None:
        """Keep the groups."""
        super().__init__(groups, within)


class Rate(RateConstraint):
    """at_least <= rate <= at_most of decisions among some rows.

    Coverage is `of="selection"`, recall "true_positive"; "churn" is the share of decisions that
    differ from `old`, those of another model (Cotter et al., Optimization with Non-Differentiable
    Constraints with Applications to Fairness, Recall, Churn, and Other Goals, 2019).

    Args:
        rows: (some,) numbers of the rows, or (samples,) booleans; None for all.
        at_most: the upper end, 0 to 1, or None.
        at_least: the lower end, likewise.
        of: "selection", "true_positive", "false_positive", "error" or "churn".
        label: which is positive; None for the second of two.
        old: (samples,) labels, the decisions of another model on the same rows, for churn.

    Raises:
        DataError: there is no end, one is no share, or they contradict each other.

    Example:
        >>> from liftednet.constraints import Rate
        >>> Rate(at_most=0.25).violation([1, 1, 0, 1], [0, 1, 0, 1])
        0.5
        >>> Rate(of="churn", old=[1, 0, 0, 1], at_most=0.2).violation([1, 1, 0, 1], [0, 1, 0, 1])
        0.05
    """

    def __init__(
        self,
        rows: Any = None,
        at_most: float | None = None,
        *,
        at_least: float | None = None,
        of: str = "selection",
        label: Any = None,
        old: Any = None,
    ) -> None:
        """Keep rows and ends."""
        if at_most is None and at_least is None:
            raise DataError("Rate needs at_most, at_least or both, as in Rate(at_most=0.1).")
        self.at_most = None if at_most is None else _share("at_most of Rate", at_most)
        self.at_least = None if at_least is None else _share("at_least of Rate", at_least)
        self.ends = self.at_least or 0.0, 1.0 if self.at_most is None else self.at_most
        if self.ends == (0.0, 1.0):
            raise DataError("Rate asks nothing: every share lies from 0 to 1.")
        if self.ends[0] > self.ends[1]:
            raise DataError(f"at_least of Rate, {at_least}, lies above at_most, {at_most}.")
        self.of, self.label = _kind(of, (*_KINDS, "churn")), label
        if (of == "churn") != (old is not None):
            raise DataError('Rate needs old decisions with of="churn", and with no other.')
        if isinstance(label, list | dict | set | np.ndarray):
            raise DataError(f"label of Rate must be one label, got {label!r}.")
        self.old = None if old is None else _row_of("old of Rate", old)
        if self.old is not None and any(map(is_missing, self.old.tolist())):
            raise DataError("some of the old decisions of Rate are missing.")
        given = None if rows is None else _row_of("the rows of Rate", rows)
        if given is not None and given.dtype != bool and given.dtype.kind not in "iu":
            raise DataError(f"the rows of Rate must be integers or booleans, got {given.dtype}.")
        self.rows: Array | None = given

    def comparisons(self, labels: Array, classes: int) -> list[Comparison]:
        """Return the one share and its ends."""
        samples, rows = len(labels), self.rows
        if self.old is not None:
            _require_rows(self, len(self.old), samples)
        label = self.label
        if label is None and classes > 2 and self.of not in ("error", "churn"):
            raise DataError(f"{self!r} must say which of {classes} classes is meant: label=.")
        label = 1 if label is None else label
        if label not in range(classes):
            raise DataError(f"label of Rate is {label!r}, which is none of the {classes} classes.")
        chosen = np.ones(samples, dtype=bool)
        if rows is not None and rows.dtype == bool:
            _require_rows(self, len(rows), samples)
            chosen = rows
        elif rows is not None:
            if len(rows) and (rows.min() < 0 or rows.max() >= samples):
                raise DataError(f"the rows of Rate must lie in 0 to {samples - 1}.")
            chosen = np.isin(np.arange(samples), rows)
        truth = labels if self.old is None else self.old
        name = "rows" if rows is not None else "all"
        share = _counted(self.of, name, chosen, truth, classes, int(label))
        return [Comparison(share, None, *self.ends)]

    def taken(self, rows: Array) -> Self:
        """Return the same on some rows."""
        found = copy(self)
        if self.rows is not None and self.rows.dtype == bool:
            found.rows = self.rows[rows]
        elif self.rows is not None:
            found.rows = np.flatnonzero(np.isin(rows, self.rows))
        found.old = None if self.old is None else self.old[rows]
        return found

    def numbered(self, labels: Array) -> Self:
        """Return the same with the numbers of labels."""
        found, known = copy(self), {label: number for number, label in enumerate(labels.tolist())}
        unknown = [] if self.label is None or self.label in known else [self.label]
        if self.old is not None:
            unknown += [x for x in dict.fromkeys(self.old.tolist()) if x not in known]
        if unknown:
            raise DataError(f"Rate speaks of the label {unknown[0]!r}; there are {list(known)}.")
        found.label = None if self.label is None else known[self.label]
        if self.old is not None:
            found.old = np.array([known[x] for x in self.old.tolist()])
        return found

    def __repr__(self) -> str:
        """Name the rate and its ends."""
        rows = "" if self.rows is None else "some rows, "
        ends = (("at_least", self.at_least), ("at_most", self.at_most))
        told = ", ".join(f"{name}={end:g}" for name, end in ends if end is not None)
        return f"Rate({rows}{told}, of={self.of!r})"


def rate_limits(comparisons: Sequence[Comparison], samples: int, classes: int) -> Limits:
    """Return l <= A d <= h for decisions or probabilities D (samples, classes), row after row."""
    rows = [_row(one, samples, classes) for one in comparisons]
    none = sparse.csr_matrix((0, samples * classes))
    matrix = sparse.csr_matrix(sparse.vstack([none, *rows]))
    lower = np.array([one.lower for one in comparisons])
    upper = np.array([one.upper for one in comparisons])
    return Limits(matrix, lower, upper, (len(rows),))


def kinds_of(limits: Limits, classes: int) -> tuple[Array, Array]:
    """Return the first row of each kind, (kinds,), and the kind of every row, (samples,).

    Rows are of one kind where all limits on decisions (samples, classes) count them alike.
    """
    coded = limits.matrix.T @ np.random.default_rng(0).standard_normal(len(limits.lower))
    _, first, kinds = np.unique(
        coded.reshape(-1, classes).round(12), axis=0, return_index=True, return_inverse=True
    )
    return first, kinds.ravel()


def refuse_rates(constraints: Sequence[RateConstraint], labels: Array, classes: int) -> None:
    """Raise `DataError` where no decisions meet all constraints on rates.

    Rows that count alike are one: it is a small linear program in the shares of each kind of row.
    """
    held = [(one, one.comparisons(labels, classes)) for one in constraints]
    found = rate_limits([x for _, some in held for x in some], len(labels), classes)
    first, kinds = kinds_of(found, classes)
    sizes = np.bincount(kinds)
    columns = (first[:, None] * classes + np.arange(classes)).ravel()
    asked = found.matrix[:, columns] @ sparse.diags(np.repeat(sizes, classes).astype(float))
    each = sparse.identity(len(columns), format="csr") * _FIRM
    whole = sparse.kron(sparse.identity(len(sizes)), np.ones((1, classes)), "csr") * _FIRM
    lower = np.concatenate([found.lower, np.zeros(len(columns)), np.full(len(sizes), _FIRM)])
    upper = np.concatenate([found.upper, np.full(len(columns) + len(sizes), _FIRM)])
    excess = least_excess(sparse.vstack([asked, each, whole]), lower, upper)
    if excess is None:
        return
    names = giving_way([(one, len(some)) for one, some in held], excess)
    raise DataError(
        "the constraints on rates contradict each other, whatever the network: no decisions meet "
        f"all of them; nearest to it, what gives way is {names}."
    )


def _row(one: Comparison, samples: int, classes: int) -> Any:
    """Return what a comparison adds up, (1, samples * classes)."""
    entries: list[Array] = []
    columns: list[Array] = []
    for sign, share in one.parts:
        at, label = np.nonzero(share.counts)
        columns.append(share.rows[at] * classes + label)
        entries.append(np.full(len(at), sign / len(share.rows)))
    flat = np.concatenate(columns)
    places = np.zeros(len(flat), dtype=int), flat
    return sparse.csr_matrix((np.concatenate(entries), places), (1, samples * classes))


def _counted(of: str, name: str, chosen: Array, truth: Array, classes: int, label: int) -> Share:
    """Return the share of a kind among the chosen rows."""
    if of == "true_positive":
        chosen, wanted = chosen & (truth == label), "positive row"
    elif of == "false_positive":
        chosen, wanted = chosen & (truth != label), "negative row"
    else:
        wanted = "row"
    rows = np.flatnonzero(chosen)
    if not len(rows):
        raise DataError(f"the {of.replace('_', ' ')} rate of {name} is of no row: it has no "
                        f"{wanted} among {len(truth)} samples.")  # fmt: skip
    if of in ("error", "churn"):
        return Share(name, rows, truth[rows, None] != np.arange(classes))
    return Share(name, rows, np.broadcast_to(np.arange(classes) == label, (len(rows), classes)))


def _groups(kind: str, given: Any) -> tuple[Array, list[str]]:
    """Return the number of every sample's group, and the names of the groups."""
    try:
        found = _array(given)
    except ValueError as error:
        raise DataError(f"the groups of {kind} are lists of several lengths.") from error
    if found.ndim not in (1, 2) or not found.size:
        raise DataError(f"the groups of {kind} must be (samples,) or (samples, k), at least one "
                        f"sample; got shape {found.shape}.")  # fmt: skip
    columns = found[:, None] if found.ndim == 1 else found
    # NumPy makes words of all that stands beside words in a list, of NaN, too.
    whole = np.asarray(given, object) if isinstance(given, list | tuple) else columns
    if any(map(is_missing, whole.ravel().tolist())):
        raise DataError(f"some groups of {kind} are missing: give these rows a group of their own.")
    each = [_numbered(f"a group of {kind}", column) for column in columns.T]
    codes = np.stack([inverse for _, inverse in each], 1)
    rows, numbers = np.unique(codes, axis=0, return_inverse=True)
    names = [", ".join(str(known[x]) for (known, _), x in zip(each, row, strict=True))
             for row in rows]  # fmt: skip
    if len(names) < 2:
        raise DataError(f"{kind} needs two groups or more, got {len(names)}.")
    return numbers.ravel(), names


def _numbered(name: str, column: Array) -> tuple[Any, Array]:
    """Return the different entries, sorted where they can be, and the number of every row's."""
    with suppress(TypeError):  # of words beside numbers
        return np.unique(column, return_inverse=True)
    entries = column.tolist()
    try:
        known = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    except TypeError as error:
        raise DataError(f"{name} must be a number or a word; {error}.") from error
    return list(known), np.array([known[entry] for entry in entries])


def _row_of(name: str, given: Any) -> Array:
    """Return what is given for some rows as an array of one axis."""
    found = _array(given)
    if found.ndim != 1:
        raise DataError(f"{name} must have one axis, got shape {found.shape}.")
    return found


def _array(given: Any) -> Array:
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    return np.asarray(given)


def _share(name: str, given: Any) -> float:
    with suppress(TypeError, ValueError):
        if 0 <= float(given) <= 1:
            return float(given)
    raise DataError(f"{name} must be a share from 0 to 1, got {given!r}.")


def _kind(of: str, kinds: Sequence[str]) -> str:
    if of not in kinds:
        raise DataError(f"of must be one of {', '.join(map(repr, kinds))}; got {of!r}.")
    return of


def _require_rows(one: RateConstraint, given: int, samples: int) -> None:
    if given != samples:
        raise DataError(f"{one!r} is of {given} samples, and the data have {samples}.")
