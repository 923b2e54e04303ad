"""The command line."""

from sparsewire.commands.app import app, main

__all__ = ["app", "main"]
