"""Keys from text: `cairn state get`, the state page and `Savepoint.lookup` read the same, with the same errors."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.support.restore_lab import checkpoint_of

from cairn.api.savepoint import Savepoint
from cairn.cli import state_queries
from cairn.cli.output import Output
from cairn.errors import CairnError, InvalidInputError, StateTypeError
from cairn.model.descriptors import ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.snapshots.key_text import format_key, parse_key
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import SnapshotOperator
from cairn.testing.keyed_harness import UID, KeyedProcessHarness
from cairn.view.state_browser import Masks, lookup, sample, summaries

MOMENT = dt.datetime(2026, 5, 4, 12, 30, tzinfo=dt.UTC)
COLUMNS: dict[str, tuple[Any, list[str], list[str]]] = {
    "string": ("a,b", ["a,b"], []),
    "bigint": (-5, ["-5", " -5 "], ["5.0", "x", ""]),
    "tinyint": (5, ["5"], ["500"]),
    "double": (2.5, ["2.5", "25e-1"], ["x"]),
    "boolean": (True, ["true", "TRUE", " True "], ["1", "yes"]),
    "date": (MOMENT.date(), ["2026-05-04"], ["yesterday", "2026-13-01"]),
    "timestamp": (MOMENT, ["2026-05-04T12:30:00", "2026-05-04 14:30+02:00"], ["12:30"]),
    "timestamp_ntz": (MOMENT.replace(tzinfo=None), ["2026-05-04T12:30"], ["2026-05-04T12:30+02:00"]),
    "decimal(6,2)": (Decimal("2.50"), ["2.5", "2.50"], ["x", "NaN", "12345.6"]),
    "binary": (
        b"\xca\xfe",
        ["cafe", "CAFE", "0xcafe", "yv4=", "base64:yv4="],
        ["xyz", "0xc", "0xyz", "0xcafeyv", "ca fe", "0xca fe", "base64:c"],
    ),
}
"""A key of each type, texts of it, and texts that are refused."""
CASES = [(ddl, key, texts, wrong) for ddl, (key, texts, wrong) in COLUMNS.items()]


class Seen(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "int"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update(7)
        yield ("",)


class Texts(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "string"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update("seven")
        yield ("",)


def keyed(
    folder: Path, columns: str, key_by: list[str], row: tuple[Any, ...], function: KeyedProcessFunction | None = None
) -> str:
    """A checkpoint with the state of one key: 7, unless another function is given."""
    made = KeyedProcessHarness(function or Seen(), key_by, columns, "out string", state_dir=folder)
    with made as job:
        job.push(row)
        job.run_epoch()
    return checkpoint_of(folder)


def of_command_line(path: str, texts: list[str]) -> Any:
    with redirect_stdout(StringIO()) as printed:
        state_queries.get(path, UID, "seen", texts, [], Output(as_json=True))
    return json.loads(printed.getvalue())["value"]


def of_page(path: str, text: str) -> Any:
    shown = lookup(open_snapshot(path), UID, "seen", text, Masks())
    return json.loads(shown.value) if shown.present else None


def of_api(path: str, key: Any) -> Any:
    return Savepoint.load(None, path).lookup(UID, "seen", key)  # type: ignore[arg-type]


def outcome(call: Any, *args: Any) -> tuple[str, Any]:
    try:
        return "found", call(*args)
    except CairnError as error:
        return error.code, error.message


@pytest.mark.parametrize(("ddl", "key", "texts", "wrong"), CASES, ids=list(COLUMNS))
def test_all_readers_take_the_same_text(tmp_path: Path, ddl: str, key: Any, texts: list[str], wrong: list[str]) -> None:
    path = keyed(tmp_path / "job", f"k {ddl}", ["k"], (key,))
    assert of_api(path, key) == 7
    for text in texts:
        readers = (outcome(of_command_line, path, [text]), outcome(of_page, path, text), outcome(of_api, path, text))
        assert readers == (("found", 7),) * 3, text
    for text in wrong:
        first, *others = (
            outcome(of_command_line, path, [text]),
            outcome(of_page, path, text),
            outcome(of_api, path, text),
        )
        assert first[0] in ("invalid-input", "state-type"), text
        assert "key column 'k'" in first[1]
        assert others == [first, first]


def test_all_readers_take_several_columns_in_one_text_or_many(tmp_path: Path) -> None:
    path = keyed(tmp_path / "job", "who string, n int, raw binary", ["who", "n", "raw"], ("a, b", 4, b"\xca\xfe"))
    many = ["a, b", "4", "cafe"]
    for text in ('["a, b", 4, "cafe"]', '["a, b", "4", "yv4="]'):
        assert of_command_line(path, [text]) == of_page(path, text) == of_api(path, text) == 7
    assert of_command_line(path, many) == of_api(path, tuple(many)) == of_api(path, many) == 7
    assert of_api(path, {"who": "a, b", "n": 4, "raw": b"\xca\xfe"}) == of_api(path, ("a, b", 4, "cafe")) == 7
    assert of_page(path, "a,4,cafe") is None
    for text in ("a", "a,4", '["a", 4]', '["a", 4, "cafe", 1]', '["a", null, "cafe"]', "[a, x, cafe"):
        refused = outcome(of_command_line, path, [text])
        assert refused[0] == "invalid-input", text
        assert outcome(of_page, path, text) == refused
        assert outcome(of_api, path, text) == refused


ROUND: dict[str, list[Any]] = {
    "string": ["", "a", "a,b", "[", '["a"]', " a ", "0x1", "é\n"],
    "bigint": [-5, 2**63 - 1],
    "double": [2.5, 1e300, float("inf"), -0.1],
    "boolean": [True, False],
    "date": [MOMENT.date()],
    "timestamp": [MOMENT, MOMENT.replace(microsecond=7)],
    "timestamp_ntz": [MOMENT.replace(tzinfo=None)],
    "decimal(30,2)": [Decimal("2.50"), Decimal("-0.01"), Decimal("1E+20")],
    "binary": [b"", b"\xca\xfe", b"a,b", bytes(40)],
}


def test_what_is_written_is_read_as_the_same_key() -> None:
    for ddl, values in ROUND.items():
        one = SnapshotOperator("op", "op", 1, f"k {ddl}")
        for value in values:
            assert parse_key(one, format_key([value])) == [value]
            for other, others in ROUND.items():
                two = SnapshotOperator("op", "op", 1, f"a {ddl}, b {other}")
                for second in others:
                    assert parse_key(two, format_key([value, second])) == [value, second], (ddl, other)


@pytest.mark.parametrize(("ddl", "key"), [(ddl, key) for ddl, (key, *_) in COLUMNS.items()], ids=list(COLUMNS))
def test_the_biggest_keys_can_be_looked_up(tmp_path: Path, ddl: str, key: Any) -> None:
    path = keyed(tmp_path / "job", f"k {ddl}, other string", ["k", "other"], (key, "x, y"), Texts())
    snapshot = open_snapshot(path)
    (told,) = summaries(snapshot, UID, Masks())
    ((text, _),) = told.biggest
    assert lookup(snapshot, UID, "seen", text, Masks()).present
    assert [shown for shown, _ in sample(snapshot, UID, "seen", 3, Masks())] == [text]


def test_keys_that_fit_no_column_are_refused() -> None:
    operator = SnapshotOperator("op", "op", 1, "a int, b date")
    for key, words in (
        ("1", "give 2 values, not 1"),
        ((1, 2, 3), "give 2 values, not 3"),
        ({"a": 1}, "a key has the columns a, b"),
        ((1, None), "key column 'b' is None"),
        ("1,yesterday", "'yesterday' is not a valid date for key column 'b'"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            parse_key(operator, key)
    with pytest.raises(StateTypeError, match="key column 'a'"):
        parse_key(operator, (2**40, dt.date(2026, 1, 1)))
