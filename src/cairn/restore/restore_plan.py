"""What a restore would do: which operators and states match, what changes, and what prevents it.

Nothing is started and nothing is changed here. `cairn plan` prints the plan, a restore refuses what `check` refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cairn.config import Settings
from cairn.errors import IncompatibleStateError, InvalidInputError
from cairn.model.ddl import parse_keys, parse_type, same_keys
from cairn.model.evolution import StateChange, StateDeclaration, both_schemas, compare
from cairn.model.keygroups import default_max_parallelism
from cairn.model.manifest import StateSpec
from cairn.model.state_names import choices, meant, spelled
from cairn.restore.source_logs import positions_of
from cairn.restore.source_matching import SourcePlan, match_sources
from cairn.runtime.declared_states import Declared
from cairn.snapshots.snapshot import Snapshot, SnapshotOperator
from cairn.state.type_conversion import Conversion
from cairn.state.typed_columns import is_pickled


@dataclass(frozen=True, slots=True)
class JobShape:
    """The job as far as its state is concerned."""

    operators: Mapping[str, str]
    """The key (DDL of its columns) of every operator, by uid."""
    declared: Mapping[str, Declared]
    parallelism: int
    max_parallelism: int
    """0 if the job does not set it: then that of the snapshot is taken."""
    sources: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One stored state: what it becomes, and how."""

    stored: StateSpec
    becomes: StateSpec
    how: str
    """`same`, `changed`, `carried` (the code does not declare it), `unknown` (its declarations are not known)."""
    steps: tuple[str, ...] = ()
    defaults: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def rewrite(self) -> bool:
        """Whether the stored bytes cannot be used as they are."""
        return self.stored.signature != self.becomes.signature or self.stored.name != self.becomes.name

    @property
    def conversion(self) -> Conversion | None:
        if self.stored.value_type == self.becomes.value_type:
            return None
        return Conversion(self.stored.value_type, self.becomes.value_type, self.defaults)


