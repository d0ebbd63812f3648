"""What the command line takes; each command imports what it needs when it is called."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from liftednet import __version__
from liftednet.errors import LiftedError


class _OneLineErrors(TyperGroup):
    """Commands whose refusals are one line and exit status 1, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except LiftedError as error:
            typer.secho(f"liftednet: {error}", err=True, fg=typer.colors.RED)
            raise typer.Exit(1) from error


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


class Images(StrEnum):
    """The data sets that the demo knows."""

    DIGITS = "digits"
    MNIST = "mnist"


class Coupling(StrEnum):
    """The two divergences."""

    TIGHT = "tight"
    JOINT = "joint"
    MULTIPLIERS = "multipliers"


class Method(StrEnum):
    """The two ways of training."""

    FULL = "full"
    MINIBATCH = "minibatch"


@app.command()
def demo(
    data: Annotated[Images, typer.Option(help="What to train on.")] = Images.DIGITS,
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds every row has.")] = 5,
    folder: Annotated[Path, typer.Option(help="Where the picture is written.")] = Path("output"),
) -> None:
    """Check an activation, train a lifted network, and start torch networks from it."""
    from liftednet.command.demo import run_demo

    run_demo(data.value, seeds, folder)


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="An activation's class.")],
) -> None:
    """Check the declaration of an activation in a module of yours."""
    from liftednet.command.check import run_check

    run_check(name)


@app.command()
def train(
    data: Annotated[str, typer.Argument(help="digits, mnist, or an .npz file with X and y.")],
    hidden: Annotated[str, typer.Option(help="Units of the hidden layers, as in 100,50.")] = "100",
    activation: Annotated[
        str, typer.Option(help="A name from liftednet.activations, or MODULE:NAME.")
    ] = "ReLU",
    loss: Annotated[str, typer.Option(help="A name from liftednet.losses.")] = "CrossEntropy",
    divergence: Annotated[
        Coupling, typer.Option(help="Zero at the forward pass, jointly convex, or held there.")
    ] = Coupling.TIGHT,
    lam: Annotated[float, typer.Option(help="Weight of the divergences.")] = 10.0,
    rho: Annotated[float, typer.Option(help="Weight of the squared Frobenius norms.")] = 1e-3,
    method: Annotated[
        Method, typer.Option(help="Minibatches, or the paper's: every block on all samples.")
    ] = Method.MINIBATCH,
    sweeps: Annotated[
        int, typer.Option(min=1, help="Epochs of minibatches, or sweeps over all blocks.")
    ] = 10,
    held_out: Annotated[
        float | None,
        typer.Option(help="Share of a file's samples kept to test; 0.25 if not given."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the initial weights and the split.")] = 0,
    output: Annotated[Path, typer.Option(help="Where the model is saved.")] = Path(
        "model.safetensors"
    ),
) -> None:
    """Train a lifted network, report how good it is, and save it."""
    from liftednet.command.train import Order, run_train

    run_train(
        Order(
            data=data,
            hidden=hidden,
            activation=activation,
            loss=loss,
            divergence=divergence.value,
            method=method.value,
            lam=lam,
            rho=rho,
            sweeps=sweeps,
            held_out=held_out,
            seed=seed,
            output=output,
        )
    )


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="Which one; without it they are listed.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of hours.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many every row has; as in its table if not given."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where the reports are; finished runs in it are kept.")
    ] = Path("results"),
) -> None:
    """Run the published tables and figures again."""
    from liftednet.command.reproduce import run_reproduction

    run_reproduction(name, quick, seeds, folder)


def main() -> None:
    """Run the command line."""
    app()
