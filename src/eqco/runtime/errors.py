"""Errors that a user can cause and mend, reported clearly."""

__all__ = ["InputError", "MissingExtraError"]


class InputError(ValueError):
    """Something the user gave cannot be used; says what was given, the limit and the remedy.

    The command line prints the message alone; any other exception is a defect of ours and keeps
    its traceback.
    """


class MissingExtraError(ImportError):
    """A part of the library needs packages that are not installed; says the install line."""

    def __init__(self, missing: str, extra: str):
        super().__init__(
            f"this needs the package {missing!r}, which is not installed. "
            f'Install it from the folder of eqco: pip install ".[{extra}]"'
        )