@dataclass(frozen=True, slots=True)
class OperatorRestore:
    """One operator of the job that has stored state."""

    uid: str
    stored: SnapshotOperator
    states: tuple[StatePlan, ...]
    new_states: tuple[str, ...]
    failure: str = ""
    """Why the declarations of the code are not known."""

    @property
    def rewrite(self) -> bool:
        return any(state.rewrite for state in self.states)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Everything that a restore would do."""

    snapshot: Snapshot
    parallelism: int
    max_parallelism: int
    operators: tuple[OperatorRestore, ...]
    new: tuple[str, ...]
    unclaimed: tuple[str, ...]
    sources: SourcePlan
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def operator(self, uid: str) -> OperatorRestore | None:
        return next((operator for operator in self.operators if operator.uid == uid), None)

    def check(self) -> None:
        """Raise if the restore is refused, with everything that prevents it."""
        if not self.problems:
            return
        raise IncompatibleStateError(
            f"the job cannot start from {self.snapshot.path}: " + "\n".join(self.problems) + "\nNothing was changed.",
            problems=list(self.problems),
            path=self.snapshot.path,
        )

    def document(self) -> dict[str, Any]:
        """The plan as plain data."""
        rescaled = {old.stored.parallelism for old in self.operators} - {self.parallelism}
        return {
            "snapshot": self.snapshot.path,
            "kind": self.snapshot.kind,
            "epoch": self.snapshot.epoch,
            "possible": not self.problems,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "parallelism": {"stored": sorted(rescaled) or [self.parallelism], "job": self.parallelism},
            "max_parallelism": self.max_parallelism,
            "matched": [_operator_document(operator) for operator in self.operators],
            "new": list(self.new),
            "missing": list(self.unclaimed),
            "sources": [
                {"number": number, "name": match.name, "from": match.stored}
                for number, match in enumerate(self.sources.matches)
            ],
            "sources_left": list(self.sources.left),
        }


def _operator_document(operator: OperatorRestore) -> dict[str, Any]:
    return {
        "uid": operator.uid,
        "stored_uid": operator.stored.uid,
        "name": operator.stored.name,
        "rows": operator.stored.rows,
        "unknown": operator.failure,
        "states": [
            {
                "name": state.becomes.name,
                "stored": state.stored.signature,
                "becomes": state.becomes.signature,
                "how": state.how,
                "changes": list(state.steps),
            }
            for state in operator.states
        ],
        "new_states": list(operator.new_states),
    }


def make_plan(snapshot: Snapshot, job: JobShape, settings: Settings, own: bool = False) -> RestorePlan:
    """Compare a snapshot with a job. `own` says that this very job made the snapshot."""
    problems: list[str] = []
    notes: list[str] = []
    uids, states = _renames(snapshot, settings.renames, job, problems)
    groups = _groups(snapshot, job, problems)
    operators = []
    unclaimed = []
    for stored in snapshot.operators.values():
        uid = uids.get(stored.uid, stored.uid)
        key = job.operators.get(uid)
        if key is None:
            if not stored.empty:
                unclaimed.append(stored.uid)
            continue
        if not same_keys(key, stored.key_type):
            problems.append(_other_key(uid, stored.key_type, key))
        operators.append(_operator(uid, stored, job.declared.get(uid), states, problems))
    if not own:
        _refuse_pickles(snapshot, operators, settings, problems)
    _judge_unclaimed(snapshot, unclaimed, job, settings, problems, notes)
    matched = {operator.uid for operator in operators}
    new = tuple(uid for uid in job.operators if uid not in matched)
    positions = len(positions_of(snapshot.offsets)) if snapshot.offsets else 0
    names = list(snapshot.source_names)
    sources = match_sources(names if snapshot.offsets else [], positions, job.sources, settings.ignore_unclaimed)
    problems += sources.problems
    notes += sources.notes
    if snapshot.metadata.drained:
        notes.append("the savepoint was taken after a drain: its event-time timers have all fired")
    notes += [
        f"operator '{op.uid}': its states are unknown until it runs: {op.failure}" for op in operators if op.failure
    ]
    return RestorePlan(
        snapshot,
        job.parallelism,
        groups,
        tuple(operators),
        new,
        tuple(unclaimed),
        sources,
        tuple(problems),
        tuple(notes),
    )


def _other_key(uid: str, stored: str, key: str) -> str:
    mismatch = (
        f"operator '{uid}': its stored state is keyed by ({stored or 'nothing'}), the job keys by "
        f"({key or 'nothing'}). "
    )
    try:
        before, now = parse_keys(stored), parse_keys(key)
    except InvalidInputError:
        return mismatch + "Key it as before, or give the operator a new uid."
    if [dtype.ddl for _, dtype in before] == [dtype.ddl for _, dtype in now]:
        renames = [(old, new) for (old, _), (new, _) in zip(before, now, strict=True) if old != new]
        calls = "".join(f".withColumnRenamed('{new}', '{old}')" for old, new in renames)
        return mismatch + (
            "The types are the same, but the columns have other names: rename them before key_by to the stored names, "
            f"such as df{calls}, or give the operator a new uid."
        )
    return mismatch + "The type of a key never changes: key it as before, or give the operator a new uid."


def _groups(snapshot: Snapshot, job: JobShape, problems: list[str]) -> int:
    stored = snapshot.max_parallelism
    if job.max_parallelism not in (0, stored):
        problems.append(
            f"Max parallelism mismatch: the {snapshot.kind} has {stored} key groups, this job requests "
            f"{job.max_parallelism}. Call set_max_parallelism({stored}), or do not set it."
        )
    if job.parallelism > stored:
        problems.append(
            f"parallelism {job.parallelism} is above the {stored} key groups of the {snapshot.kind}: use {stored} or "
            "less"
        )
    return job.max_parallelism or stored or default_max_parallelism(job.parallelism)


def _operator(
    uid: str,
    stored: SnapshotOperator,
    declared: Declared | None,
    renames: Mapping[tuple[str, str], str],
    problems: list[str],
) -> OperatorRestore:
    plans = []
    failure = declared.failure if declared is not None else "its declarations were not read"
    taken: dict[str, str] = {}
    for spec in stored.specs:
        name = renames.get((stored.uid, spec.name), spec.name)
        if name in taken:
            problems.append(f"operator '{uid}': both '{taken[name]}' and '{spec.name}' would become state '{name}'")
            continue
        taken[name] = spec.name
        wanted = declared.state(name) if declared is not None and not failure else None
        plans.append(_state(uid, spec, name, wanted, failure, problems))
    known = {plan.becomes.name for plan in plans}
    fresh = [] if declared is None else [d.spec.name for d in declared.states if d.spec.name not in known]
    return OperatorRestore(uid, stored, tuple(plans), tuple(fresh), failure)


def _state(
    uid: str, spec: StateSpec, name: str, wanted: StateDeclaration | None, failure: str, problems: list[str]
) -> StatePlan:
    renamed = StateSpec(name, spec.kind, spec.value_type, spec.key_type, spec.ttl_ms, spec.cleanup_at_snapshot)
    if wanted is None:
        steps = (f"renamed from '{spec.name}'",) if name != spec.name else ()
        how = "same" if spec.kind == "timer" else "unknown" if failure else "carried"
        return StatePlan(spec, renamed, how, steps)
    change = compare(spec, wanted.spec)
    if not change.allowed:
        problems.append(_refusal(uid, change))
        return StatePlan(spec, renamed, "refused", change.steps)
    return StatePlan(spec, wanted.spec, "same" if not change.steps else "changed", change.steps, wanted.defaults)


def _refusal(uid: str, change: StateChange) -> str:
    way_out = "  Declare it as it was, or give the new state another name."
    if not change.old.of_subtask:
        way_out = (
            "  Declare it as it was, give the new state another name, or convert it: read it with "
            "Savepoint.read_keyed_state, change it with Spark and write it with Savepoint.with_keyed_state."
        )
    return (
        f"operator '{uid}', state '{change.new.name}': {'; '.join(change.problems)}.\n"
        f"{both_schemas(change.old, change.new)}\n{way_out}"
    )


def _refuse_pickles(
    snapshot: Snapshot, operators: Sequence[OperatorRestore], settings: Settings, problems: list[str]
) -> None:
    """Refuse pickles of other jobs unless the user names them: opening a pickle runs what it says.

    This holds also for states that the code does not declare, since later code of the job may.
    """
    held = {(op.uid, state.becomes.name): _holds_pickles(state.stored) for op in operators for state in op.states}
    allowed = set()
    for name in settings.allow_pickled:
        pairs = meant(name, held)
        if len(pairs) > 1:
            problems.append(f"cairn.restore.allow-pickled: {choices(name, pairs)}")
        else:
            allowed.update(pairs)
    for pair, pickled in held.items():
        if pickled and pair not in allowed:
            name = spelled(pair, held)
            problems.append(
                f"state '{name}' is pickled, and this job did not make the {snapshot.kind} as it is: unpickling it "
                f"can run arbitrary code. If you trust it, set cairn.restore.allow-pickled={name}."
            )


def _holds_pickles(spec: StateSpec) -> bool:
    types = [spec.value_type, spec.key_type] if spec.kind != "timer" else []
    return any(is_pickled(parse_type(ddl)) for ddl in types if ddl)


def _judge_unclaimed(
    snapshot: Snapshot,
    unclaimed: Sequence[str],
    job: JobShape,
    settings: Settings,
    problems: list[str],
    notes: list[str],
) -> None:
    if not unclaimed:
        return
    names = ", ".join(f"'{uid}'" for uid in unclaimed)
    if settings.ignore_unclaimed:
        notes.append(f"the state of {names} is dropped, as execution.state-recovery.ignore-unclaimed-state allows")
        return
    problems.append(
        f"the {snapshot.kind} (epoch {snapshot.epoch}) holds state of {names}, which the job no longer has (it has "
        f"{', '.join(sorted(job.operators)) or 'no operators'}). Give the operator its uid back, name its new uid in "
        "cairn.restore.renames, or set execution.state-recovery.ignore-unclaimed-state=true "
        "(--allow-non-restored-state) to drop that state."
    )


def _renames(
    snapshot: Snapshot, renames: Mapping[str, str], job: JobShape, problems: list[str]
) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """The mapping of renamed uids, and that of renamed states, by the uid and name that the snapshot has."""
    stored = snapshot.operators
    uids = {old: new for old, new in renames.items() if old in stored}
    for old, new in uids.items():
        if new not in job.operators:
            problems.append(f"cairn.restore.renames: '{old}' is renamed to '{new}', which the job does not have")
        if new in stored and new not in uids:
            problems.append(f"cairn.restore.renames: '{old}' is renamed to '{new}', which the snapshot also has")
    owners = {
        (prefix, spec.name): operator.uid
        for operator in stored.values()
        for prefix in (operator.uid, uids.get(operator.uid, operator.uid))
        for spec in operator.specs
    }
    states: dict[tuple[str, str], str] = {}
    for old, new in renames.items():
        if old in uids:
            continue
        try:
            owner, state = _renamed_state(snapshot, old, owners)
            states[owner, state] = _new_name(old, new, owner, uids)
        except InvalidInputError as error:
            problems.append(f"cairn.restore.renames: {error.message}")
    return uids, states


def _renamed_state(snapshot: Snapshot, old: str, owners: Mapping[tuple[str, str], str]) -> tuple[str, str]:
    """The stored uid and name of the state that a rename is about."""
    pairs = meant(old, owners)
    if len({(owners[pair], pair[1]) for pair in pairs}) > 1:
        raise InvalidInputError(choices(old, pairs))
    if not pairs:
        raise InvalidInputError(f"the {snapshot.kind} has no operator or state '{old}'")
    return owners[pairs[0]], pairs[0][1]


def _new_name(old: str, new: str, owner: str, uids: Mapping[str, str]) -> str:
    """The name that a state of an operator gets, which may be spelled with the old or the new uid."""
    prefixes = list(dict.fromkeys((owner, uids.get(owner, owner))))
    names = {new[len(p) + 1 :]: p for p in prefixes if new.startswith((f"{p}.", f"{p}/")) and len(new) > len(p) + 1}
    if len(names) > 1:
        raise InvalidInputError(choices(new, [(prefix, name) for name, prefix in names.items()]))
    if not names:
        raise InvalidInputError(
            f"'{old}' can only become another state of the same operator, such as '{prefixes[-1]}.<name>', not '{new}'"
        )
    return next(iter(names))
