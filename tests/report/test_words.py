"""Words are made from values at the end: nothing in experiments or report reads them back."""

import ast
from pathlib import Path

import pytest

from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.coordinates import Coordinates, axis_of, in_order
from eqco.report.words import words

SOURCE = Path(__file__).parents[2] / "src" / "eqco"
READERS = {"match", "fullmatch", "search", "findall", "finditer", "split", "compile"}


def calls(path):
    """The functions of `re` that a module calls."""
    nodes = ast.walk(ast.parse(path.read_text()))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if getattr(node.value, "id", "") == "re"}


@pytest.mark.parametrize("package", ["experiments", "report"])
def test_no_label_is_read_by_a_regular_expression(package):
    paths = sorted((SOURCE / package).glob("*.py"))
    assert paths
    for path in paths:
        assert not READERS & calls(path), path.name


def test_cells_of_one_table_have_words_of_their_own():
    """Two cells that share a row and a column would overwrite each other."""
    for experiment in EXPERIMENTS.values():
        cells = experiment.compare([])
        named = [(words(cell.row), words(cell.column)) for cell in cells]
        assert len(set(named)) == len(named), experiment.name


def test_columns_stand_by_their_numbers_whatever_order_they_came_in():
    columns = [Coordinates(epochs=epochs) for epochs in (36, 4, 12)]
    assert [words(column) for column in in_order(columns)] == ["4 epochs", "12 epochs", "36 epochs"]


def test_columns_that_count_different_things_have_no_axis():
    mixed = [Coordinates(num_negatives=4), Coordinates(num_queries=4)]
    assert axis_of(mixed) == ("", {})
    assert axis_of([Coordinates(batch_norm="sync"), Coordinates(batch_norm="shuffling")])[0] == ""


def test_the_limit_of_alpha_is_named_by_its_loss_alone():
    at = Coordinates(source="batch and queue", loss="decoupled", alpha=float("inf"))
    assert words(at) == "batch and queue: decoupled"
