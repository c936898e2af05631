"""One range of key groups that a restore moves into a job: the part of the request that all its tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cairn.model.manifest import StateSpec
from cairn.state.type_conversion import Conversion


@dataclass(frozen=True, kw_only=True)
class MovedRange:
    """One range of key groups of one operator, and the job that it is moved into. States go by their stored names."""

    operator: bytes
    """The encoded record of the operator as the snapshot has it."""
    max_parallelism: int
    first_group: int
    last_group: int
    job_dir: str
    uid: str
    """The operator's uid in the job."""
    epoch: int
    run: int
    now_ms: int
    """The access time of values that had none, if the job's state has TTL. If it no longer has TTL: the time at which
    expired values are left out."""
    time_reset_ms: int = 0
    """`Snapshot.time_reset_ms` of the snapshot."""
    states: Mapping[str, StateSpec] = field(default_factory=dict)
    """The declarations of the job. A state that is not named here is left behind."""
    converters: Mapping[str, Conversion] = field(default_factory=dict)
    """The states whose values change their type."""
