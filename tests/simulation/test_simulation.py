"""Simulated histories: fixed seeds, new seeds, repetition, shrinking, and broken versions of the protocol."""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.support.mutations import MUTATIONS, SEEDS, broken, no_look_after_the_commit

from cairn.errors import InternalError
from cairn.model.manifest import Manifest
from cairn.storage.manifest_store import decode_manifest, encode_manifest
from cairn.testing.simulation import Outcome, readable, shrink, simulate, system
from cairn.testing.simulation.__main__ import main
from cairn.testing.simulation.campaign import run_chunk
from cairn.testing.simulation.scheduler import Scheduler

FIXED = 100
NEW_SECONDS = float(os.environ.get("SIMULATION_SECONDS", "5"))


def told(outcomes: list[Outcome]) -> str:
    """What is shown of histories that broke a rule."""
    repeat = "python -m cairn.testing.simulation --shrink --seed"
    return "\n".join(f"{outcome.problem}\n  repeat it: {repeat} {outcome.seed}" for outcome in outcomes)


@functools.cache
def busy() -> int:
    """A seed in whose history much happens."""
    return next(seed for seed in range(100) if simulate(seed).counters["epochs"] >= 20)


def test_no_history_of_a_fixed_set_of_seeds_breaks_a_rule() -> None:
    done, exercised, failed = run_chunk((0, FIXED, 20, float("inf")))
    assert not failed, told(failed)
    assert done == FIXED
    for what in (
        "takeovers", "crashes", "long pauses", "lost answers", "failed calls", "rollbacks", "restores", "forks",
        "compactions", "snapshots", "checkpoints", "stragglers", "tasks run twice", "lost workers", "leaps of time",
        "lagging listings", "late commits", "stops", "savepoints", "savepoints restored", "forks of savepoints",
        "stops with savepoint", "savepoint tasks run twice", "runs that discarded their checkpoints",
    ):  # fmt: skip
        assert exercised[what] > 0, f"the fixed set exercises no {what}"


def test_no_history_of_new_seeds_breaks_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    first = time.time_ns() // 1_000_000 % 1_000_000_000 * 1000
    done, _, failed = run_chunk((first, 100_000, 20, time.time() + NEW_SECONDS))
    with capsys.disabled():
        print(f"\n{done} new histories from seed {first} on")
    assert not failed, told(failed)
    assert done > 0


def test_a_seed_gives_the_same_history_every_time() -> None:
    seed = busy()
    first, again, other = simulate(seed), simulate(seed), simulate(seed + 1)
    assert (first.fingerprint, first.calls, first.counters) == (again.fingerprint, again.calls, again.counters)
    assert first.fingerprint != other.fingerprint
    repeated = simulate(seed, given=first.decisions)
    assert repeated.fingerprint == first.fingerprint, "the decisions alone give the same history"


def found(mutation: Callable[[pytest.MonkeyPatch], None], seconds: float = 60.0) -> Outcome | None:
    """The first history that notices a mutation: that of the known seed, or one that is searched for.

    With `SOAK` set it is searched for among new seeds.
    """
    deadline = time.monotonic() + seconds
    new = time.time_ns() // 1_000_000 % 1_000_000_000 * 1000
    seeds = range(new, new + 100_000) if os.environ.get("SOAK") else [SEEDS[mutation.__name__], *range(1000, 100_000)]
    with broken(mutation):
        for seed in seeds:
            outcome = simulate(seed)
            if outcome.problem:
                return outcome
            if time.monotonic() > deadline:
                break
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_version_of_the_protocol_is_found(mutation: Callable[[pytest.MonkeyPatch], None]) -> None:
    outcome = found(mutation)
    assert outcome is not None, f"{mutation.__name__} was not found within a minute"
    assert not simulate(outcome.seed).problem, "the same history is fine without the mutation"


def test_a_failing_history_shrinks_to_few_decisions_and_a_trace_that_tells_who_did_what() -> None:
    outcome = found(no_look_after_the_commit)
    assert outcome is not None
    with broken(no_look_after_the_commit):
        small = shrink(outcome, seconds=8.0)
    assert small.rule == outcome.rule
    assert len(small.decisions) < len(outcome.decisions)
    lines = readable(small.trace)
    assert any("starts" in line or "start driver 2" in line for line in lines)
    assert any("pauses for" in line or "crashes" in line for line in lines)
    assert "!!" in lines[-1]
    assert len(lines) < len(small.trace)


def test_the_command_line_tells_of_a_finding_and_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = found(no_look_after_the_commit)
    assert outcome is not None
    with broken(no_look_after_the_commit):
        assert main(["--seed", str(outcome.seed)]) == 1
    assert f"--seed {outcome.seed} --shrink" in capsys.readouterr().out
    assert main(["--seed", str(busy())]) == 0
    assert "no rule was broken" in capsys.readouterr().out


def test_the_counters_say_what_was_exercised() -> None:
    counters = Counter(simulate(busy()).counters)
    assert counters["epochs"] > 0
    assert counters["drivers"] >= counters["runs"] > 0


def test_a_record_that_was_changed_after_it_had_been_read_is_noticed() -> None:
    data = encode_manifest(Manifest("job", "i", 1, "c", 1, 0, 4, "", 0, 0, [], [], {}))
    machine = system.Machine(Scheduler(), None, 1)  # type: ignore[arg-type]
    manifest = machine.decoded(decode_manifest, data, "manifest")
    assert machine.decoded(decode_manifest, data, "manifest") is manifest
    machine.check_records()
    manifest.lineage[1] = "c"
    with pytest.raises(InternalError, match="changed after it had been read"):
        machine.check_records()
