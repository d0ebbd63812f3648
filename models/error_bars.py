"""Error bars: what the data leave open about a fitted network, and the noise around it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from liftednet import errors
from liftednet.activations import Identity
from liftednet.errors import DataError, DeclarationError, FitWarning, SolverError
from liftednet.losses import Likelihood, Poisson
from liftednet.network import Term, parameters_of
from liftednet.noise import Noise
from liftednet.power import Power
from liftednet.predictions import PowerPrediction, Prediction
from liftednet.validation import model_of, require_count

from .block import Blocks
from .choice import matrix_work
from .data import Arrays, Data, Lengths
from .lifted import Lifted
from .methods.gauss_newton import MOST_WEIGHTS, GaussNewton, count_weights, forward_of
from .methods.global_optimum import Global
from .prediction import Fitted
from .standardization import Moments, unpacked_standardization

if TYPE_CHECKING:
    from liftednet.solvers.gauss_newton.laplace import Laplace
    from liftednet.solvers.gauss_newton.objective import Forward

__all__ = ["Posterior", "posterior"]

_FEWEST = 3  # rows that tell how large their noise is
FEW = 20  # rows: of fewer chance may look like targets without noise, or skewed ones
_NO_NOISE = 1e-6  # of the variance of the targets: a thousandth of their deviation
_MOST_BYTES = 2**24  # of error bars in a file
_MOST_WORK = 4e11  # multiplications in a matrix of all weights, about ten seconds
_KNOWN = 1e300  # what is infinite in a file, as degrees of freedom of a noise that is known
_SURE = 2.0  # standard errors by which means are better than medians
_FAR = 1e6  # most that variances differ by
_SHIFTS = 20  # other rows that each row is given an input of
_METHOD = "method=GaussNewton(evidence=True) of liftednet.models"


class PoissonByWeights(Poisson):
    """The loss of precisions, which is a density by the weights of rows: nothing is dispersed."""

    dispersed = False


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the data say about the weights of a network, as `posterior` finds it.

    Laplace's approximation: weights have the density N(w, s H^-1) with H = J'BJ + 2 rho, and
    outputs are those of the network linearized at w (Immer, Korzepa and Bauer, Improving
    predictions of Bayesian neural nets via local linearization, 2021). It knows the noise, and what
    units of this form may yet answer; not whether another network would be better.

    Attributes:
        model: as it was fitted.
        laplace: N(w, s H^-1), on the scale of training.
        read: returns what the model takes of X as it is given, such as a data frame.

    Example:
        >>> import torch
        >>> from liftednet import posterior
        >>> from liftednet.activations import Tanh
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import GaussNewton, LiftedMLP
        >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64).unsqueeze(1)
        >>> y = x + 0.1 * torch.cos(40 * x)
        >>> method = GaussNewton(evidence=True)
        >>> found = posterior(LiftedMLP((1, 5, 1), Tanh(), SquaredError(), method=method).fit(x, y))
        >>> far, near = found.predict(torch.tensor([[5.0], [0.0]])).ignorance
        >>> bool(far > 3 * near)
        True
    """

    model: Lifted
    laplace: Laplace = field(repr=False)
    read: Callable[[Any], Any] = field(repr=False)

    @property
    def log_evidence(self) -> float:
        """Log p(y), the logarithm of the density of the targets, in units of y; see `Evidence`.

        Of two networks for the same y that with the larger one is the better guess.

        Raises:
            DataError: some weights have no rho, and so no density, or are taken as known.
        """
        if self.laplace.logarithm == -math.inf:
            raise DataError(
                "weights without rho have no density, and so y has none, as with error bars of the "
                f"last layer alone or a noise that varies: set rho, fewer weights, or {_METHOD}."
            )
        return self.laplace.logarithm

    def predict(self, X: Arrays, *, lengths: Lengths = None) -> Prediction:
        """Return means, noise and ignorance of new rows.

        The variance of an answer is s (1 + j' H^-1 j) with j the derivatives of the output in all
        weights; s and j of each output where there are several. Rates of counts have a logarithm
        from N(u, s j' H^-1 j), and the noise of counts is the root of their mean.

        Args:
            X: as the model or estimator takes it.
            lengths: of sequences, as the model takes them.

        Raises:
            DataError: X cannot be used, or the loss gives probabilities.
        """
        if self._term.loss.probabilistic:
            raise DataError(
                f"{self._term.loss.name} gives probabilities, whose noise is in them: call "
                "predict_proba."
            )
        X = self.read(X)
        data = self.model._unlabeled(X, lengths)
        center, width = (self._by_sample(x, data) for x in self._linearized(data))
        found = self._likelihood.predicted(center, width, self._noise(X), self.laplace.degrees)
        power = self._moments.power
        return found if power is None else PowerPrediction.of(power, found)

    def _linearized(self, data: Data) -> tuple[Tensor, Tensor]:
        """Return means and ignorance, (samples, rows, outputs), of y or of its power."""
        each = self.laplace.outputs(self._forward(data))
        pairs = [(u, v.diagonal(dim1=-2, dim2=-1).sqrt()) for u, v in each]
        means, ignorance = (torch.cat(x) for x in zip(*pairs, strict=True))
        return self._moments.raised(means), ignorance * self._moments.scale

    def predict_proba(self, X: Arrays, *, lengths: Lengths = None) -> Tensor:
        """Return class probabilities, averaged over the weights that the data leave open.

        Over pre-activations from N(u, c J H^-1 J') of all classes together, by fixed points of that
        distribution, with the share c of the covariance that makes classes of samples that are left
        out most likely (`share_of`). (samples, outputs).

        Raises:
            DataError: X cannot be used, or the loss gives no probabilities.
        """
        from liftednet.solvers.gauss_newton.laplace import averaged

        if not self._term.loss.probabilistic:
            raise DataError(f"{self._term.loss.name} gives no probabilities; call predict.")
        data = self.model._unlabeled(self.read(X), lengths)
        activate = self._term.activation.forward
        found = [
            averaged(activate, outputs, covariances)
            for outputs, covariances in self.laplace.outputs(self._forward(data))
        ]
        return self._by_sample(torch.cat(found), data)

    def sample(
        self,
        X: Arrays,
        n: int = 1,
        generator: torch.Generator | None = None,
        *,
        noise: bool = True,
        lengths: Lengths = None,
    ) -> Tensor:
        """Return draws of what all rows answer together, (n, samples, outputs).

        Args:
            X: as the model or estimator takes it.
            n: how many.
            generator: None for one of seed 0.
            noise: whether each answer has its own noise; without it these are functions that the
                data leave open. Of a loss of probabilities they are drawn probabilities, always
                without.
            lengths: of sequences, as the model takes them.

        Raises:
            DataError: X cannot be used, n is not positive, or generator is none.
        """
        require_count("the number of draws", n, 1)
        source = torch.Generator().manual_seed(0) if generator is None else generator
        if not isinstance(source, torch.Generator):
            raise DataError(
                "generator must be a torch.Generator, such as torch.Generator().manual_seed(0), "
                f"got {generator!r}."
            )
        X = self.read(X)
        data = self.model._unlabeled(X, lengths)
        drawn = self.laplace.draws(self._forward(data), n, source)
        if self._term.loss.probabilistic or not noise:
            return torch.stack([self._by_sample(self._answered(one), data) for one in drawn])
        raised, power = self._moments.raised(drawn), self._moments.power
        if power is not None:
            raised = power.about_training(raised, *self._linearized(data))
        drawn = self._likelihood.drawn(raised, self._noise(X, drawn.ndim - 2), source)
        if power is not None:
            drawn = power.quantile(drawn)
        return torch.stack([self._by_sample(one, data) for one in drawn])

    def leave_one_out(self) -> Tensor:
        """Return y less what the network would answer without that row, (samples, outputs).

        r_i / (1 - j_i' H^-1 j_i), in units of y: of a linear network with these rho exactly what
        fits without the row would leave, of others what they would to first order. A row of weight
        2 is left out with both of its copies.

        Raises:
            DataError: the loss is not a squared error.
            NotFittedError: the model was loaded, and holds no data.
        """
        if self._term.loss.probabilistic:
            raise DataError(f"{self._term.loss.name} leaves no residuals, which are of squares.")
        return self._left_out()

    def residuals(self) -> Tensor:
        """Return r^2 / (1 - j' H^-1 j), (samples, outputs), on the scale of training."""
        data = self.model._on_data()
        forward = self._forward(data)
        values, alone = self._alone(forward, copies=True)
        (answers,) = forward.passed(self.laplace.point)
        return self._by_sample(((values - alone) * (values - answers)).abs(), data)

    def _noise(self, X: Arrays, axes: int = 1) -> Noise:
        """Return the noise of rows in units of y, or of its powers, samples on so many axes."""
        size = self.laplace.noise
        if self.model._known.varying is not None:
            network, level = self.model._known.varying
            logarithm = math.log(level) - network.scores(X).double()  # of rows far away, too
            found = logarithm.exp().clamp(1 / _FAR, _FAR)
            size = size * (found if axes == 1 else found.unsqueeze(-1))
        return Noise(size, *self.laplace.tails).scaled(self._moments.scale)

    def _left_out(self, copies: bool = False) -> Tensor:
        data = self.model._on_data()
        pair = self._alone(self._forward(data), copies)
        values, answers = (self._by_sample(one, data) for one in pair)
        return self._moments.undone(values) - self._answered(answers)

    def _alone(self, forward: Forward, copies: bool) -> tuple[Tensor, Tensor]:
        """Return targets, and what the network would answer without each, as in training."""
        (target,) = forward.targets
        means = torch.cat([mean for mean, _ in self.laplace.left_out(forward, copies=copies)])
        return target.values, means.reshape_as(target.values)

    @property
    def _term(self) -> Term:
        (term,) = self.model.network.terms
        return term

    @property
    def _moments(self) -> Moments:
        """Between the scale of training and y, or its powers, (outputs,)."""
        one = torch.ones_like(self.laplace.noise)
        known = self.model._known.standardization.moments
        return known.get(self._term.label, Moments(0 * one, one)).to(one)

    @property
    def _likelihood(self) -> Likelihood:
        assert isinstance(self._term.loss, Likelihood)  # or there are no error bars
        return self._term.loss

    def _forward(self, data: Data) -> Forward:
        return _forward_on(self.model._known, data)

    def _answered(self, outputs: Tensor) -> Tensor:
        answers = self._term.activation.forward(outputs)
        return self.model._known.standardization.answer(self._term, answers)

    def _by_sample(self, outputs: Tensor, data: Data) -> Tensor:
        """Return what (samples, rows, outputs) are of samples, or of their steps."""
        steps = self._term.argument.sequence and self._term.label not in data.last_only
        return outputs if steps else outputs[:, 0]


