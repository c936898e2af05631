"""Functions and state of windows, windows of one's own, failures, the end of time, and definitions that are refused."""

from __future__ import annotations

import doctest
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support.window_lab import COUNTS, LATE, ROWS, Count, counting, nothing_left, row, values

from cairn import (
    AggregateFunction,
    AllWindowFunction,
    ContinuousEventTimeTrigger,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    EventTimeSessionWindows,
    EventTimeTrigger,
    InvalidInputError,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    ReduceFunction,
    ReducingStateDescriptor,
    SlidingEventTimeWindows,
    StateMisuseError,
    Time,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    UserFunctionError,
    ValueStateDescriptor,
    Window,
    WindowAssigner,
    WindowFunction,
    WindowSerializer,
)
from cairn.model.ddl import parse_type
from cairn.state.section_changes import ChainFiles
from cairn.state.typed_tables import table_schema, to_section, to_table
from cairn.testing import WindowHarness, window_harness


class Add(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1], max(value1[2], value2[2])


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value.v

    def get_result(self, accumulator: Any) -> float:
        return float(accumulator[1] / accumulator[0])

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Labelled(ProcessWindowFunction[Any, Any, str, Any]):
    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        (only,) = elements
        yield key, context.window().end, only if isinstance(only, float) else float(only.v)


class LabelledByApply(WindowFunction[Any, Any, str, Any]):
    def apply(self, key: str, window: Any, inputs: Iterable[Any]) -> list[Any]:
        (only,) = inputs
        return [(key, window.end, only if isinstance(only, float) else float(only.v))]


class Forgets(Add):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return super().reduce(value1, value2) if value2[1] < 100 else None


class ForgetsToAdd(Mean):
    def add(self, value: Any, accumulator: Any) -> Any:
        return super().add(value, accumulator) if value.v < 100 else None


class ForgetsToMerge(Mean):
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"reduce": Forgets()}, r"Forgets\.reduce\(\)"), ({"reduce": lambda x, y: None}, "the reduce function <lambda>"),
     ({"aggregate": ForgetsToAdd()}, r"ForgetsToAdd\.add\(\)"),
     ({"aggregate": ForgetsToMerge()}, r"ForgetsToMerge\.merge\(\)")],
)  # fmt: skip
def test_none_for_a_combined_value_is_an_error_that_names_operator_and_function(
    settings: dict[str, Any], name: str
) -> None:
    session = EventTimeSessionWindows.with_gap(5)
    output = ROWS if "reduce" in settings else Types.DOUBLE()
    with WindowHarness(session, None, "user", ROWS, output, event_time="time", **settings) as harness:
        harness.push(row(1, v=1), row(8, v=2))
        harness.run_epoch()
        before = harness.state("window-contents", "a")
        harness.push(row(4, v=100))
        with pytest.raises(UserFunctionError, match=rf"operator 'tested'.*key 'a': {name} returned None"):
            harness.run_epoch()
        assert harness.state("window-contents", "a") == before


def test_reduce_and_aggregate_keep_one_value_alone_and_with_a_function() -> None:
    rows = [row(1, v=1), row(2, v=2), row(8, v=30), row(4, v=6)]
    session = EventTimeSessionWindows.with_gap(5)
    labelled = "user string, last bigint, value double"
    cases: list[tuple[Any, Any, dict[str, Any], Any]] = [
        (None, ROWS, {"reduce": Add()}, ("a", 39, WindowHarness.at(8))),
        (None, ROWS, {"reduce": lambda x, y: (x.user, x.v + y.v, max(x.time, y.time))},
         ("a", 39, WindowHarness.at(8))),
        (Labelled(), labelled, {"reduce": Add()}, ("a", 13, 39.0)),
        (None, Types.DOUBLE(), {"aggregate": Mean(), "accumulator_type": "struct<n:bigint,s:bigint>"}, 9.75),
        (None, Types.DOUBLE(), {"aggregate": Mean()}, 9.75),
        (Labelled(), labelled, {"aggregate": Mean()}, ("a", 13, 9.75)),
        (LabelledByApply(), labelled, {"aggregate": Mean()}, ("a", 13, 9.75)),
    ]  # fmt: skip
    for function, output, settings, want in cases:
        with WindowHarness(session, function, "user", ROWS, output, event_time="time", **settings) as harness:
            harness.push(*rows[:3])
            harness.run_epoch()
            assert len(harness.state("window-contents", "a")) == 2
            harness.push(rows[3])
            harness.run_epoch()
            assert len(harness.state("window-contents", "a")) == 1
            harness.advance_watermark(100)
            assert harness.run_epoch() == [want]
            assert harness.state("window-contents", "a") == {}


