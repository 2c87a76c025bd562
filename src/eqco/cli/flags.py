"""Flags on a command line, looked up before it is parsed."""

from collections.abc import Sequence

__all__ = ["flag_value"]


def flag_value(arguments: Sequence[str], flag: str, default: str) -> str:
    """The value of one flag.

    >>> flag_value(["photos", "--processes", "2"], "--processes", "1")
    '2'
    """
    for position, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
        if argument == flag and position + 1 < len(arguments):
            return arguments[position + 1]
    return default