def posterior(model: Any) -> Posterior:
    """Return what the data say about a fitted network beside its weights: error bars.

    Rho are those of a fit by Gauss-Newton; after another method they are chosen by the evidence at
    its weights. H is that of all weights, up to 10,000 and some ten seconds; beyond that of the
    last layer alone, and the layers below are taken as known.

    Args:
        model: a `Lifted` model, a lifted torch network, or an estimator, fitted on arrays.

    Raises:
        DataError: it is no such model, or has several losses.
        DeclarationError: its loss is no likelihood.
        NotFittedError: it is not fitted, or from a DataLoader, or was loaded without a factor.
        SolverError: H is singular to rounding, or there is no noise to tell.

    Example:
        >>> import numpy as np
        >>> from liftednet import LiftedRegressor, posterior
        >>> X = np.linspace(-1, 1, 40)[:, None]
        >>> y = X[:, 0] + np.where(np.arange(40) % 2, 0.1, -0.1)
        >>> found = posterior(LiftedRegressor((4,), "tanh", random_state=0).fit(X, y)).predict(X)
        >>> round(float(found.noise[0]), 1), bool((found.ignorance < found.noise).all())
        (0.1, True)
    """
    lifted = model_of(model)
    if not isinstance(lifted, Lifted):
        raise DataError(
            "posterior is of a fitted model of liftednet.models, a lifted torch network or an "
            f"estimator; got {type(model).__name__}."
        )
    fitted = lifted._known
    if fitted.laplace is None:
        fitted = replace(fitted, laplace=laplace_of(lifted, shared=True))
        lifted._fit = fitted
    assert fitted.laplace is not None  # made just now
    read = getattr(copy(model), "_checked", lambda X: X)  # of an estimator as it is now
    return Posterior(copy(lifted), fitted.laplace, read)


