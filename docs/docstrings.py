"""Docstrings as Markdown: equations become MathML, examples become blocks of code."""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

EQUATION = re.compile(r"^\.\. math::(.*(?:\n(?:[ \t]+.*)?)*)", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **about: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring without directives that Markdown does not know."""
    text = EQUATION.sub(lambda match: equation(match[1]), text)
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


def equation(latex: str) -> str:
    """One equation, on lines of its own."""
    mathml = convert(" ".join(textwrap.dedent(latex).split()), display="block")
    return f'<div class="equation">{mathml}</div>\n\n'