class Remembers(ProcessWindowFunction[Any, Any, str, Any]):
    """Counts its firings per window and per key, with state of every kind."""

    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        mine = context.window_state().get_state(ValueStateDescriptor("fired", "bigint"))
        mine.update((mine.value() or 0) + 1)
        whole = context.global_state().get_state(ValueStateDescriptor("fired", "bigint"))
        whole.update((whole.value() or 0) + 1)
        seen = context.window_state().get_list_state(ListStateDescriptor("seen", "bigint"))
        seen.add(mine.value())
        named = context.window_state().get_map_state(MapStateDescriptor("named", "string", "bigint"))
        named.put(f"n{mine.value()}", mine.value())
        added = context.window_state().get_reducing_state(
            ReducingStateDescriptor("added", lambda a, b: a + b, "bigint")
        )
        added.add(10)
        yield (
            f"{context.window().start}: {mine.value()} {whole.value()} {list(seen)} {dict(named.items())} "
            f"{added.get()} {context.current_watermark()}"
        )

    def clear(self, context: Any) -> None:
        for kind, descriptor in (
            ("get_state", ValueStateDescriptor("fired", "bigint")),
            ("get_list_state", ListStateDescriptor("seen", "bigint")),
            ("get_map_state", MapStateDescriptor("named", "string", "bigint")),
            ("get_reducing_state", ReducingStateDescriptor("added", max, "bigint")),
        ):
            getattr(context.window_state(), kind)(descriptor).clear()


class OpensStates(Remembers):
    """The harness shows the states that `open` declares."""

    def open(self, runtime_context: Any) -> None:
        window = "struct<start:bigint,end:bigint>"
        runtime_context.get_map_state(MapStateDescriptor("window.fired", window, "bigint"))
        runtime_context.get_map_state(MapStateDescriptor("window.seen", window, "array<bigint>"))


def test_state_of_a_window_and_of_its_key() -> None:
    with WindowHarness(
        TumblingEventTimeWindows.of(10), OpensStates(), "user", ROWS, Types.STRING(), event_time="time",
        allowed_lateness=100,
    ) as harness:  # fmt: skip
        harness.push(row(1), row(11))
        harness.run_epoch()
        harness.advance_watermark(20)
        assert harness.run_epoch() == ["0: 1 1 [1] {'n1': 1} 10 19", "10: 1 2 [1] {'n1': 1} 10 19"]
        harness.restart(parallelism=2)
        harness.push(row(2))
        assert harness.run_epoch() == ["0: 2 3 [1, 2] {'n1': 1, 'n2': 2} 20 19"]
        assert harness.state("window.seen", "a") == {(0, 10): [1, 2], (10, 20): [1]}
        harness.advance_watermark(1000)
        assert harness.run_epoch() == []
        assert harness.state("window.seen", "a") == harness.state("window.fired", "a") == {}
    with WindowHarness(
        EventTimeSessionWindows.with_gap(10), Remembers(), "user", ROWS, Types.STRING(), event_time="time"
    ) as harness:
        harness.push(row(1))
        harness.run_epoch()
        harness.advance_watermark(100)
        with pytest.raises(StateMisuseError, match="windows that merge have no state of their own"):
            harness.run_epoch()


class Parity(Window):
    """A window of one's own: even or odd values."""

    def __init__(self, odd: bool) -> None:
        self.odd = odd

    def max_timestamp(self) -> int:
        return (1 << 63) - 1


