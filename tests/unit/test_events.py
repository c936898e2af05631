"""Events reach those who subscribed, in order, and a listener that raises costs nobody anything."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cairn.events import CheckpointAborted, CheckpointCompleted, EventBus, JobEvent, StateMoved


def test_listeners_hear_of_what_they_subscribed_to_in_order() -> None:
    bus = EventBus()
    heard: list[Any] = []
    bus.subscribe(CheckpointCompleted, lambda event: heard.append(("completed", event.number)))
    bus.subscribe(JobEvent, lambda event: heard.append(("any", type(event).__name__)))
    bus.publish(CheckpointCompleted("job", 3))
    bus.publish(CheckpointAborted("job", 4))
    assert heard == [("completed", 3), ("any", "CheckpointCompleted"), ("any", "CheckpointAborted")]


def test_a_listener_that_raises_costs_nobody_anything(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    heard: list[JobEvent] = []

    def bad(event: JobEvent) -> None:
        raise RuntimeError("no")

    bus.subscribe(JobEvent, bad)
    bus.subscribe(JobEvent, heard.append)
    bus.publish(CheckpointCompleted("job", 3))
    assert heard == [CheckpointCompleted("job", 3)]
    assert "a listener of CheckpointCompleted raised; the job continues" in caplog.text


def test_who_has_unsubscribed_hears_no_more() -> None:
    bus = EventBus()
    heard: list[JobEvent] = []
    bus.subscribe(CheckpointCompleted, heard.append)
    bus.subscribe(CheckpointAborted, heard.append)
    assert bus.has_listeners(CheckpointAborted)
    bus.unsubscribe(heard.append)
    bus.unsubscribe(heard.append)
    bus.publish(CheckpointCompleted("job", 3))
    assert heard == []
    assert not bus.has_listeners(CheckpointAborted)


def test_one_bus_forwards_to_another() -> None:
    run, job = EventBus(), EventBus()
    heard: list[JobEvent] = []
    run.subscribe(CheckpointCompleted, job.publish)
    job.subscribe(JobEvent, heard.append)
    run.publish(CheckpointCompleted("job", 1))
    run.publish(StateMoved("op", 1, 2))
    assert heard == [CheckpointCompleted("job", 1)]
    assert job.has_listeners(StateMoved), "who subscribed to all hears of these, too"


def test_a_listener_may_unsubscribe_itself_and_subscribe_others() -> None:
    bus = EventBus()
    heard: list[str] = []

    def once(event: JobEvent) -> None:
        heard.append("once")
        bus.unsubscribe(once)
        bus.subscribe(JobEvent, lambda event: heard.append("later"))

    bus.subscribe(JobEvent, once)
    bus.publish(CheckpointCompleted("job", 1))
    assert heard == ["once"], "who subscribes while an event is passed on hears of the next one"
    bus.publish(CheckpointCompleted("job", 2))
    assert heard == ["once", "later"]


def test_no_subscription_is_lost_between_threads() -> None:
    bus = EventBus()
    heard: list[JobEvent] = []
    barrier = threading.Barrier(8)

    def subscribe() -> None:
        barrier.wait()
        for _ in range(50):
            bus.subscribe(JobEvent, heard.append)

    threads = [threading.Thread(target=subscribe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bus.publish(StateMoved("op", 1, 2))
    assert len(heard) == 400