def has_evidence(model: Lifted) -> bool:
    """Say whether rho are by the evidence, and error bars those of one loss on whole inputs."""
    fitted, network = model._known, model.network
    by_evidence = isinstance(fitted.method, GaussNewton) and fitted.method.evidence
    whole = not fitted.distributed and not any(x.missing for x in network.inputs)
    loaded = fitted.laplace is not None and fitted.method is None
    return loaded or (by_evidence and whole and len(network.terms) == 1)


def laplace_of(model: Lifted, shared: bool = False) -> Laplace:
    """Return the approximation at the weights of a fit, and where asked for its share.

    It raises what `posterior` does.
    """
    from liftednet.solvers.gauss_newton.equations import OutputEquations, answers
    from liftednet.solvers.gauss_newton.laplace import laplace, share_of

    fitted = model._known
    refuse_loss(model)
    if fitted.method is None:
        way = "its weights were given, loaded, or held under constraints on scores"
        raise errors.NotFittedError(
            f"this fit has no error bars: {way}. Set {_METHOD}, and fit without constraints."
        )
    if fitted.distributed or fitted.data is None:
        raise errors.NotFittedError(
            "error bars need all rows in one process: fit(X, y) on arrays in one."
        )
    if any(x.missing for x in model.network.inputs):
        raise DeclarationError(
            "error bars know nothing of entries that are missing: complete X before, as "
            "by completed(X) or scikit-learn's imputers, and fit without missing=."
        )
    with torch.inference_mode(False), torch.no_grad():
        forward, weights = _forward_on(fitted, fitted.data), count_weights(fitted.structure)
        work = matrix_work(answers(forward), weights)
        whole = (weights <= MOST_WEIGHTS and work <= _MOST_WORK) or OutputEquations.serves(forward)
        last = set(parameters_of(model.network.terms[0].argument))
        among = [n for n, p in enumerate(fitted.structure.parameters) if p in last]
        found = laplace(
            forward, _point(fitted),
            chosen=not isinstance(fitted.method, GaussNewton | Global),
            among=None if whole else among,
        )  # fmt: skip
        if shared and found is not None:
            own = model.network.terms[0].loss.probabilistic
            found = replace(found, share=share_of(found, forward) if own else fitted.spread)
    if found is None:
        raise SolverError(
            "there are no error bars: the targets are met without any noise, no weight moves an "
            "answer, as where limits leave one alone, or the curvature is singular to rounding, as "
            "where weights have no rho."
        )
    term, (target,) = model.network.terms[0], forward.targets
    moments = fitted.standardization.moments.get(term.label)
    counted = target.weight * target.counted[..., None]
    if isinstance(term.loss, Likelihood):
        rows = int((counted > 0).any(-1).sum())
        if shared and term.loss.sized and rows < _FEWEST:
            raise SolverError(f"{rows} rows tell no noise: error bars need {_FEWEST} at least.")
        least = _NO_NOISE * float(target.values.var(correction=0)) if rows < FEW else 0.0
        if shared and term.loss.sized and (found.follows or float(found.noise.min()) < least):
            warnings.warn(
                f"the weights can follow all of the {rows} rows: how much of y is noise cannot be "
                "told, and error bars may be far too narrow. Give more rows or fewer columns.",
                FitWarning, stacklevel=4,
            )  # fmt: skip
        known = float((counted * term.loss.log_constant(target.values)).sum())
        found = replace(found, logarithm=found.logarithm - known)
    if moments is None:
        return found
    slopes = -moments.scale.double().log().expand_as(target.values)
    if moments.power is not None:
        y = moments.to(target.values).undone(target.values)
        slopes = slopes + moments.power.to(y).log_slopes(y)
    density = found.logarithm + float((counted * slopes).sum())
    return replace(found, logarithm=density if fitted.varying is None else -math.inf)


