"""Pairs of docstrings and functions are what they say."""

from eqco.data.docstrings import functions_in

CODE = '''
class Reader:
    def readAll(self, max_count):
        """Read all lines of the file.

        Not part of it.
        """
        return self.lines[:max_count]

    def short(self):
        """Too short."""
        return 1

    def bare(self):
        return 2

    def empty(self):
        """Nothing is here but words."""
'''


def test_a_pair_is_the_first_paragraph_and_the_function_without_its_docstring():
    (pair,) = functions_in(CODE, "a.py")
    assert pair.docstring == ("read", "all", "lines", "of", "the", "file")
    assert pair.function == (
        *("def", "read", "all", "self", "max", "count"),
        *("return", "self", "lines", "max", "count"),
    )
