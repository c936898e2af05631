"""Where everything lies below a job's directory. The only place where a path is put together.

::

    job.json                      identity of the job
    runs/<n>                      one file per run; the newest one owns the job
    bases/<n>                     what of the history a run continues from
    epochs/<epoch>                manifests
    shared/<uid>/<name>.state     deltas and snapshots
    chk-<n>/_metadata             a completed checkpoint
    chk-<n>/<uid>-<name>.state    snapshots of a full checkpoint
    discards/<run>                checkpoints that a run discarded when it ended
    chk-<n>/_reading-<token>      somebody is reading it
    history/<n>                   statistics of a checkpoint
    control/<name>                requests to the running job, and answers
    claims/<epoch>                a savepoint that the job owns since it was restored as that epoch
    taken/<digest>                a savepoint that the job has taken, by the SHA-256 of its metadata
    stopping/<request>            the job is being stopped with a savepoint
    times/<epoch>-<batch time>    the processing time of an epoch that has another one than its batch
    events/<n>, stats/<n>         what happened to the job, and statistics of its epochs
    web/<run>                     where the server of a run listens
    tables/<name>/                data of `TableSink`
    staging/<uid>/<attempt>/      rows that a sink keeps until their epoch is published
    spark/, spark-<epoch>-<run>/  the query's own checkpointLocation, at first and since a restore
    spark-<epoch>-<run>/cairn-restores  the restores in place up to that one, should its manifest be lost
    damaged                       a task found a damaged file: the next start reads every byte

Of a savepoint, which lies anywhere::

    _metadata                               what it consists of
    _claimed                                the job that it was handed to
    tables/<uid>/<state>/<part>.parquet     the rows of a state
    sources/<n>/...                         logs of Spark's sources
"""

from __future__ import annotations

import hashlib
import re

from cairn.errors import InvalidInputError
from cairn.model.state_names import EVENT_TIMERS, PROCESSING_TIMERS

JOB = "job.json"
RUNS = "runs"
BASES = "bases"
EPOCHS = "epochs"
SHARED = "shared"
SPARK = "spark"
RESTORES = "cairn-restores"
DAMAGED = "damaged"
TABLES = "tables"
STAGING = "staging"
OUTPUT_STAGING = "_cairn"
"""Where file sinks keep what is not published yet, in their own folder."""
HISTORY = "history"
CONTROL = "control"
DISCARDS = "discards"
METADATA = "_metadata"
READING = "_reading-"
CLAIMED = "_claimed"
SOURCES = "sources"
OFFSETS = "offsets"
COMMITS = "commits"
QUERY_ID = "metadata"
"""Logs of Spark's own, and the file that names its query, in the folder of a query."""
CLAIMS = "claims"
TAKEN = "taken"
ANSWERED = ".done"
TAKEN_UP = ".taken"
"""What the answers of a job to a request end in."""
STOPPING = "stopping"
TIMES = "times"
EVENTS = "events"
STATS = "stats"
WEB = "web"

_DIGITS = 20
_SPARK = re.compile(rf"{SPARK}(-\d+){{0,2}}")
_CHECKPOINT = re.compile(r"chk-([1-9]\d{0,17})")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_STATE_FILE = re.compile(r"\.?(\d{12})-(\d+)-[\w-]+(\.snapshot)?\.state(?:\.[0-9a-f]+\.tmp)?")
_FULL_SNAPSHOT = re.compile(r"\.?.+-g\d+-(\d+)-[0-9a-f]+\.state(?:\.[0-9a-f]+\.tmp)?")
SAFE_NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}"
"""The names that uids, job ids and ids of requests may have, as a regular expression."""
_SAFE = re.compile(SAFE_NAME)
_STATE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ .\-]{0,127}")
_STATE_PATH = re.compile(rf"({SHARED}/{_SAFE.pattern}|chk-[1-9]\d{{0,17}})/[A-Za-z0-9][A-Za-z0-9_.\-]{{0,254}}\.state")
TIMER_TABLES = {EVENT_TIMERS: "_timers_event", PROCESSING_TIMERS: "_timers_processing"}
"""What the tables of timers are called in savepoints."""
_PROGRESS = re.compile(r"\.savepoint-[A-Za-z0-9_\-]{1,64}\.inprogress")
_SOURCE_FILE = re.compile(r"sources/\d{1,9}(/[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}){1,8}")


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


