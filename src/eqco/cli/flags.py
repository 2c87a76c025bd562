"""Flags on a command line, looked up before it is parsed."""

from collections.abc import Sequence

__all__ = ["flag_value", "flag_values"]


def flag_value(arguments: Sequence[str], flag: str, default: str) -> str:
    """The value of one flag.

    >>> flag_value(["photos", "--processes", "2"], "--processes", "1")
    '2'
    """
    return next(iter(flag_values(arguments, flag)), default)


def flag_values(arguments: Sequence[str], flag: str) -> list[str]:
    """The values of one flag, each time that it is given.

    >>> flag_values(["--processes", "2", "photos", "--processes=3"], "--processes")
    ['2', '3']
    """
    values = []
    for position, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            values.append(argument.split("=", 1)[1])
        elif argument == flag and position + 1 < len(arguments):
            values.append(arguments[position + 1])
    return values
