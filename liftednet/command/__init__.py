"""The command `liftednet`: demo, check, train, predict, evaluate, export, show, reproduce."""

from liftednet.command.app import app, main

__all__ = ["app", "main"]