def checked_request(request: str) -> str:
    """The id of a request, which names a file in `control/`; beside it lie files that end as answers do."""
    checked(request, "request id")
    if request.endswith((ANSWERED, TAKEN_UP)):
        raise InvalidInputError(
            f"request id {request!r} cannot be used: names that end in {ANSWERED} or {TAKEN_UP} are those of the "
            "answers to requests. Take an id with another ending.",
            name=request,
        )
    return request


def run_path(run: int) -> str:
    return f"{RUNS}/{run:0{_DIGITS}d}"


def numbered(folder: str, number: int) -> str:
    """A file of a folder whose files are numbered."""
    return f"{folder}/{number:0{_DIGITS}d}"


def web_path(run: int) -> str:
    return numbered(WEB, run)


def base_path(run: int) -> str:
    return numbered(BASES, run)


def epoch_path(epoch: int) -> str:
    return f"{EPOCHS}/{epoch:0{_DIGITS}d}"


def restored_spark(epoch: int, run: int) -> str:
    """The checkpointLocation that a restore makes for Spark's query. Two runs may restore as the same epoch, of which
    one is overtaken: each has a folder of its own."""
    return f"{SPARK}-{epoch}-{run}"


def is_spark(name: str) -> bool:
    """Whether a folder of a job's directory is, or was, Spark's checkpointLocation."""
    return _SPARK.fullmatch(name) is not None


def spark_epoch(name: str) -> int:
    """The epoch of the restore that made one of Spark's folders; -1 for the first one."""
    number = name.removeprefix(f"{SPARK}-").partition("-")[0]
    return int(number) if number.isdigit() else -1


def checkpoint_folder(number: int) -> str:
    return f"chk-{number}"


