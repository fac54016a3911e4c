"""The page of what runs where says what runs on this backend."""

import keras
import pytest

from tests import support

NAME = support.NAMES[keras.backend.backend()]
CELLS = support.read()
# Each use of each model on the quickest backend; on the others they are slow, and so is
# what writes files of TensorFlow, which tests of their own cover by default.
QUICK = [cell for cell in CELLS if cell[0] == "Kernels"]
LONG = [cell for cell in CELLS if cell[0] == "Models"]
EXPORTS = [cell for cell in CELLS if cell[0] == "Exports"]


def check(cell):
    assert support.works(*cell) == (NAME in CELLS[cell]), cell


def test_the_page_has_every_cell():
    wanted = {
        (table, row, column)
        for table, rows in support.ROWS.items()
        for row in rows
        for column in support.HEADERS[table][1]
    }
    assert set(CELLS) == wanted
    text = support.PAGE.read_text("utf-8")
    for table in support.HEADERS:
        assert support.table_of(table, CELLS) in text


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_kernels_run_where_the_page_says(cell):
    check(cell)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("cell", LONG, ids=str)
def test_models_run_where_the_page_says(cell):
    check(cell)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("cell", EXPORTS, ids=str)
def test_exports_are_written_where_the_page_says(cell):
    check(cell)


def test_the_page_is_written_as_it_is_read(monkeypatch, tmp_path):
    """What does not work is taken out, and what works put in, of this backend alone."""
    text, page = support.PAGE.read_text("utf-8"), tmp_path / "support.md"
    page.write_text(text, "utf-8")
    monkeypatch.setattr(support, "PAGE", page)
    monkeypatch.setattr(support, "works", lambda *cell: False)
    support.write()
    assert support.read() == {cell: names - {NAME} for cell, names in CELLS.items()}
    monkeypatch.setattr(support, "works", lambda *cell: NAME in CELLS[cell])
    support.write()
    assert page.read_text("utf-8") == text
