"""Pairs of docstrings and functions from installed packages: a data set without a download."""

import ast
import functools
import hashlib
import importlib.util
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Pair", "digest", "functions_in", "read_pairs", "words_of"]

# Folders whose functions are of no use to search for.
LEFT_OUT = {"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "_vendor"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
FEWEST_WORDS = 4
DOCSTRING_WORDS, FUNCTION_WORDS = 32, 96


class Pair(NamedTuple):
    """A docstring and its function as words, and the file they are from."""

    file: str
    docstring: tuple[str, ...]
    function: tuple[str, ...]


def words_of(text: str) -> tuple[str, ...]:
    """Words in small letters; names are taken apart.

    >>> words_of("def readLines(max_count=3): HTTPError")
    ('def', 'read', 'lines', 'max', 'count', '3', 'http', 'error')
    """
    return tuple(word.lower() for word in WORD.findall(text))


def functions_in(text: str, file: str) -> Iterator[Pair]:
    """The functions of a file that have a docstring and more than that.

    >>> code = 'def double(x):' + chr(10) + '    "Return twice the number."' + chr(10)
    >>> pair, = functions_in(code + '    return 2 * x', "a.py")
    >>> pair.docstring, pair.function
    (('return', 'twice', 'the', 'number'), ('def', 'double', 'x', 'return', '2', 'x'))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old escapes in other people's strings
        tree = ast.parse(text)
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
            continue
        docstring, first = ast.get_docstring(node), node.body[0]
        if not docstring or first.lineno == node.lineno:
            continue
        said = words_of(docstring.split("\n\n")[0])
        code = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
        if len(said) >= FEWEST_WORDS:
            function = words_of("\n".join(code))[:FUNCTION_WORDS]
            yield Pair(file, said[:DOCSTRING_WORDS], function)


def folder_of(package: str) -> Path:
    """Where the source of a package is; `python` is the standard library."""
    if package == "python":
        return Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@functools.lru_cache
def read_pairs(packages: tuple[str, ...]) -> tuple[Pair, ...]:
    """All pairs of some packages, in an order that depends on their words alone.

    A docstring or a function that stands twice is taken once.
    """
    found: dict[tuple[str, ...], Pair] = {}
    seen: set[tuple[str, ...]] = set()
    for package in packages:
        folder = folder_of(package)
        for path in sorted(folder.rglob("*.py")):
            place = path.relative_to(folder)
            if LEFT_OUT.intersection(place.parts):
                continue
            try:
                with tokenize.open(path) as file:
                    pairs = list(functions_in(file.read(), f"{package}/{place.as_posix()}"))
            except (SyntaxError, UnicodeDecodeError):
                continue  # of another Python
            for pair in pairs:
                if pair.docstring not in found and pair.function not in seen:
                    found[pair.docstring] = pair
                    seen.add(pair.function)
    return tuple(sorted(found.values(), key=lambda pair: digest(" ".join(pair.docstring))))


def digest(text: str) -> int:
    """A number drawn from a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