class ParitySerializer(WindowSerializer[Parity]):
    def to_numbers(self, window: Parity) -> tuple[int, int]:
        return int(window.odd), 0

    def from_numbers(self, first: int, second: int) -> Parity:
        return Parity(bool(first))


class EveryThird(Trigger[Any, Any]):
    """Fires at every third element, and ten milliseconds of processing time after the first."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        count = ctx.get_partitioned_state(ValueStateDescriptor("n", "bigint"))
        count.update((count.value() or 0) + 1)
        if count.value() == 1:
            ctx.register_processing_time_timer(ctx.get_current_processing_time() + 9)
        return TriggerResult.FIRE if count.value() % 3 == 0 else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(ValueStateDescriptor("n", "bigint")).clear()


class ByParity(WindowAssigner[Any, Parity]):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[Parity]:
        return [Parity(element.v % 2 == 1)]

    def get_default_trigger(self, env: Any) -> Trigger[Any, Parity]:
        return EveryThird()

    def get_window_serializer(self) -> ParitySerializer:
        return ParitySerializer()

    def is_event_time(self) -> bool:
        return False


def test_assigners_windows_and_triggers_of_ones_own() -> None:
    with values(ByParity()) as harness:
        harness.push(*[row(0, v=v) for v in range(6)])
        assert sorted(harness.run_epoch()) == [("a", "0 2 4"), ("a", "1 3 5")]
        harness.push(row(0, v=7))
        harness.run_epoch()
        harness.restart()
        harness.advance_processing_time(10)
        assert sorted(harness.run_epoch()) == [("a", "0 2 4"), ("a", "1 3 5 7")]
        assert harness.state("window-elements", "a") == {}

    class Wrong(ByParity):
        def get_window_serializer(self) -> Any:
            return super(ByParity, self).get_window_serializer()

    with values(Wrong()) as harness:
        harness.push(row(0))
        with pytest.raises(UserFunctionError, match="a serializer for them in get_window_serializer"):
            harness.run_epoch()


class All(ProcessAllWindowFunction[Any, Any, TimeWindow]):
    def process(self, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield "all", context.window().start, context.window().end, len(list(elements))


class AllApply(AllWindowFunction[Any, Any, TimeWindow]):
    def apply(self, window: TimeWindow, inputs: Iterable[Any]) -> Iterable[Any]:
        return [("all", window.start, window.end, len(list(inputs)))]


@pytest.mark.parametrize("function", [All(), AllApply()])
def test_functions_of_streams_without_key(function: Any) -> None:
    with WindowHarness(TumblingEventTimeWindows.of(5), function, "v", ROWS, COUNTS, event_time="time") as harness:
        harness.push(row(1), row(2, "b"))
        harness.run_epoch()
        harness.advance_watermark(5)
        assert harness.run_epoch() == [("all", 0, 5, 2)]


def test_a_failed_epoch_leaves_windows_as_they_were() -> None:
    with counting(EventTimeSessionWindows.with_gap(5), backend="lmdb", inline_threshold=0) as harness:
        harness.push(row(1), row(8))
        harness.run_epoch()
        harness.push(row(4))
        harness.advance_watermark(6)
        for at in ("announced", "prepared", "acknowledged"):
            harness.fail_epoch(at)
            assert len(harness.state("window-sessions", "a")) == 2
        harness.restart(parallelism=4)
        assert harness.run_epoch() == [("a", 1, 6, 1)]  # over before the row came
        assert harness.state("window-sessions", "a") == {(4, 13): (8, 13)}
        harness.advance_watermark(13)
        harness.fail_epoch()
        harness.restart()
        assert harness.run_epoch() == [("a", 4, 13, 2)]
        nothing_left(harness)


def drained(harness: Any) -> list[Any]:
    """The last epoch of a job that is drained."""
    harness._loop.draining = True
    return sorted(harness.run_epoch())


def test_a_drained_job_fires_all_windows_with_the_rows_of_its_last_epoch() -> None:
    with counting(TumblingEventTimeWindows.of(10), allowed_lateness=100, late=LATE) as harness:
        harness.push(row(1), row(11), row(1, "b"))
        harness.run_epoch()
        harness.advance_watermark(10)
        assert sorted(harness.run_epoch()) == [("a", 0, 10, 1), ("b", 0, 10, 1)]
        harness.push(row(2), row(12), row(55))
        assert drained(harness) == [("a", 0, 10, 2), ("a", 10, 20, 2), ("a", 50, 60, 1)]
        assert harness.side_outputs["late"] == []
        harness._loop.draining = False
        nothing_left(harness)
    with counting(EventTimeSessionWindows.with_gap(10)) as harness:
        harness.push(row(1), row(20))
        harness.run_epoch()
        harness.push(row(10))
        assert drained(harness) == [("a", 1, 30, 3)]
    with counting(TumblingEventTimeWindows.of(100), trigger=ContinuousEventTimeTrigger.of(40)) as harness:
        harness.push(row(1))
        harness.run_epoch()
        assert drained(harness) == [("a", 0, 100, 1)] * 3


def test_a_row_of_the_last_epoch_that_is_too_late_is_late() -> None:
    with counting(TumblingEventTimeWindows.of(10), late=LATE) as harness:
        harness.push(row(1), row(31))
        harness.run_epoch()
        harness.advance_watermark(20)
        assert harness.run_epoch() == [("a", 0, 10, 1)]
        harness.push(row(2), row(32))
        assert drained(harness) == [("a", 30, 40, 2)]
        assert len(harness.side_outputs["late"]) == 1
        harness._loop.draining = False
        nothing_left(harness)


def test_the_state_of_windows_goes_through_the_tables_of_savepoints() -> None:
    """Map keys that are windows, arrays of windows and elements: to tables and back, byte for byte."""
    with counting(EventTimeSessionWindows.with_gap(10), trigger=ContinuousEventTimeTrigger.of(3)) as harness:
        harness.push(row(1), row(5), row(30), row(-7, "b"))
        harness.run_epoch()
        manifest = harness.manifest
        assert manifest is not None
        (operator,) = manifest.operators
        key_columns = [("user", parse_type("string"))]
        seen = set()
        for handle in operator.chain:
            file = ChainFiles(harness.files, manifest).open(operator.uid, handle)
            for info in file.sections:
                section = file.read(info)
                data = section.data.filter(section.data.column("value").is_valid())
                whole = replace(section, data=data.filter(data.column("entry").is_valid()))
                (spec,) = [spec for spec in operator.states if spec.name == section.table]
                table = to_table(whole, key_columns, spec)
                columns, _ = table_schema(key_columns, spec)
                back = to_section(table, columns, key_columns, spec, harness.spec.max_parallelism)
                assert back.data.select(whole.data.column_names).equals(whole.data), spec.name
                seen.add(spec.name)
        assert {
            "window-elements",
            "window-sizes",
            "window-sessions",
            "window-timers-event",
            "trigger.fire-time",
        } <= seen


class CannotMerge(EventTimeTrigger):
    def can_merge(self) -> bool:
        return False


class NoMerge(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


def test_bad_definitions_are_refused_where_they_are_made() -> None:
    tumbling = TumblingEventTimeWindows.of(10)
    session = EventTimeSessionWindows.with_gap(10)
    clock = TumblingProcessingTimeWindows.of(10)
    text: Any = "5 seconds"
    function: Any = len
    kind: Any = CountTrigger
    assigner: Any = TumblingEventTimeWindows
    bad: list[tuple[Any, str]] = [
        (lambda: TumblingEventTimeWindows.of(Time.seconds(0)), "size of a window must be longer than nothing"),
        (lambda: TumblingEventTimeWindows.of(-5), "not -5 ms"),
        (lambda: TumblingEventTimeWindows.of(text), "Time.seconds.5., or whole milliseconds, not '5 seconds'"),
        (lambda: TumblingEventTimeWindows.of(5, 5), "offset, 5 ms, must be shorter than 5 ms"),
        (lambda: SlidingEventTimeWindows.of(10, 0), "slide of a window must be longer than nothing"),
        (lambda: EventTimeSessionWindows.with_gap(0), "gap of a session must be longer than nothing"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(function), "takes a SessionWindowTimeGapExtractor"),
        (lambda: ProcessingTimeSessionWindows.with_gap(True), "not True"),
        (lambda: CountTumblingWindowAssigner.of(0), "size of a count window is a number of elements from 1 on"),
        (lambda: CountSlidingWindowAssigner.of(3, -1), "slide of a count window"),
        (lambda: CountTrigger.of(0), "at least 1, not 0"),
        (lambda: ContinuousEventTimeTrigger.of(Time.seconds(0)), "longer than nothing"),
        (lambda: PurgingTrigger.of(kind), "takes another trigger"),
        (lambda: counting(tumbling, event_time=None), "works on event time, and the stream has none.*with_watermark"),
        (lambda: counting(assigner), "window takes a WindowAssigner.*of"),
        (lambda: counting(session, trigger=CannotMerge()), "merges windows, and CannotMerge cannot"),
        (lambda: counting(session, trigger=PurgingTrigger.of(CannotMerge())), "PurgingTrigger cannot"),
        (lambda: counting(tumbling, trigger=CountTrigger), "trigger takes a Trigger"),
        (lambda: counting(clock, event_time=None, trigger=EventTimeTrigger()), "EventTimeTrigger works on event time"),
        (lambda: counting(tumbling, allowed_lateness=-1), "cannot be negative"),
        (lambda: counting(clock, allowed_lateness=5), "nothing is late in TumblingProcessingTimeWindows"),
        (lambda: counting(clock, late=LATE), "side_output_late_data: nothing is late"),
        (lambda: counting(tumbling, late=OutputTag("late", "user string")), "late rows go out as they came in"),
        (lambda: WindowHarness(session, None, "user", ROWS, "bigint", event_time="time", aggregate=NoMerge()),
         "NoMerge must define merge"),
        (lambda: WindowHarness(tumbling, NoMerge(), "user", ROWS, COUNTS, event_time="time"),
         "takes a ProcessWindowFunction, not NoMerge"),
        (lambda: WindowHarness(tumbling, None, "user", ROWS, COUNTS, event_time="time", reduce=5), "reduce takes"),
    ]  # fmt: skip
    for make, message in bad:
        with pytest.raises(InvalidInputError, match=message):
            make()


def test_rows_without_time_and_rows_of_the_wrong_type_are_told() -> None:
    with counting(TumblingEventTimeWindows.of(10)) as harness:
        harness.push(("a", 1, None))
        with pytest.raises(UserFunctionError, match="no event time, so no event-time window"):
            harness.run_epoch()
    with WindowHarness(CountTumblingWindowAssigner.of(1), Count(), "user", ROWS, COUNTS) as harness:
        harness.push(row(1))
        with pytest.raises(UserFunctionError, match="'CountWindow' object has no attribute 'start'"):
            harness.run_epoch()
    with WindowHarness(TumblingEventTimeWindows.of(5), Count(), "user", ROWS, "n bigint", event_time="time") as harness:
        harness.push(row(1))
        harness.run_epoch()
        harness.advance_watermark(5)
        with pytest.raises(UserFunctionError, match="it has 4 values instead of 1"):
            harness.run_epoch()
        assert len(harness.state("window-elements", "a")) == 1


def test_the_example_in_the_harness_does_what_it_says() -> None:
    found = doctest.testmod(window_harness)
    assert found.attempted
    assert not found.failed


def test_windows_are_equal_by_what_they_are() -> None:
    assert TimeWindow(1, 2) == TimeWindow(1, 2) != TimeWindow(1, 3)
    assert len({TimeWindow(1, 2), TimeWindow(1, 2), CountWindow(1), CountWindow(1)}) == 2
    assert repr(TimeWindow(1, 2)) == "TimeWindow(start=1, end=2)"
    assert TimeWindow(0, 5).intersects(TimeWindow(5, 6))
    assert not TimeWindow(0, 5).intersects(TimeWindow(6, 7))
    assert TimeWindow.get_window_start_with_offset(-1, 0, 5) == -5