def widen(model: Lifted, others: Sequence[Lifted]) -> None:
    """Let outputs be as uncertain as other fits to the same data are off, beside H^-1.

    One factor on the covariance V, 1 + max_k sum_i |u_k - u|^2 / sum_i tr V over training rows:
    one Gaussian about one of several minima is too narrow.

    Args:
        model: the fit that is kept.
        others: fits that explain the data nearly as well, itself among them.
    """
    if isinstance(model.network.terms[0].loss, Likelihood):
        forward, found = _forward_on(model._known, model._on_data()), laplace_of(model)
        (target,), (here,) = forward.targets, forward.passed(found.point)
        counted = target.weight * target.counted[..., None]
        widths = [part.diagonal(dim1=-2, dim2=-1) for _, part in found.outputs(forward)]
        own = float((counted * torch.cat(widths)).sum())
        there = (_forward_on(x._known, x._on_data()).passed(_point(x._known)) for x in others)
        off = max(float((counted * (u - here).square()).sum()) for (u,) in there)
        model._fit = replace(model._known, spread=1 + off / own if own else 1.0)


def answer_skewed(model: Lifted) -> None:
    """Let a network of skewed targets answer means by what its fit has found.

    Exponentials of answers that are off are off by far, and so are their means, in which the noise
    stands in the exponent: these answer medians, but where rows that are left out are nearer to
    means by two standard errors of their squares.
    """
    found, (term,) = posterior(model), model.network.terms
    known = model._known.standardization
    moments = known.moments[term.label]
    assert moments.power is not None  # the caller has seen to it
    forward = found._forward(model._on_data())
    (outputs,), (target,) = forward.passed(found.laplace.point), forward.targets
    weights = (target.weight * target.counted[..., None]).double().expand_as(outputs[..., :1])
    answers = torch.addcmul(moments.center, outputs.to(moments.scale), moments.scale)
    seen = answers[(weights > 0).expand_as(answers)].view(-1, answers.shape[-1])
    means = moments.power.fitted(seen, found.laplace.noise.sqrt() * moments.scale)

    def answering(power: Power) -> Posterior:
        by = {**known.moments, term.label: replace(moments, power=power)}
        model._fit = replace(model._known, standardization=replace(known, moments=by))
        return posterior(model)

    if bool((long := means.logarithmic).any()):
        medians = replace(means, noise=torch.where(long, 0.0, means.noise))
        of_means, of_medians = (answering(x)._left_out(True).square() for x in (means, medians))
        gain, by = (of_medians - of_means).double(), weights.reshape(-1, 1)
        mean = (by * gain).sum(0) / by.sum()
        deviation = ((by * (gain - mean).square()).sum(0) / by.sum()).sqrt()
        sure = (mean > _SURE * deviation / by.sum() ** 0.5).to(long)
        means = replace(means, noise=torch.where(sure, means.noise, medians.noise))
    answering(means)


