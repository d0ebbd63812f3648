"""Whether an activation's declaration holds, decided with numbers and by CVXPY's rules."""

from __future__ import annotations

import torch

from liftednet.activation import Activation, require_activation, require_torch
from liftednet.check.properties import Test, properties
from liftednet.check.report import Check, FailedCheckError, Report, Subject
from liftednet.errors import LiftedError, SolverError
from liftednet.names import activation_of

__all__ = ["Check", "FailedCheckError", "Report", "check_activation"]


def check_activation(activation: Activation, units: int = 3) -> Report:
    """Decide with numbers and CVXPY's rules whether an activation's declaration holds.

    phi(u) = argmin_v D(v, u) with D convex in each block (Lifted Neural Networks, section 4, BCR
    condition): the argmin, solved by CVXPY, is unique and equal to `forward`; the tight divergence
    is nonnegative and zero at v = phi(u); prox, conjugate, slope, projection, Lipschitz constant,
    offset, excess and the values in torch agree with potential and forward, for |u| from 0.001 to
    1,000, t from 1e-8 to 1e8, in float32 and float64. A method that is neither declared nor derived
    is not tested.

    Args:
        activation: the activation.
        units: how many units a sample has where units are coupled.

    Returns:
        A report that prints as a table.

    Raises:
        DeclarationError: it does not hold; the message names the first point that fails, and the
            error's `report` has the checks so far. Or nothing says of which problem `forward` is
            the argmin.

    Example:
        >>> from liftednet import check_activation
        >>> from liftednet.activations import ReLU
        >>> check_activation(ReLU()).passed
        True
    """
    activation = activation_of(activation)
    require_activation(activation, "check_activation")
    generator = torch.Generator().manual_seed(0)
    done: list[Check] = []
    for one in activation.alone():
        require_torch(one, units)
        subject = Subject(one, 1 if one.per_unit else units, generator)
        for test in properties(subject):
            done.append(check := _outcome(test, subject))
            if not check.passed:
                raise FailedCheckError(Report(repr(activation), tuple(done)))
    return Report(repr(activation), tuple(done))


def _outcome(test: Test, subject: Subject) -> Check:
    """Return the check, which fails where a declared method raises an error of its own."""
    try:
        return test(subject)
    except SolverError as error:
        return Check("argmin: exists", "solved by CVXPY", torch.inf, 0.0, f"{error}")
    except LiftedError:
        raise
    except Exception as error:  # whatever a user's method may raise
        name = test.__name__.replace("_", " ")
        failure = f"a declared method raises {type(error).__name__}: {error}"
        return Check(name, "calls of the declared methods", torch.inf, 0.0, failure)
