"""What `--help` says before the options."""

import inspect
import textwrap

__all__ = ["help_text"]


def help_text(docstring: str) -> str:
    """A command's docstring without its `Args:`, which the options show themselves.

    Indented, since tyro joins lines that begin with a letter into one of any width.

    >>> print(help_text("Try it.\\n\\nArgs:\\n    out: a file.\\n\\nExamples:\\n    eqco try"))
      Try it.
    <BLANKLINE>
      Examples:
          eqco try
    """
    parts = inspect.cleandoc(docstring).split("\n\n")
    kept = "\n\n".join(part.rstrip() for part in parts if not part.startswith("Args:"))
    return textwrap.indent(kept, "  ")
