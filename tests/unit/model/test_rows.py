"""Named tuples of rows: every column is found under its own name, and never under that of another."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from cairn.model.rows import row_class


def test_columns_of_sparks_tuples_are_themselves() -> None:
    row = row_class(("_1", "_2", "_3"))(("a", "b", "c"))
    assert (row._1, row._2, row._3) == ("a", "b", "c")
    assert not hasattr(row, "_0")
    assert row._asdict() == {"_1": "a", "_2": "b", "_3": "c"}
    assert repr(row) == "Row(_1='a', _2='b', _3='c')"


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (("a", "b"), ("a", "b")),
        (("a b", "c"), ("_0", "c")),
        (("_1", "a b"), ("_1", "_1_")),
        (("a b", "_0"), ("_0_", "_0")),
        (("class", "def", "_0"), ("_0_", "_1", "_0")),
        (("a", "a"), ("a", "_1")),
        (("_fields", "__class__", "_make"), ("_0", "_1", "_2")),
        (("count", "index", "_x", "ä"), ("count", "index", "_x", "ä")),
        ((), ()),
    ],
)
def test_names_that_are_no_attributes_get_free_ones(names: tuple[str, ...], fields: tuple[str, ...]) -> None:
    kind = row_class(names)
    row = kind(range(len(names)))
    assert row._fields == fields
    assert [getattr(row, field) for field in fields] == list(range(len(names))) == list(row)
    for name, value in zip(names, row, strict=True):
        if name in fields:
            assert getattr(row, name) == names.index(name) <= value


def test_rows_are_tuples_that_travel() -> None:
    row: Any = row_class(("user", "_v"))(("a", 1))
    assert type(row).__mro__[1] is tuple
    assert (row, hash(row)) == (("a", 1), hash(("a", 1)))
    for made in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row)):
        assert (made, made._v, type(made)._fields) == (row, 1, ("user", "_v"))
    changed = row._replace(_v=2)
    assert (changed, changed.user) == (("a", 2), "a")
    with pytest.raises(ValueError, match="nobody"):
        row._replace(nobody=1)
    assert row_class(("user", "_v"))._make(["b", 3])._v == 3
