"""What `--help` says before the options."""

import inspect
from typing import SupportsIndex

__all__ = ["help_text"]


class Unsplit(str):
    """Text that counts as one line: tyro would join its lines into one of any width."""

    __slots__ = ()

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """The whole text."""
        return [str(self)]


def help_text(docstring: str) -> str:
    """A command's docstring without its `Args:`, which the options show themselves.

    >>> print(help_text("Try it.\\n\\nArgs:\\n    out: a file.\\n\\nExamples:\\n    eqco try"))
    Try it.
    <BLANKLINE>
    Examples:
        eqco try
    """
    parts = inspect.cleandoc(docstring).split("\n\n")
    return Unsplit("\n\n".join(part.rstrip() for part in parts if not part.startswith("Args:")))
