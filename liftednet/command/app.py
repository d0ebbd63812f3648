"""What the command line takes; each command imports what it needs when it is called."""

from __future__ import annotations

import warnings
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from liftednet import __version__
from liftednet.errors import LiftedError

_UsageError: Any = typer.BadParameter.__base__  # typer 0.29 has the class to itself


class _OneLineErrors(TyperGroup):
    """Commands that refuse in one line, without a traceback.

    The exit status is 2 where options are wrong, 1 for any other refusal, 130 for an interrupt.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _warn  # type: ignore[assignment]
                return super().invoke(ctx)
        except LiftedError as error:
            _refuse(str(error), 1, error)
        except _UsageError as error:
            _refuse(error.format_message(), 2, error)
        except BrokenPipeError:
            raise  # who reads what is printed has seen enough
        except OSError as error:  # a disk that is full, at whatever place
            _refuse(f"{error}.", 1, error)
        except KeyboardInterrupt as error:
            _refuse("interrupted.", 130, error)


def _warn(message: Warning | str, *where: Any) -> None:
    typer.secho(f"liftednet: {message}", err=True, fg=typer.colors.YELLOW)


def _refuse(message: str, status: int, error: BaseException) -> None:
    typer.secho(f"liftednet: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(status) from error


app = typer.Typer(
    name="liftednet",
    cls=_OneLineErrors,
    help="Train neural networks by convex subproblems.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"liftednet {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


Images = StrEnum("Images", ["digits", "mnist"])
Method = StrEnum(
    "Method",
    {"auto": "auto", "full": "full", "minibatch": "minibatch", "gauss_newton": "gauss-newton"},
)
_ACTIVATION = typer.Option(help="MODULE:NAME of the model's own activation, where it has one.")
_MODEL = typer.Argument(help="A file that train or liftednet.save has written.")
_DATA = "digits, mnist, or a csv, tsv, parquet or npz file"


@app.command()
def demo(
    data: Annotated[Images, typer.Option(help="What to train on.")] = Images.digits,
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds every row has.")] = 5,
) -> None:
    """Check an activation, train a lifted network, and start torch networks from it."""
    from liftednet.command.demo import run_demo

    run_demo(data.value, seeds)


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="An activation's class.")],
) -> None:
    """Check the declaration of an activation in a module of yours."""
    from liftednet.command.files import run_check

    run_check(name)


@app.command()
def train(
    data: Annotated[str, typer.Argument(help=f"{_DATA}; of npz the arrays X and y.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Column or array of the targets, y if not given; or several."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the inputs, as in age,size; all others else.")
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(help="Units of the hidden layers, as in 100,50.")
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="A name from liftednet.activations, or MODULE:NAME.")
    ] = None,
    loss: Annotated[
        str,
        typer.Option(help="A name from liftednet.losses, such as squared-error or quantile:0.9."),
    ] = "CrossEntropy",
    lam: Annotated[float | None, typer.Option(help="Weight of the divergences.")] = None,
    rho: Annotated[
        float | None, typer.Option(help="Weight of the squared Frobenius norms.")
    ] = None,
    method: Annotated[
        Method, typer.Option(help="Minibatches, every block on all samples, or all blocks at once.")
    ] = Method.auto,
    max_iter: Annotated[
        int | None, typer.Option(min=1, help="The most epochs, sweeps or steps.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of a minibatch.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any option of LiftedClassifier, or of LiftedRegressor for a regression, as in "
            "--set early_stopping=true --set 'penalty=L1(0.1)'; or several.",
        ),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(help="Share of a file's samples kept to test; 0.25 if not given."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the initial weights and the split.")] = 0,
    output: Annotated[Path, typer.Option(help="Where the model is saved.")] = Path(
        "model.safetensors"
    ),
    checkpoint: Annotated[
        Path | None, typer.Option(help="A file that training is kept in while it runs.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint, where there is one.")
    ] = False,
) -> None:
    """Train a lifted network, save it, and report how good it is."""
    order = SimpleNamespace(**locals())
    from liftednet.command.train import run_train

    run_train(order)


@app.command()
def predict(
    model: Annotated[Path, _MODEL],
    data: Annotated[str, typer.Argument(help=f"{_DATA}; of npz the array X.")],
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Of every class instead of labels.")
    ] = False,
    activation: Annotated[str | None, _ACTIVATION] = None,
) -> None:
    """Print what a saved model predicts, as csv with a line of names."""
    from liftednet.command.train import run_predict

    run_predict(model, data, probabilities, activation)


@app.command()
def evaluate(
    model: Annotated[Path, _MODEL],
    data: Annotated[str, typer.Argument(help=f"{_DATA}; of npz the arrays X and y.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Column or array of the targets; that of training if not given."),
    ] = None,
    activation: Annotated[str | None, _ACTIVATION] = None,
) -> None:
    """Say how good a saved model is on data."""
    from liftednet.command.train import run_evaluate

    run_evaluate(model, data, target or [], activation)


@app.command()
def export(
    model: Annotated[Path, _MODEL],
    output: Annotated[
        Path,
        typer.Argument(help="FILE.safetensors (weights as torch has them), FILE.pt2, FILE.onnx."),
    ],
    activation: Annotated[str | None, _ACTIVATION] = None,
) -> None:
    """Write a saved model as torch or others load it."""
    from liftednet.command.files import run_export

    run_export(model, output, activation)


@app.command()
def show(model: Annotated[Path, _MODEL]) -> None:
    """Say what a saved model is and how it was trained."""
    from liftednet.command.files import run_show

    run_show(model)


@app.command()
def certify(
    model: Annotated[Path, _MODEL],
    semidefinite: Annotated[
        bool,
        typer.Option("--semidefinite", help="Bound the Lipschitz constant by a longer proof, too."),
    ] = False,
    activation: Annotated[str | None, _ACTIVATION] = None,
) -> None:
    """Say what a saved model is for certain, at every input."""
    from liftednet.command.files import run_certify

    run_certify(model, semidefinite, activation)


def main() -> None:
    """Run the command line."""
    app()