def checkpoint_number(name: str) -> int | None:
    """The number of a checkpoint's folder, or None for any other name."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def metadata_path(number: int) -> str:
    return f"{checkpoint_folder(number)}/{METADATA}"


def reader_path(number: int, token: str) -> str:
    """Says that somebody reads the checkpoint: it must not go meanwhile."""
    return f"{checkpoint_folder(number)}/{READING}{token}"


def full_snapshot_path(number: int, uid: str, first_group: int, run: int, token: str) -> str:
    return f"{checkpoint_folder(number)}/{uid}-g{first_group}-{run}-{token}.state"


def run_of_full_snapshot(path: str) -> int | None:
    """The run that wrote a file of a full checkpoint, finished or not; None if the name does not say."""
    match = _FULL_SNAPSHOT.fullmatch(path.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


def discards_path(run: int) -> str:
    return numbered(DISCARDS, run)


def history_path(number: int) -> str:
    return f"{HISTORY}/{number:0{_DIGITS}d}"


def claim_path(epoch: int) -> str:
    return f"{CLAIMS}/{epoch:0{_DIGITS}d}"


def taken_path(digest: str) -> str:
    return f"{TAKEN}/{digest}"


def stopping_path(request: str) -> str:
    return f"{STOPPING}/{checked(request, 'request id')}"


def time_path(epoch: int, batch_ms: int) -> str:
    return f"{TIMES}/{epoch:0{_DIGITS}d}-{batch_ms}"


def staging_folder(uid: str, attempt: str) -> str:
    """Where a sink keeps the rows of one attempt at an epoch until they are published. The attempt begins with it."""
    return f"{STAGING}/{uid}/{attempt}"


def number_of(path: str) -> int | None:
    """The run or epoch number in a path, or None if the name is not one of ours."""
    name = path.rsplit("/", 1)[-1]
    return int(name) if len(name) == _DIGITS and name.isdigit() else None


def delta_path(uid: str, epoch: int, run: int, attempt: int) -> str:
    """Unique to one task attempt: no other attempt, run or epoch ever writes this name."""
    return f"{SHARED}/{uid}/{epoch:012d}-{run}-{attempt}.state"


def snapshot_path(uid: str, epoch: int, run: int, first_group: int, token: str) -> str:
    return f"{SHARED}/{uid}/{epoch:012d}-{run}-g{first_group}-{token}.snapshot.state"


def restored_delta_path(uid: str, epoch: int, run: int, first_group: int, token: str) -> str:
    """A delta that a restore brought in from elsewhere."""
    return f"{SHARED}/{uid}/{epoch:012d}-{run}-r{first_group}-{token}.state"


def savepoint_name(job_id: str, token: str) -> str:
    return f"savepoint-{checked(job_id, 'job id')}-{token}"


def savepoint_progress(token: str) -> str:
    """The folder of a savepoint while it is written: hidden, and no savepoint to any reader."""
    return f".savepoint-{token}.inprogress"


def is_attempt(name: str, token: str) -> bool:
    """Whether a folder is that of an attempt at the savepoint of a token. Old releases had one folder for all."""
    named = name == savepoint_progress(token) or name.startswith(f".savepoint-{token}-")
    return named and is_savepoint_progress(name)


def is_savepoint_progress(name: str) -> bool:
    return _PROGRESS.fullmatch(name) is not None


def table_folder(uid: str, state: str) -> str:
    """The folder of a state's table in a savepoint."""
    if state not in TIMER_TABLES and not _STATE.fullmatch(state):
        raise InvalidInputError(f"state name {state!r} cannot be part of a path", name=state)
    return f"{TABLES}/{checked(uid, 'uid')}/{TIMER_TABLES.get(state, state)}"


def table_part(uid: str, state: str, first_group: int, token: str) -> str:
    return f"{table_folder(uid, state)}/g{first_group:05d}-{token}.parquet"


def is_table_part(path: str, uid: str, state: str) -> bool:
    """Whether a path that a savepoint names is that of a file of this state's table, and nothing else."""
    folder, _, name = path.rpartition("/")
    return folder == table_folder(uid, state) and name.endswith(".parquet") and _SAFE.fullmatch(name) is not None


def is_source_file(path: str) -> bool:
    """Whether a path that a savepoint names is that of a source's log."""
    return _SOURCE_FILE.fullmatch(path) is not None and not path.endswith("..")


def is_state_path(path: str) -> bool:
    """Whether a path that a checkpoint names is that of a state file, and nothing else."""
    return _STATE_PATH.fullmatch(path) is not None


def made_by(path: str) -> tuple[int, int, bool] | None:
    """Epoch and run of a state file (finished or not), and whether it is a snapshot; None for any other name."""
    match = _STATE_FILE.fullmatch(path.rsplit("/", 1)[-1])
    return None if match is None else (int(match[1]), int(match[2]), match[3] is not None)


def token_of(path: str) -> str:
    """What makes the name of a state file unique: the task attempt of a delta, a random token elsewhere."""
    return path.rsplit("/", 1)[-1].split(".", 1)[0].rsplit("-", 1)[-1]


def is_temporary(path: str) -> bool:
    """Whether a file is one that was being written when its writer died, or still is."""
    return _TEMPORARY.fullmatch(path.rsplit("/", 1)[-1]) is not None


def store_folder(job_dir: str, incarnation: str) -> str:
    """Name of the folder with a job's working stores below the host's local directory."""
    return hashlib.blake2b(f"{job_dir}\0{incarnation}".encode(), digest_size=8).hexdigest()
