"""Functions with two inputs, without Spark: shared state and timers, order, broadcast state, rescaling, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cairn import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    NotFoundError,
    OutputTag,
    StateMisuseError,
    Types,
    UserFunctionError,
    ValueStateDescriptor,
)
from cairn.testing import TwoInputHarness

RULES = MapStateDescriptor("rules", "string", "bigint")
PAYMENTS, LIMITS = "card string, amount bigint", "name string, value bigint"
NOTES = OutputTag("notes", Types.STRING())


class Both(KeyedCoProcessFunction):
    """Counts the rows of both inputs per key, and says so when a timer fires."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint"))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self._count("one", value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self._count("two", value, ctx)
        ctx.output(NOTES, f"{ctx.get_current_key()} {value.note}")

    def _count(self, which: str, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        if ctx.timestamp() is not None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield ctx.get_current_key(), which, self.seen.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), "timer", timestamp


def both(**settings: Any) -> TwoInputHarness:
    return TwoInputHarness(
        Both(), ("a", "b"), ("a string, ts timestamp", "note string, b string, ts timestamp"),
        "key string, which string, n bigint", side_outputs=[NOTES], **settings,
    )  # fmt: skip


def test_inputs_share_state_across_epochs_and_rescaling() -> None:
    with both(parallelism=2) as harness:
        harness.push1(("x", None), ("y", None))
        harness.push2(("n1", "x", None))
        assert sorted(harness.run_epoch()) == [("x", "one", 1), ("x", "two", 2), ("y", "one", 1)]
        harness.restart(parallelism=3)
        harness.push2(("n2", "y", None), ("n3", "z", None))
        harness.fail_epoch()
        assert sorted(harness.run_epoch()) == [("y", "two", 2), ("z", "two", 1)]
        assert harness.state("seen", "x") == 2
        assert sorted(harness.side_outputs["notes"]) == ["x n1", "y n2", "z n3"]


def test_timers_belong_to_the_key_whichever_input_set_them() -> None:
    import datetime as dt

    at = [dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for ms in (1000, 2000)]
    with both(event_time=("ts", "ts")) as harness:
        harness.push1(("x", at[0]))
        harness.push2(("n", "x", at[1]))
        harness.run_epoch()
        assert [(timer.time, timer.key) for timer in harness.timers()] == [(1010, "x"), (2010, "x")]
        harness.advance_watermark(1500)
        assert harness.run_epoch() == [("x", "timer", 1010)]
        harness.advance_watermark(3000)
        assert harness.run_epoch() == [("x", "timer", 2010)]


class Limits(KeyedBroadcastProcessFunction):
    """Lets payments above the limit that was broadcast last go out, and counts a card's payments in keyed state."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        limit = ctx.get_broadcast_state(RULES).get("limit")
        if value.card == "cheat":
            ctx.get_broadcast_state(RULES).put("limit", 0)
        if limit is not None and value.amount > limit:
            yield value.card, value.amount, self.count.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        if value.value is None:
            rules.remove(value.name)
        else:
            rules.put(value.name, value.value)
        yield "rule", value.value or 0, 0


def limits(**settings: Any) -> TwoInputHarness:
    return TwoInputHarness(
        Limits(), ("card", None), (PAYMENTS, LIMITS), "card string, amount bigint, count bigint", broadcast=[RULES],
        **settings,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["hashmap", "lmdb"])
def test_broadcast_state_is_everywhere_and_before_the_rows_of_its_epoch(backend: str) -> None:
    with limits(parallelism=3, backend=backend, compaction_chain=3) as harness:
        harness.push1(*[(f"c{i}", i) for i in range(20)])
        harness.push2(("limit", 15), ("limit", 17), ("other", 1))
        out = sorted(harness.run_epoch())
        assert [row for row in out if row[0] == "rule"] == [("rule", 1, 0)] * 3 + [("rule", 15, 0)] * 3 + [
            ("rule", 17, 0)
        ] * 3
        assert [row for row in out if row[0] != "rule"] == [("c18", 18, 1), ("c19", 19, 1)]
        assert harness.operator_state("rules") == [{"limit": 17, "other": 1}] * 3
        for number in range(6):  # long enough for compactions
            harness.push2(("limit", number), ("n", number))
            harness.run_epoch()
        for parallelism in (5, 2, 1, 4):
            harness.restart(parallelism=parallelism)
            assert harness.operator_state("rules") == [{"limit": 5, "n": 5, "other": 1}] * parallelism
            harness.fail_epoch()
            harness.push1(*[(f"c{i}", i) for i in range(10)])
            assert len(harness.run_epoch()) == 4
            harness.restart(keep_stores=True)
            assert harness.operator_state("rules") == [{"limit": 5, "n": 5, "other": 1}] * parallelism
        harness.push2(("limit", None))
        harness.run_epoch()
        harness.restart(parallelism=3)
        assert harness.operator_state("rules") == [{"n": 5, "other": 1}] * 3
        assert harness.state("count", "c3") == 5


def test_broadcast_state_is_stored_for_the_subtasks_there_are() -> None:
    """After rescaling nothing is left under the groups of old subtasks: going back must not bring it back."""
    with limits(parallelism=4) as harness:
        harness.push2(("limit", 1))
        harness.run_epoch()
        harness.restart(parallelism=1)
        harness.push2(("limit", 2))
        harness.run_epoch()
        harness.restart(parallelism=4)
        assert harness.operator_state("rules") == [{"limit": 2}] * 4


def test_broadcast_state_cannot_be_written_by_the_keyed_side() -> None:
    with limits() as harness:
        harness.push2(("limit", 5))
        harness.run_epoch()
        harness.push1(("cheat", 1))
        with pytest.raises(StateMisuseError, match=r"key 'cheat': broadcast state 'rules' can be changed in process_b"):
            harness.run_epoch()
        harness.discard()
        assert harness.operator_state("rules") == [{"limit": 5}]


HISTORY = MapStateDescriptor("history", "string", "struct<names:array<string>,weight:double>")


class TwoMaps(KeyedBroadcastProcessFunction):
    """The values of a rule in one broadcast map, the order in which its changes came in another."""

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules, history = ctx.get_broadcast_state(RULES), ctx.get_broadcast_state(HISTORY)
        before = history.get("all")
        names = [*(before.names if before is not None else ()), f"{value.name}={value.value}"]
        history.put("all", (names, float(len(names))))
        rules.put(value.name, value.value)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        told = ctx.get_broadcast_state(HISTORY)["all"]
        if value.card == "cheat":
            ctx.get_broadcast_state(HISTORY).clear()
        yield value.card, " ".join(told.names), ctx.get_broadcast_state(RULES).get("b")


def test_two_broadcast_states_of_one_stream_change_in_the_order_of_its_elements() -> None:
    with TwoInputHarness(
        TwoMaps(), ("card", None), (PAYMENTS, LIMITS), "card string, told string, b bigint", parallelism=3,
        broadcast=[RULES, HISTORY],
    ) as harness:  # fmt: skip
        cards = [(f"c{n}", n) for n in range(6)]
        harness.push1(*cards)
        harness.push2(("b", 2), ("a", 1), ("b", 1))
        assert sorted(harness.run_epoch()) == [(card, "b=2 a=1 b=1", 1) for card, _ in cards]
        for parallelism in (5, 1, 2):
            harness.restart(parallelism=parallelism)
            harness.fail_epoch()
            harness.push2(("b", parallelism))
            harness.run_epoch()
        harness.push1(*cards)
        assert sorted(harness.run_epoch()) == [(card, "b=2 a=1 b=1 b=5 b=1 b=2", 2) for card, _ in cards]
        harness.push1(("cheat", 0))
        with pytest.raises(StateMisuseError, match="broadcast state 'history' can be changed in process_broadcast_el"):
            harness.run_epoch()


class Unknown(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.get_broadcast_state(RULES).get("limit") or 0

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        if value.name == "other":
            ctx.get_broadcast_state(MapStateDescriptor("other", "string", "bigint"))
        else:
            ctx.get_broadcast_state(RULES)[value.name] = value.value


def test_broadcast_without_a_key() -> None:
    types: Any = (Types.LONG(), LIMITS)
    with TwoInputHarness(Unknown(), None, types, "n bigint, limit bigint", parallelism=2, broadcast=[RULES]) as harness:
        harness.push1(1, 2, 3)
        harness.push2(("limit", 7))
        assert sorted(harness.run_epoch()) == [(1, 7), (2, 7), (3, 7)]
        harness.push2(("other", 7))
        with pytest.raises(NotFoundError, match=r"'tested' has no broadcast state 'other'; .* was given rules"):
            harness.run_epoch()


class Stateless(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value < 0:
            ctx.timer_service().register_event_time_timer(5)
        yield f"one {value}"

    def process_element2(self, value: Any, ctx: Any) -> list[str]:
        return [f"two {value}"]


def test_two_inputs_without_a_key() -> None:
    with TwoInputHarness(Stateless(), None, ("bigint", "string"), Types.STRING(), parallelism=2) as harness:
        harness.push1(1, 2)
        harness.push2("x")
        assert sorted(harness.run_epoch()) == ["one 1", "one 2", "two x"]
        harness.push1(-1)
        with pytest.raises(StateMisuseError, match="timers belong to keys, and this stream has none"):
            harness.run_epoch()


class Broken(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> str:
        return "text"

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return 1 // 0


def test_errors_name_the_input() -> None:
    with TwoInputHarness(Broken(), ("k", "k"), ("k string", "k string"), "x string") as harness:
        harness.push1(("a",))
        with pytest.raises(UserFunctionError, match=r"process_element1\(\) returned a str"):
            harness.run_epoch()
        harness.discard()
        harness.push2(("a",))
        with pytest.raises(UserFunctionError, match=r"key 'a': process_element2\(\) raised ZeroDivisionError"):
            harness.run_epoch()


class Keeps(KeyedBroadcastProcessFunction, CheckpointedFunction):
    """Keeps handles of broadcast state for longer than it may write to them."""

    def __init__(self, write: str) -> None:
        self.write = write

    def initialize_state(self, context: Any) -> None:
        self.early = context.get_operator_state_store().get_broadcast_state(RULES)
        if not context.is_restored():
            self.early.put("initial", 7)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        self.kept = ctx.get_broadcast_state(RULES)
        self.kept[value.name] = value.value
        self.early.put_all({"early": value.value})
        assert self.kept["early"] == self.early[value.name] == value.value

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.card, self.kept.get("limit"), len(list(self.early.keys()))
        kept = self.kept
        if self.write == "put":
            kept.put("limit", 0)
        elif self.write == "item":
            kept["limit"] = 0
        elif self.write == "early":
            self.early.put_all({"limit": 0})
        elif self.write == "remove":
            del kept["limit"]
        elif self.write == "clear":
            self.early.clear()
        ctx.timer_service().register_processing_time_timer(5)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.early.remove("limit")

    def snapshot_state(self, context: Any) -> None:
        if self.write == "snapshot":
            self.early.put("limit", 0)


@pytest.mark.parametrize("write", ["put", "item", "early", "remove", "clear", "snapshot", "timer"])
def test_a_kept_handle_of_broadcast_state_cannot_be_written_from_the_keyed_side(write: str) -> None:
    with TwoInputHarness(
        Keeps(write), ("card", None), (PAYMENTS, LIMITS), "card string, amount bigint, n bigint", broadcast=[RULES],
        parallelism=2,
    ) as harness:  # fmt: skip
        if write != "snapshot":
            harness.push2(("limit", 3))
            harness.run_epoch()
        harness.push2(("limit", 4))
        harness.push1(("a", 1))
        if write == "timer":
            assert harness.run_epoch() == [("a", 4, 3)]
            harness.advance_processing_time(10)
        with pytest.raises(StateMisuseError, match="'rules' can be changed in process_broadcast_element only"):
            harness.run_epoch()
        if write != "snapshot":
            limit = 4 if write == "timer" else 3
            assert harness.operator_state("rules") == [{"early": limit, "initial": 7, "limit": limit}] * 2


class Mixed(KeyedBroadcastProcessFunction):
    """Uses the context of one side on the other one."""

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        self.ctx = ctx

    def process_element(self, value: Any, ctx: Any) -> None:
        self.ctx.output(NOTES, value.card)


def test_what_a_kept_context_puts_out_is_not_lost() -> None:
    with TwoInputHarness(
        Mixed(), ("card", None), (PAYMENTS, LIMITS), "card string", broadcast=[RULES], side_outputs=[NOTES]
    ) as harness:
        harness.push2(("limit", 1))
        harness.push1(("a", 1), ("b", 2))
        harness.run_epoch()
        assert sorted(harness.side_outputs["notes"]) == ["a", "b"]
