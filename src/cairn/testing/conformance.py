"""The tests that every state backend must pass. Subclass it in a test module of yours and let pytest collect it::

    class TestMyBackend(StateBackendConformance):
        def make_backend(self, folder):
            return MyBackend(folder)

Backends that keep their contents in the process only (`resident`) skip what needs a second process or a reopening.
Keys are never empty: every key that cairn stores begins with its key group or its length.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from cairn.state.backend import Put, StateBackend, TableChanges

ODD_KEYS = [
    b"\x00",
    b"\x00\x00",
    b"\x00\xff",
    b"\x01",
    b"a",
    b"a\x00",
    b"a\x00b",
    b"aa",
    b"\xfe",
    b"\xfe\xff",
    b"\xff",
    b"\xff\x00",
    b"\xff\xff",
    b"\xff\xff\xff",
]
_LENGTHS = [399, 400, 401, 439, 440, 441, 510, 511, 512, 513, 600, 5000, 33_000]


def long_keys() -> list[bytes]:
    """Keys around and beyond the limits of key-value stores, most of them with a long common beginning."""
    found = [b"k" * length for length in _LENGTHS]
    found += [b"k" * length + tail for length in _LENGTHS for tail in (b"\x00", b"a", b"\xff")]
    found += [b"k" * 500 + b"%d" % number + b"z" * 100 for number in range(20)]
    return sorted(set(found))


class StateBackendConformance:
    """Base of the suite. `make_backend` is called with an existing folder, again and again for a reopening."""

    def make_backend(self, folder: str) -> StateBackend:
        raise TypeError(f"{type(self).__name__} must define make_backend(folder)")

    def _put(self, backend: StateBackend, pairs: Iterable[Put], table: str = "t", version: str = "1") -> None:
        backend.apply([TableChanges(table, puts=list(pairs))], version)

    def _reopened(self, backend: StateBackend, folder: Path) -> StateBackend:
        if backend.resident:
            return backend
        backend.close()
        return self.make_backend(str(folder))

    def _is(self, backend: StateBackend, model: dict[bytes, bytes], table: str = "t") -> None:
        """A table equals a dict, by every way of reading it."""
        assert list(backend.scan(table)) == sorted(model.items())
        keys = [*model, b"no such key"]
        assert backend.get_many(table, keys) == [*model.values(), None]
        assert backend.count(table) == len(model)

    # Versions.

    def test_a_new_copy_is_empty_and_has_no_version(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        assert backend.version() is None
        assert backend.get_many("t", [b"a", b"b"]) == [None, None]
        assert list(backend.scan("t")) == []
        assert backend.count("t") == 0
        backend.close()

    def test_the_version_is_that_of_the_last_apply(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        for version in ("1", "17:4:abc", "é ü", "x" * 200, "1"):
            backend.apply([], version)
            assert backend.version() == version
        backend = self._reopened(backend, tmp_path)
        assert backend.version() == "1"
        backend.close()

    def test_none_unsets_the_version(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        self._put(backend, [(b"a", b"1")])
        backend.apply([TableChanges("t", puts=[(b"b", b"2")])], None)
        backend = self._reopened(backend, tmp_path)
        assert backend.version() is None
        self._is(backend, {b"a": b"1", b"b": b"2"})
        backend.apply([], "2")
        assert backend.version() == "2"
        backend.close()

    # Puts, deletes, clears.

    def test_put_replaces_and_delete_removes(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        self._put(backend, [(b"a", b"1"), (b"b", b"2")])
        self._put(backend, [(b"b", b"3"), (b"c", b"4")])
        self._is(backend, {b"a": b"1", b"b": b"3", b"c": b"4"})
        backend.apply([TableChanges("t", deletes=[b"a", b"missing"])], "2")
        self._is(backend, {b"b": b"3", b"c": b"4"})
        backend.close()

    def test_unsorted_puts_and_reads(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        model = {b"%d" % number: b"v%d" % number for number in range(500)}
        keys = list(model)
        random.Random(1).shuffle(keys)
        self._put(backend, [(key, model[key]) for key in keys])
        assert backend.get_many("t", keys) == [model[key] for key in keys]
        assert backend.get_many("t", [b"7", b"7", b"nope", b"7"]) == [b"v7", b"v7", None, b"v7"]
        assert backend.get_many("t", []) == []
        self._is(backend, model)
        backend.close()

    def test_of_two_puts_of_a_key_the_last_one_stays(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        self._put(backend, [(b"a", b"1"), (b"b", b"2"), (b"b", b"3"), (b"c", b"4")])
        self._put(backend, [(b"d", b"5"), (b"e", b"6"), (b"e", b"7")])
        self._put(backend, [(b"g", b"8"), (b"f", b"9"), (b"g", b"10")])
        model = {b"a": b"1", b"b": b"3", b"c": b"4", b"d": b"5", b"e": b"7", b"f": b"9", b"g": b"10"}
        self._is(backend, model)
        backend.close()

    def test_one_change_clears_then_deletes_then_puts(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        self._put(backend, [(b"aa", b"old"), (b"ab", b"old"), (b"b", b"old"), (b"c", b"old")])
        change = TableChanges("t", puts=[(b"aa", b"new"), (b"c", b"new")], deletes=[b"b", b"c"], clears=[b"a"])
        backend.apply([change], "2")
        self._is(backend, {b"aa": b"new", b"c": b"new"})
        backend.close()

    def test_several_changes_of_one_table_apply_in_order(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        backend.apply(
            [
                TableChanges("t", puts=[(b"a1", b"1"), (b"a2", b"1"), (b"b", b"1")]),
                TableChanges("t", clears=[b"a"]),
                TableChanges("t", puts=[(b"a2", b"2")]),
                TableChanges("other", puts=[(b"a1", b"x")]),
                TableChanges("t", deletes=[b"b"]),
                TableChanges("t", puts=[(b"b", b"3")], clears=[b"b"]),
            ],
            "1",
        )
        self._is(backend, {b"a2": b"2", b"b": b"3"})
        self._is(backend, {b"a1": b"x"}, "other")
        backend.close()

    def test_overlapping_and_repeated_clears(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        self._put(backend, [(key, b"1") for key in (b"a", b"ab", b"abc", b"b", b"c")])
        backend.apply([TableChanges("t", clears=[b"ab", b"a", b"a", b"ab", b"zz"])], "2")
        self._is(backend, {b"b": b"1", b"c": b"1"})
        backend.apply([TableChanges("t", clears=[b""])], "3")
        self._is(backend, {})
        backend.close()

    def test_clears_of_prefixes_that_end_in_ff(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        for prefix in (b"\xff", b"\xff\xff", b"a\xff", b"\x00", b"\xfe\xff"):
            self._put(backend, [(key, b"1") for key in [*ODD_KEYS, b"a\xff", b"a\xff\xff", b"b"]])
            backend.apply([TableChanges("t", clears=[prefix])], "2")
            left = {key for key in [*ODD_KEYS, b"a\xff", b"a\xff\xff", b"b"] if not key.startswith(prefix)}
            self._is(backend, dict.fromkeys(left, b"1"))
        backend.close()

    def test_a_clear_leaves_other_tables_alone(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        for table in ("t", "t2", "s", "tt"):
            self._put(backend, [(b"a", table.encode())], table)
        backend.apply([TableChanges("t", clears=[b""])], "2")
        self._is(backend, {})
        for table in ("t2", "s", "tt"):
            self._is(backend, {b"a": table.encode()}, table)
        backend.close()

    # Odd keys and values.

    def test_binary_keys(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        model = {key: b"v" + key for key in ODD_KEYS}
        self._put(backend, model.items())
        self._is(backend, model)
        backend = self._reopened(backend, tmp_path)
        self._is(backend, model)
        backend.close()

    def test_empty_and_large_values(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        model = {b"empty": b"", b"zero": b"\x00", b"large": bytes(range(256)) * 40_000}
        self._put(backend, model.items())
        self._is(backend, model)
        backend = self._reopened(backend, tmp_path)
        self._is(backend, model)
        backend.apply([TableChanges("t", deletes=[b"empty"])], "2")
        assert backend.get_many("t", [b"empty"]) == [None]
        backend.close()

    def test_long_keys(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        model = {key: b"%d" % number for number, key in enumerate(long_keys())}
        model |= dict.fromkeys(ODD_KEYS, b"")
        self._put(backend, model.items())
        self._is(backend, model)
        backend = self._reopened(backend, tmp_path)
        self._is(backend, model)
        gone = long_keys()[::3]
        backend.apply([TableChanges("t", deletes=gone, puts=[(long_keys()[1], b"new")])], "2")
        for key in gone:
            del model[key]
        model[long_keys()[1]] = b"new"
        self._is(backend, model)
        backend.close()

    def test_scans_across_long_keys(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        model = {key: b"%d" % number for number, key in enumerate(long_keys())} | {b"j": b"j", b"l": b"l"}
        self._put(backend, model.items())
        for prefix in [
            b"k",
            b"k" * 399,
            b"k" * 400,
            b"k" * 401,
            b"k" * 500,
            b"k" * 511,
            b"k" * 5000,
            b"k" * 500 + b"1",
        ]:
            expected = sorted(pair for pair in model.items() if pair[0].startswith(prefix))
            assert list(backend.scan("t", prefix)) == expected
            for start in (expected[len(expected) // 2][0], expected[-1][0], expected[-1][0] + b"\x00"):
                assert list(backend.scan("t", prefix, start)) == [pair for pair in expected if pair[0] >= start]
        backend.close()

    def test_clears_across_long_keys(self, tmp_path: Path) -> None:
        for prefix in (b"k" * 399, b"k" * 400, b"k" * 450, b"k" * 512, b"k" * 500 + b"1"):
            folder = tmp_path / str(len(prefix))
            folder.mkdir()
            backend = self.make_backend(str(folder))
            model = dict.fromkeys([*long_keys(), b"j", b"l"], b"v")
            self._put(backend, model.items())
            backend.apply([TableChanges("t", clears=[prefix], puts=[(prefix + b"new", b"n")])], "2")
            left = {key: value for key, value in model.items() if not key.startswith(prefix)}
            self._is(backend, left | {prefix + b"new": b"n"})
            backend.close()

    def test_keys_that_look_like_stored_forms_of_long_keys(self, tmp_path: Path) -> None:
        """Whatever a store does to hold long keys, the bytes that it makes are possible keys too."""
        first = tmp_path / "first"
        first.mkdir()
        backend = self.make_backend(str(first))
        keys = [b"q" * 700, b"q" * 400 + b"r" * 300]
        self._put(backend, [(key, b"long") for key in keys])
        made = self.raw_keys(backend)
        model = dict.fromkeys([*made, *keys], b"v")
        self._put(backend, model.items())
        self._is(backend, model)
        backend.close()

    def raw_keys(self, backend: StateBackend) -> Sequence[bytes]:
        """Keys as the store holds them, if a test can look; override it for a backend that shortens keys."""
        return [b"q" * 400 + b"\xff\x00long\x00\xff" + b"d" * 32]

    # Scans.

    def test_scans_by_prefix_and_start(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        model = dict.fromkeys(ODD_KEYS, b"v")
        self._put(backend, model.items())
        for prefix in [b"", b"\x00", b"a", b"a\x00", b"\xff", b"\xff\xff", b"b", b"\xff\xff\xff\xff"]:
            for start in [b"", b"\x00", b"a", b"a\x00a", b"b", b"\xff\xff", b"\xff\xff\xff\xff"]:
                expected = [key for key in sorted(model) if key.startswith(prefix) and key >= start]
                assert [key for key, _ in backend.scan("t", prefix, start)] == expected, (prefix, start)
        backend.close()

    def test_a_scan_may_be_left_early_and_mixed_with_reads(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        self._put(backend, [(b"%03d" % number, b"v") for number in range(100)])
        one, two = backend.scan("t"), backend.scan("t", b"05")
        assert next(one) == (b"000", b"v")
        assert next(two) == (b"050", b"v")
        assert backend.get_many("t", [b"099"]) == [b"v"]
        assert next(one) == (b"001", b"v")
        del one, two
        self._put(backend, [(b"100", b"v")], version="2")
        assert backend.count("t") == 101
        backend.close()

    # Tables.

    def test_many_tables_with_odd_names(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        names = ["a", "A", "a b", "a.b", "a-b", "_timers.event", "0", "x" * 128, "version", "meta", "ab"]
        for name in names:
            self._put(backend, [(b"k", name.encode())], name)
        backend = self._reopened(backend, tmp_path)
        for name in reversed(names):
            self._is(backend, {b"k": name.encode()}, name)
        assert backend.version() == "1"
        backend.close()

    def test_thousands_of_tables(self, tmp_path: Path) -> None:
        """A store that limits the number of tables must raise the limit: a job may declare any number of states."""
        names = [f"state {number}" for number in range(1100)]
        backend = self.make_backend(str(tmp_path))
        backend.apply([TableChanges(name, puts=[(b"k", name.encode())]) for name in names[:600]], "1")
        backend.apply([TableChanges(name, puts=[(b"k", name.encode())]) for name in names[600:]], "2")
        for _ in range(2):
            assert backend.version() == "2"
            assert [backend.get_many(name, [b"k"]) for name in names] == [[name.encode()] for name in names]
            assert backend.getter(names[-1])(b"k") == names[-1].encode()
            backend = self._reopened(backend, tmp_path)
        backend.apply([TableChanges(name, deletes=[b"k"]) for name in [*names, "one more"]], "3")
        assert [backend.count(name) for name in names] == [0] * len(names)
        backend.close()

    def test_tables_stay_apart_when_reads_and_writes_alternate(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        names = [f"t{number}" for number in range(6)]
        for name in names:
            self._put(backend, [(b"k", name.encode())], name)
        backend = self._reopened(backend, tmp_path)
        for turn in range(3):
            for name in names if turn % 2 else reversed(names):
                assert backend.get_many(name, [b"k"]) == [name.encode()]
                assert backend.get_many(f"missing{turn}", [b"k"]) == [None]
            writes = [TableChanges(name, puts=[(b"%d" % turn, name.encode())]) for name in names]
            backend.apply([*writes, TableChanges(f"new{turn}", puts=[(b"k", b"new")])], str(turn))
            for name in names:
                assert backend.get_many(name, [b"k", b"%d" % turn]) == [name.encode()] * 2
            assert backend.get_many(f"new{turn}", [b"k"]) == [b"new"]
        backend.close()

    # Atomicity and reopening.

    def test_a_failed_apply_changes_nothing(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        if backend.resident:
            backend.close()
            return  # its instance is dropped with the task
        self._put(backend, [(b"a", b"1")])

        def changes() -> Iterable[TableChanges]:
            yield TableChanges("t", puts=[(b"a", b"2"), (b"b", b"2")], clears=[b"a"])
            raise RuntimeError("stop here")

        try:
            backend.apply(changes(), "2")
        except RuntimeError:
            pass
        else:
            raise AssertionError("the error of the iterable was swallowed")
        backend = self._reopened(backend, tmp_path)
        assert backend.version() == "1"
        self._is(backend, {b"a": b"1"})
        backend.close()

    def test_reopening_many_times(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        model: dict[bytes, bytes] = {}
        source = random.Random(7)
        for turn in range(20):
            puts = {b"%d" % source.randrange(300): source.randbytes(source.randrange(2000)) for _ in range(60)}
            deletes = [key for key in model if source.random() < 0.3]
            for key in deletes:
                del model[key]
            model |= puts
            backend.apply([TableChanges("t", puts=list(puts.items()), deletes=deletes)], str(turn))
            backend = self._reopened(backend, tmp_path)
            assert backend.version() == str(turn)
            self._is(backend, model)
        assert backend.size_bytes() > 0
        backend.close()

    def test_closing_twice_is_fine(self, tmp_path: Path) -> None:
        backend = self.make_backend(str(tmp_path))
        self._put(backend, [(b"a", b"1")])
        backend.close()
        backend.close()

    def test_growing_and_shrinking(self, tmp_path: Path) -> None:
        """Freed space at the end of a file is no damage."""
        backend = self.make_backend(str(tmp_path))
        for turn in range(6):
            keys = [b"%06d" % number for number in range(3000)]
            self._put(backend, [(key, b"x" * 300) for key in keys], version=f"{turn}a")
            backend = self._reopened(backend, tmp_path)
            assert backend.count("t") == 3000
            backend.apply([TableChanges("t", clears=[b"0"])], f"{turn}b")
            backend = self._reopened(backend, tmp_path)
            assert backend.version() == f"{turn}b"
            assert backend.count("t") == 0
        backend.close()
