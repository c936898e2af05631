"""Which source of a snapshot is which source of the job.

Spark keeps the positions of sources by number. A snapshot also says what each source reads, so that sources are matched
when others were added, removed or put in another order.

A source that a plan mentions twice has two positions and one folder of logs: folders are numbered without such
repetitions. The later mentions are named `same as source <n>`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cairn.errors import IncompatibleStateError

TICKS = "cairn-ticks"
"""The source that makes an epoch at every trigger in jobs with timers. It is always the last one."""
COLLECTION = "cairn-script"
"""A collection, or a script for tests. Both end."""
FILES = "FileSource"
"""What Spark calls a source of files; the directory follows in brackets."""
NAME_OPTION = "cairn.source"
"""An option of any source: its name, by which it is matched whatever its other options are."""
_KAFKA_INPUT = ("subscribe", "subscribepattern", "assign")
_SECRET = re.compile("password|passwd|secret|token|credential|key")
_DROP = (
    "set execution.state-recovery.ignore-unclaimed-state=true (--allow-non-restored-state): the positions are dropped, "
    "and the sources of the job start at their beginning."
)
_AGAIN = "same as source "


def again(number: int) -> str:
    """The name of a source that is the one of an earlier number."""
    return f"{_AGAIN}{number}"


def is_again(name: str) -> bool:
    return name.startswith(_AGAIN)


def _origin(names: Sequence[str], number: int) -> int:
    """The number at which a source is mentioned first."""
    repeated = re.fullmatch(rf"{_AGAIN}(\d{{1,4}})", names[number])
    first = int(repeated[1]) if repeated else number
    return first if first < number and not names[first].startswith(_AGAIN) else number


def folders(names: Sequence[str], positions: int) -> list[int]:
    """The folder below `sources/` that the source of each position has. `names` is empty if they are not known."""
    if len(names) != positions:
        return list(range(positions))
    numbers: list[int] = []
    count = 0
    for position in range(positions):
        origin = _origin(names, position)
        numbers.append(numbers[origin] if origin < position else count)
        count += origin == position
    return numbers


@dataclass(frozen=True, slots=True)
class SourceMatch:
    """A source of the job, and the source of the snapshot that it continues."""

    name: str
    stored: int | None
    """The number of the snapshot's source; None if the source starts at its beginning."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The sources of a job in their order, and the sources of the snapshot that no source of the job continues."""

    matches: tuple[SourceMatch, ...]
    left: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Why the sources cannot be told apart; a restore is refused then."""
    doubts: tuple[str, ...] = ()
    """Matches that are likely and not certain."""

    @property
    def notes(self) -> list[str]:
        """What users should know before they start the job."""
        new = [
            f"source {number} ({match.name}) is new and starts at its beginning"
            for number, match in enumerate(self.matches)
            if match.stored is None and match.name != TICKS and not match.name.startswith(_AGAIN)
        ]
        gone = [f"source {name} of the snapshot is not in the job; its position is dropped" for name in self.left]
        return [*self.doubts, *new, *gone]


def source_name(base: str, options: Mapping[str, str]) -> str:
    """The name of a source in snapshots: Spark's name for it, and a mark that tells it from others of its kind.

    The mark is the option `cairn.source`, or else a hash of the options that say what is read. It is a hash because
    options may hold secrets. Options that name a secret, and all options of Kafka but the topics, are left out, so that
    they can change.
    """
    base = re.sub(r"^(cairn-\w+)-\d+-\d+$", r"\1", base)  # generated sources are registered under a number
    by_key = {key.lower(): value for key, value in options.items()}
    if NAME_OPTION in by_key:
        return f"{base}{{{by_key[NAME_OPTION]}}}"
    chosen = {
        key: value
        for key, value in by_key.items()
        if (key in _KAFKA_INPUT if base == "kafka" else key != "path" and not _SECRET.search(key))
    }
    if not chosen:
        return base
    return f"{base}{{{hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]}}}"


def match_sources(stored: Sequence[str], positions: int, wanted: Sequence[str], drop: bool = False) -> SourcePlan:
    """Match the sources of a job with those of a snapshot: by name, then by what they read, then by their kind.

    Where more than one match is possible, the plan has a problem: a source must not continue from the position of
    another one. With `drop` such sources start at their beginning instead. `stored` is empty for a snapshot that does
    not name its sources; these are matched by number, which requires as many as before (and one more or less for the
    ticks of a job with timers).
    """
    if len(stored) != positions:
        return _by_number(positions, wanted)
    search = _Search(stored, wanted)
    for alike in (_same, _place, _kind):
        search.look(alike, drop)
    matches = tuple(
        SourceMatch(name, search.matches.get(_origin(wanted, number))) for number, name in enumerate(wanted)
    )
    left = tuple(f"{p} ({stored[p]})" for p in search.left() if stored[p] != TICKS)
    return SourcePlan(matches, left, tuple(search.problems), tuple(search.doubts))


def moved_sources(stored: Sequence[str], positions: int, wanted: Sequence[str]) -> str:
    """Why a job cannot continue from positions by number; empty if every source has the number that it had.

    Spark itself refuses another number of sources.
    """
    if len(stored) != positions or len(wanted) != positions:
        return ""
    plan = match_sources(stored, positions, wanted)
    same = all(
        match.stored == _origin(stored, number) == _origin(wanted, number) for number, match in enumerate(plan.matches)
    )
    if same and not plan.problems:
        return ""
    before, now = ("; ".join(f"{n}: {name}" for n, name in enumerate(names)) for names in (stored, wanted))
    return f"the positions are those of the sources {before}. The job now reads {now}."


class _Search:
    """Matches sources by one likeness after the other, from the closest to the loosest."""

    def __init__(self, stored: Sequence[str], wanted: Sequence[str]) -> None:
        self.stored = stored
        self.wanted = wanted
        self.matches: dict[int, int] = {}
        self.problems: list[str] = []
        self.doubts: list[str] = []
        self._free = {number for number in range(len(stored)) if _origin(stored, number) == number}
        self._open = {number for number in range(len(wanted)) if _origin(wanted, number) == number}
        self._stored_once = sorted(self._free)

    def left(self) -> list[int]:
        """The sources of the snapshot that no source of the job continues."""
        return [number for number in self._stored_once if number not in self.matches.values()]

    def look(self, alike: Callable[[str], str], drop: bool) -> None:
        """Match what is not matched yet where `alike` gives the same word for both sides."""
        for word in dict.fromkeys(alike(self.wanted[number]) for number in sorted(self._open)):
            mine = [number for number in sorted(self._open) if alike(self.wanted[number]) == word]
            there = [place for place in sorted(self._free) if alike(self.stored[place]) == word]
            if not there:
                continue
            self._open -= set(mine)
            self._free -= set(there)
            problem = self._problem(alike, mine, there)
            if not problem:
                self.matches |= zip(mine, there, strict=True)
                self._doubt(alike, mine, there)
            elif not drop:
                self.problems.append(problem)

    def _problem(self, alike: Callable[[str], str], mine: list[int], there: list[int]) -> str:
        if alike is _kind and _kind(self.wanted[mine[0]]) == FILES:
            return (
                f"{_shown(mine, self.wanted)} of the job reads another place than {_shown(there, self.stored)} of the "
                "snapshot, which knows the files that were read by their paths. If it is the same input and was moved, "
                "let it be read under its old path, for example through a link: else every file would be read again. "
                f"If it is another input, {_DROP}"
            )
        sure = alike is _same or (alike is _place and not any(_mark(self.stored[place]) for place in there))
        if len(mine) == len(there) and (sure or len(mine) == 1):
            return ""
        return (
            f"{_shown(mine, self.wanted)} of the job cannot be matched to {_shown(there, self.stored)} of the "
            "snapshot, because they cannot be told apart: a wrong match would skip or repeat input. Read the same "
            "number of sources with the same options as before, in the same order. To avoid this, give each source a "
            f"name, .option('{NAME_OPTION}', '<name>'), before the next snapshot. Or {_DROP}"
        )

    def _doubt(self, alike: Callable[[str], str], mine: list[int], there: list[int]) -> None:
        ours, theirs = _shown(mine, self.wanted), _shown(there, self.stored)
        if len(mine) > 1:
            self.doubts.append(
                f"{ours} continue from {theirs} of the snapshot in this order, because their options are the same; "
                f"give each a name: .option('{NAME_OPTION}', '<name>')"
            )
        elif alike is _kind or (
            alike is _place and _mark(self.stored[there[0]]) and _kind(self.wanted[mine[0]]) != FILES
        ):
            self.doubts.append(
                f"{ours} continues from {theirs} of the snapshot: its options differ, but no other source fits"
            )


def _shown(numbers: Sequence[int], names: Sequence[str]) -> str:
    return ", ".join(f"source {number} ({names[number]})" for number in numbers)


def _by_number(positions: int, wanted: Sequence[str]) -> SourcePlan:
    count = len(wanted)
    ticks = bool(wanted) and wanted[-1] == TICKS
    if positions not in (0, count, count - 1 if ticks else count + 1):  # the ticks may be new, or gone
        raise IncompatibleStateError(
            f"the snapshot has positions of {positions} source(s) and does not say what they read; the job has "
            f"{count}. Read as many as before: a stream that feeds two branches counts twice.",
            stored=positions,
        )
    return SourcePlan(tuple(SourceMatch(n, i if i < positions else None) for i, n in enumerate(wanted)))


def _same(name: str) -> str:
    return name


def _mark(name: str) -> str:
    """The part of a name that tells a source from others of the same place or kind."""
    braces = re.search(r"\{([^{}]*)\}$", name)
    return braces[1] if braces else ""


def _place(name: str) -> str:
    """What is read, without the options. `file:/in/` and `/in` are one place."""
    kind, bracket, path = re.sub(r"\{[^{}]*\}$", "", name).partition("[")
    if kind == FILES:
        path = re.sub(r"^file:/+", "/", path.removesuffix("]")).rstrip("/")
    return kind + bracket + path


def _kind(name: str) -> str:
    return re.split(r"[\[{]", name, maxsplit=1)[0]
