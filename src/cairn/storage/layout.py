"""Where everything lies below a job's directory. The only place where a path is put together.

::

    job.json                      identity of the job
    runs/<n>                      one file per run; the newest one owns the job
    epochs/<epoch>                manifests
    shared/<uid>/<name>.state     deltas and snapshots
    tables/<name>/                data of `TableSink`
    spark/                        the query's own checkpointLocation
"""

from __future__ import annotations

import hashlib
import re

from cairn.errors import InvalidInputError

JOB = "job.json"
RUNS = "runs"
EPOCHS = "epochs"
SHARED = "shared"
SPARK = "spark"
TABLES = "tables"

_DIGITS = 20
_STATE_FILE = re.compile(r"\.?(\d{12})-(\d+)-[\w-]+(\.snapshot)?\.state(?:\.[0-9a-f]+\.tmp)?")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")


def slug(name: str) -> str:
    """The directory name of a job: its name in lower case with anything unusual replaced by `-`."""
    made = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64]
    if not made:
        raise InvalidInputError(f"job name {name!r} has no letter or digit; give it one, or set pipeline.job-id")
    return made


def checked(name: str, what: str) -> str:
    """A name that becomes part of a path: an allow-list, so that nothing can point outside."""
    if not isinstance(name, str) or not _SAFE.fullmatch(name):  # type: ignore[redundant-expr]
        raise InvalidInputError(
            f"{what} {name!r} cannot be used: take 1 to 128 letters, digits, '_', '-' or '.', "
            "starting with a letter or digit",
            name=name,
        )
    return name


def run_path(run: int) -> str:
    return f"{RUNS}/{run:0{_DIGITS}d}"


def epoch_path(epoch: int) -> str:
    return f"{EPOCHS}/{epoch:0{_DIGITS}d}"


def number_of(path: str) -> int | None:
    """The run or epoch number in a path, or None if the name is not one of ours."""
    name = path.rsplit("/", 1)[-1]
    return int(name) if len(name) == _DIGITS and name.isdigit() else None


def delta_path(uid: str, epoch: int, run: int, attempt: int) -> str:
    """Unique to one task attempt: no other attempt, run or epoch ever writes this name."""
    return f"{SHARED}/{uid}/{epoch:012d}-{run}-{attempt}.state"


def snapshot_path(uid: str, epoch: int, run: int, first_group: int, token: str) -> str:
    return f"{SHARED}/{uid}/{epoch:012d}-{run}-g{first_group}-{token}.snapshot.state"


def made_by(path: str) -> tuple[int, int, bool] | None:
    """Epoch and run of a state file (finished or not), and whether it is a snapshot; None for any other name."""
    match = _STATE_FILE.fullmatch(path.rsplit("/", 1)[-1])
    return None if match is None else (int(match[1]), int(match[2]), match[3] is not None)


def store_folder(job_dir: str, incarnation: str, uid: str) -> str:
    """Name of the working-store folder of an operator below the host's local directory."""
    place = hashlib.blake2b(f"{job_dir}\0{incarnation}".encode(), digest_size=8).hexdigest()
    return f"{place}/{uid}"
