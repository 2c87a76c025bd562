"""What `--help` says, broken into lines by the width of the terminal."""

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

__all__ = ["help_text", "settings_in_one_line", "with_options_in_one_line"]


class Unsplit(str):
    """Text that counts as one line: tyro would join its lines into one of any width."""

    __slots__ = ()

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """The whole text."""
        return [str(self)]


def help_text(docstring: str) -> str:
    """A command's docstring without its `Args:`, which the options show themselves.

    Paragraphs are as wide as the terminal; what has indented lines stays as it is.

    >>> print(help_text("Try it.\\n\\nArgs:\\n    out: a file.\\n\\nExamples:\\n    eqco try"))
    Try it.
    <BLANKLINE>
    Examples:
        eqco try
    """
    parts = inspect.cleandoc(docstring).split("\n\n")
    width = shutil.get_terminal_size().columns
    return Unsplit(
        "\n\n".join(
            part.rstrip() if "\n " in part else textwrap.fill(part, width, break_on_hyphens=False)
            for part in parts
            if not part.startswith("Args:")
        )
    )


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


@contextmanager
def settings_in_one_line() -> Iterator[None]:
    """While options are parsed, let what stands below a field of a dataclass count as one line.

    tyro reads it by docstring_parser, which leaves its lines indented as they are in the source.
    """
    import docstring_parser

    parse, auto = docstring_parser.parse_from_object, docstring_parser.DocstringStyle.AUTO

    def parse_in_one_line(
        obj: Any, style: docstring_parser.DocstringStyle = auto
    ) -> docstring_parser.Docstring:
        found = parse(obj, style)
        for param in found.params:
            param.description = " ".join((param.description or "").split()) or None
        return found

    docstring_parser.parse_from_object = parse_in_one_line
    try:
        yield
    finally:
        docstring_parser.parse_from_object = parse