def packed_posterior(model: Lifted) -> dict[str, Tensor]:
    """Return the error bars of a fit by the evidence as tensors of a file; nothing without them.

    With them go the weights on standardized data, and the scales of these.
    """
    fitted = model._known
    if not has_evidence(model):
        return {}
    if fitted.laplace is None:
        assert fitted.data is not None  # of a fit
        weights = count_weights(fitted.structure)
        answers = len(fitted.data) * sum(term.argument.units for term in model.network.terms)
        if 8 * weights * min(weights / 2, answers) > _MOST_BYTES:
            return {}
    try:
        found = posterior(model).laplace
    except SolverError:  # without noise there are none
        return {}
    degrees, (delta, *tails) = min(found.degrees, _KNOWN), found.tails
    logarithm = max(found.logarithm, -_KNOWN)
    numbers = [found.scale, degrees, logarithm, found.share, min(delta, _KNOWN), *tails]
    tensors = {
        **found.covariance.packed(), **fitted.standardization.packed(model.network),
        "point": found.point, "noise": found.noise,
        "numbers": torch.tensor(numbers, dtype=torch.float64),
    }  # fmt: skip
    return {f"posterior.{name}": tensor.cpu().contiguous() for name, tensor in tensors.items()}


def restore_posterior(model: Lifted, tensors: Mapping[str, Tensor]) -> None:
    """Give a model the error bars that `packed_posterior` has packed, where there are some."""
    from liftednet.solvers.gauss_newton.covariance import unpacked_covariance
    from liftednet.solvers.gauss_newton.evidence import NO_TAILS
    from liftednet.solvers.gauss_newton.laplace import Laplace

    own = {
        name.removeprefix("posterior."): tensor.to(model.device)
        for name, tensor in tensors.items()
        if name.startswith("posterior.")
    }
    if not own:
        return
    fitted, point = model._known, own["point"]
    stacked = [layer.stacked() for layer in fitted.weights]
    parts = point.split([part.numel() for part in stacked])
    weights = tuple(
        layer.like(part.view_as(like).to(like))
        for layer, part, like in zip(fitted.weights, parts, stacked, strict=True)
    )
    known = [math.copysign(math.inf, x) if abs(x) == _KNOWN else x for x in own["numbers"].tolist()]
    scale, degrees, logarithm, share = known[:4]
    tails: Any = tuple(known[4:]) or NO_TAILS
    model._fit = replace(
        fitted,
        weights=weights,
        standardization=unpacked_standardization(own, model.network),
        laplace=Laplace(
            point, unpacked_covariance(own), scale, own["noise"], degrees, logarithm, share, tails
        ),
    )


