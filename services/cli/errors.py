"""What the command refuses."""

from __future__ import annotations


class CliError(Exception):
    """Ends the command with status 1; the message says what is wrong and what to do about it."""
