"""The command `liftednet`: demo, check, train, reproduce."""

from liftednet.command.app import app, main

__all__ = ["app", "main"]