def refuse_loss(model: Lifted) -> None:
    """Raise where the losses of a network are no likelihood of one output.

    Raises:
        DataError: there are several.
        DeclarationError: it is none.
    """
    if len(model.network.terms) > 1:
        raise DataError("error bars are of networks with one loss; this one has several.")
    (term,) = model.network.terms
    if not (term.loss.probabilistic or isinstance(term.loss, Likelihood)) or (
        term.state is not None and not isinstance(term.activation, Identity)
    ):
        raise DeclarationError(
            f"{term.loss!r} is no likelihood here, whose noise the data tell: error bars are of "
            "SquaredError(), which is loss=None in LiftedRegressor, Huber(), Poisson(), "
            "CrossEntropy() and BinaryCrossEntropy()."
        )


def _point(fitted: Fitted) -> Tensor:
    from liftednet.solvers.gauss_newton.objective import joined

    return joined([layer.stacked() for layer in fitted.weights])


def _forward_on(fitted: Fitted, data: Data) -> Forward:
    with torch.inference_mode(False), torch.no_grad():
        weights = dict(zip(fitted.structure.parameters, fitted.weights, strict=True))
        blocks = Blocks(fitted.structure, {**data.values, **weights}, data.last_only)
        return forward_of(blocks)


def relevance_of(model: Lifted, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return how far answers move with inputs of other rows, (groups, outputs), in units of y.

    sqrt(E (f(x) - f(x'))^2 / 2), where x' has the inputs of a group from another training row: of a
    linear network |b| times the standard deviation of the input, of any the square root of the
    total index of Sobol' where inputs are independent (Homma and Saltelli, Importance Measures in
    Global Sensitivity Analysis of Nonlinear Models, 1996). Of probabilities the differences are
    those of probabilities.

    Args:
        model: fitted on arrays, with one input and one loss.
        groups: columns of the input that belong together, as those of one category.

    Raises:
        NotFittedError: the model holds no data.
    """
    data = model._on_data()
    (variable,) = model.network.inputs
    x, known = data.values[variable], model._by_parameter()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    turned = order.argsort()

    def answers(rows: Tensor) -> Tensor:
        values = model.structure.passed({**data.values, **known, variable: rows})
        found: Tensor = model._answers(values, data)
        return found.double()

    here, found = answers(x), []
    shifts = torch.linspace(1, len(x) - 1, min(_SHIFTS, len(x) - 1)).round().long().tolist()
    for group in groups:
        total = torch.zeros_like(here[0])
        for shift in shifts:
            moved = x.clone()
            moved[:, group] = x[order.roll(shift)[turned]][:, group]
            total += (answers(moved) - here).square().mean(0)
        found.append((total / (2 * max(1, len(shifts)))).sqrt())
    return torch.stack(found)
