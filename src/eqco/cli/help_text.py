"""What `--help` says before the options."""

import inspect
import re
from typing import SupportsIndex

__all__ = ["help_text", "with_options_in_one_line"]


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


def with_options_in_one_line(docstring: str) -> str:
    """The docstring with each option of its `Args:` in one line, which the terminal's width breaks.

    >>> print(with_options_in_one_line("Args:\\n    out: a\\n        file.\\n    n: how many."))
    Args:
        out: a file.
        n: how many.
    """
    parts = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(
        re.sub(r"\n {8,}", " ", part) if part.startswith("Args:") else part for part in parts
    )
