"""What the command line takes; each command imports what it needs when it is called."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from liftednet import __version__
from liftednet.errors import DataError, LiftedError

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


_MODEL = typer.Argument(help="A file that train or liftednet.save has written.")
_DATA = typer.Argument(help="A csv or tsv file, whose first line has the names of its columns.")


@app.command()
def train(
    data: Annotated[Path, _DATA],
    target: Annotated[list[str], typer.Option(help="Column of the targets; or several.")],
    columns: Annotated[
        str | None, typer.Option(help="Columns of the inputs, as in age,size; all others else.")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="A name from liftednet.losses, such as cross-entropy for labels, or squared-error "
            "or quantile:0.9 for numbers. Without it words, and integers of at most 20 kinds, are "
            "labels."
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any option of LiftedClassifier, or of LiftedRegressor for numbers, as in --set "
            "hidden_layer_sizes=50,20 --set 'penalty=L1(0.1)'; or several.",
        ),
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of the rows that is kept to test.")] = 0.25,
    seed: Annotated[int, typer.Option(help="Of the initial weights and the split.")] = 0,
    output: Annotated[Path, typer.Option(help="Where the model is saved.")] = Path(
        "model.safetensors"
    ),
) -> None:
    """Train a lifted network, save it, and report how good it is."""
    from liftednet.command.train import run_train

    run_train(data, target, columns, loss, options or [], held_out, seed, output)


@app.command()
def predict(
    model: Annotated[Path, _MODEL],
    data: Annotated[Path, _DATA],
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Of every class instead of labels.")
    ] = False,
) -> None:
    """Print what a saved model predicts, as csv with a line of names."""
    from liftednet.command.train import run_predict

    run_predict(model, data, probabilities)


@app.command()
def evaluate(
    model: Annotated[Path, _MODEL],
    data: Annotated[Path, _DATA],
    target: Annotated[
        list[str] | None, typer.Option(help="Column of the targets; that of training if not given.")
    ] = None,
) -> None:
    """Say how good a saved model is on data."""
    from liftednet.command.train import run_evaluate

    run_evaluate(model, data, target)


@app.command()
def show(model: Annotated[Path, _MODEL]) -> None:
    """Say what a saved model is and how it was trained."""
    from liftednet import storage
    from liftednet.models.storage import lines_of

    archive = storage.read(model)
    try:
        lines = lines_of(archive)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{model} describes no network: {error!r}.") from error
    typer.echo("\n".join(lines))


@app.command()
def certify(model: Annotated[Path, _MODEL]) -> None:
    """Say what a saved model is for certain, at every input."""
    from liftednet import certify as certified
    from liftednet.models.storage import load

    typer.echo(str(certified(load(model))))


def main() -> None:
    """Run the command line."""
    app()
