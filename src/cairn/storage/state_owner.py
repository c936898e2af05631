"""Which place a state file was written for: the file says so itself, and readers compare it with where they found it.

A checksum proves that a file is as it was written, not that it is the right one: two files that changed places, or one
that came from another job, match their own checksums. The record stands right before the footer of the file::

    owner                           MessagePack map, `StateOwner`
    length of owner     (4 bytes)
    xxh3-64 of owner and footer (8 bytes)
    "CAIRNOW1"

It is no part of what the handle's checksum covers, so two attempts that made the same changes have the same checksum,
and readers that do not know the record pass over it. Files without one, which earlier versions wrote, are accepted.
"""

from __future__ import annotations

import msgspec
import xxhash

from cairn.errors import CorruptFileError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import StateHandle
from cairn.storage import layout

_MAGIC = b"CAIRNOW1"
_TAIL = 4 + 8 + len(_MAGIC)
MAX_BYTES = 16 * 1024
"""No record is longer: names have at most 128 characters."""


class StateOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place that a state file was written for, and who wrote it."""

    job_id: str
    incarnation: str
    uid: str
    epoch: int
    first_group: int
    last_group: int
    run: int
    attempt: str
    """The task attempt of a delta; a random token for files that compactions and restores write."""
    path: str
    """Relative to the job's directory; of bytes that are kept in a manifest, the file that they did not need."""
    snapshot: bool = False

    def __str__(self) -> str:
        return (
            f"{_contents(self)} of operator {self.uid!r:.130}, written by run {self.run}, attempt {self.attempt!r:.40}"
        )


_decode = msgspec.msgpack.Decoder(StateOwner).decode


class Writer(msgspec.Struct, frozen=True):
    """The job, operator and run that write state files."""

    job_id: str
    incarnation: str
    uid: str
    run: int

    def owner(self, path: str, epoch: int, groups: KeyGroupRange, snapshot: bool = False) -> StateOwner:
        return StateOwner(
            job_id=self.job_id,
            incarnation=self.incarnation,
            uid=self.uid,
            epoch=epoch,
            first_group=groups.start,
            last_group=groups.end,
            run=self.run,
            attempt=layout.token_of(path),
            path=path,
            snapshot=snapshot,
        )


class Place(msgspec.Struct, frozen=True):
    """Where a reader finds a state file: what a handle in a manifest of a job says."""

    root: str
    incarnation: str
    """Empty if it is not known of which job the handle is."""
    uid: str
    handle: StateHandle

    def holds(self, owner: StateOwner) -> bool:
        """Whether these are the key groups of the epoch that belong here, whoever wrote them."""
        handle = self.handle
        return (handle.epoch, handle.first_group, handle.last_group, handle.snapshot) == (
            owner.epoch, owner.first_group, owner.last_group, owner.snapshot
        )  # fmt: skip

    def fits(self, owner: StateOwner) -> bool:
        return (
            self.incarnation in ("", owner.incarnation)
            and self.handle.path in ("", owner.path)
            and self.uid == owner.uid
            and self.holds(owner)
        )

    def check(self, owner: StateOwner | None, name: str, copied: bool = False) -> None:
        """Raise the error that says what lies here, what should, and where the former belongs.

        A file whose size and checksum are right may be a copy that an earlier version made, with the record of the
        original.
        """
        if owner is None or (self.holds(owner) if copied else self.fits(owner)):
            return
        own = owner.path if self.handle.path else layout.epoch_path(owner.epoch)
        if self.incarnation in ("", owner.incarnation):
            belongs = f"It belongs to this job, as {self.root}/{own!s:.300}"
        else:
            belongs = (
                f"It belongs to another job, {owner.job_id!r:.130} (incarnation {owner.incarnation!r:.40}; this job: "
                f"{self.incarnation}), as {own!r:.300} in the directory of that job"
            )
        raise CorruptFileError(
            f"state file {name} is in the wrong place: it holds {owner}, and {_contents(self.handle)} of operator "
            f"'{self.uid}' belong here. {belongs}. Put each file back in its own place",
            path=name,
            belongs=own,
        )


def _contents(of: StateOwner | StateHandle) -> str:
    what = f"all state up to epoch {of.epoch}" if of.snapshot else f"the changes of epoch {of.epoch}"
    return f"{what} in key groups {of.first_group} to {of.last_group}"


def seal(owner: StateOwner, footer: bytes) -> bytes:
    """The record, as it stands before the footer."""
    record = msgspec.msgpack.encode(owner)
    digest = xxhash.xxh3_64_digest(record + footer)
    return record + len(record).to_bytes(4, "little") + digest + _MAGIC


def length(before: bytes) -> int:
    """How many bytes the record at the end of these takes, which stand before a footer; 0 if there is none."""
    if not before.endswith(_MAGIC) or len(before) < _TAIL:
        return 0
    return int.from_bytes(before[-_TAIL : -_TAIL + 4], "little") + _TAIL


def unseal(before: bytes, footer: bytes) -> StateOwner | None:
    """The record at the end of these bytes; None if there is none. Raises ValueError if it is damaged."""
    size = length(before)
    if size == 0:
        return None
    if size > len(before):
        raise ValueError("the record of its owner has an impossible length")
    record = before[len(before) - size : len(before) - _TAIL]
    if xxhash.xxh3_64_digest(record + footer) != before[-_TAIL + 4 : -len(_MAGIC)]:
        raise ValueError("the record of its owner does not match its checksum")
    try:
        return _decode(record)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the record of its owner cannot be read ({error})") from error
