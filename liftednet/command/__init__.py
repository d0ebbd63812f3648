"""The command `liftednet`: train, predict, evaluate, export, show."""

from liftednet.command.app import app, main

__all__ = ["app", "main"]
