"""The coordinator's thread, and requests to a running job as files: who can write its directory can ask, with no port.

A request is `control/<id>` with a JSON document; the job removes it and answers with `control/<id>.done`.
Requests that were there before the run started are answered too, except that a stop or cancel which nobody can be
waiting for any more is refused; answers are removed by whoever asked, or after a day. The id is the asker's: asking
again with the same one never makes a second savepoint. An answer says what it was asked, so that it is never taken for
another's.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.errors import CairnError, CheckpointFailedError, FencedError, InvalidInputError, NotFoundError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.storage import layout
from cairn.storage.filesystem import FileInfo, FileSystem
from cairn.storage.manifest_store import Runs

_log = get_logger("cairn.checkpoint")
PATIENCE = 30.0
"""Seconds after which a job that has not even taken a request up is held to be down."""
_KEPT_SECONDS = 86_400.0
_LATE = 2.0
"""Of `PATIENCE`: a request to end the job that is found so old was left by somebody who has gone."""
_ENDINGS = ("stop", "cancel")
LOOK_SECONDS = 1.0
"""How often a run looks whether a newer one has taken its job."""

Action = Callable[[Mapping[str, Any]], Callable[[], CheckpointInfo | None]]
"""Begins what a request asks for, and returns what waits for its end; `ValueError` for a request that is none."""


class Control:
    """The job's side: looks for requests, answers them.

    Threads: `serve` belongs to the coordinator's thread. Every request that takes time is waited for and answered by a
    thread of its own; the one that ends the job calls `finish`. Which requests are in progress, and who waits for
    them, is guarded by the lock, which is not held during a call to the storage.
    """

    def __init__(
        self,
        files: FileSystem,
        coordinator: CheckpointCoordinator,
        actions: Mapping[str, Action] | None = None,
    ) -> None:
        self._files = files
        self._coordinator = coordinator
        self._actions = {"checkpoint": self._checkpoint, **(actions or {})}
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        """The requests in progress, by path."""
        self._waiting: list[threading.Thread] = []
        self._first = True

    def finish(self, timeout: float) -> None:
        """Wait for the threads that answer requests; called when the job is over and the process may exit."""
        with self._lock:
            waiting = list(self._waiting)
        for thread in waiting:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def serve(self) -> None:
        """Take up new requests. Called again and again by the coordinator's thread; never waits."""
        present = self._files.list(layout.CONTROL)
        if self._first:
            paths = {info.path for info in present}
            present = [info for info in present if not self._overtaken(info.path, paths)]
            self._first = False
        for info in present:
            if info.path.endswith(layout.ANSWERED):
                if info.modified < time.time() - _KEPT_SECONDS:
                    self._files.delete(info.path)
            elif not info.path.endswith(layout.TAKEN_UP) and self._is_new(info.path):
                self._take(info)

    def _is_new(self, path: str) -> bool:
        """Whether a request is not in progress yet. It is from now on."""
        with self._lock:
            known = path in self._taken
            self._taken.add(path)
        return not known

    def _forget(self, path: str) -> None:
        with self._lock:
            self._taken.discard(path)

    def _overtaken(self, path: str, present: set[str]) -> bool:
        """Whether a file tells what the start of this run made untrue; it is removed then.

        That is: an answer that the job has ended, and a sign that a request was heard which is not there any more.
        """
        if path.endswith(layout.TAKEN_UP) and path.removesuffix(layout.TAKEN_UP) not in present:
            self._files.delete(path)
            return True
        if not path.endswith(layout.ANSWERED):
            return False
        try:
            answer = msgspec.json.decode(self._files.read(path), type=dict[str, Any])
        except (NotFoundError, msgspec.MsgspecError):
            return False
        asked = answer.get("asked")
        if not isinstance(asked, dict) or asked.get("action") not in _ENDINGS or "error" in answer:
            return False
        self._files.delete(path)
        return True

    def _take(self, info: FileInfo) -> None:
        path = info.path
        try:
            raw = self._files.read(path)
        except NotFoundError:  # taken back, or answered since the look
            self._forget(path)
            return
        except CairnError as error:
            self._answer(path, {}, {"error": error.message})
            return
        asked: dict[str, Any] = {}
        try:
            asked = msgspec.json.decode(raw, type=dict[str, Any])
            if asked.get("action") == "progress":
                self._answer(path, asked, {"checkpoints": msgspec.to_builtins(self._coordinator.infos())})
                return
            action = self._actions.get(asked.get("action", ""))
            if action is None:
                raise ValueError(f"unknown request {asked}")
            _refuse_late(asked, info)
            wait_for_end = action({**asked, "id": path.rsplit("/", 1)[-1]})
        except CairnError as error:
            self._answer(path, asked, {"error": error.message})
            return
        except (ValueError, msgspec.MsgspecError) as error:
            self._answer(path, asked, {"error": f"not a request: {error}"})
            return
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it, and the next request is served
            self._answer(path, asked, {"error": _told(error)})
            return

        with suppress(FileExistsError, CairnError, OSError):
            self._files.create(path + layout.TAKEN_UP, b"")

        def wait() -> None:
            try:
                info = wait_for_end()
                answer = {"done": True} if info is None else {"checkpoint": msgspec.to_builtins(info)}
            except Exception as error:  # noqa: BLE001 - whatever it was, whoever asked must hear of it
                answer = {"error": _told(error)}
            self._answer(path, asked, answer)

        thread = threading.Thread(target=wait, name="cairn-control", daemon=True)
        with self._lock:
            self._waiting = [*(known for known in self._waiting if known.is_alive()), thread]
            thread.start()

    def _checkpoint(self, asked: Mapping[str, Any]) -> Callable[[], CheckpointInfo]:
        if asked.get("full") not in (None, True, False):
            raise ValueError(f"full is true or false, not {asked['full']!r}")
        return self._coordinator.request(asked.get("full")).wait

    def _answer(self, path: str, asked: Mapping[str, Any], answer: dict[str, Any]) -> None:
        """Answer a request. It goes first: if the job dies here, the next run must not be stopped by it again."""
        told = msgspec.json.encode({"asked": _gist(asked), **answer})
        try:
            self._files.delete(path)
            self._files.delete(path + layout.TAKEN_UP)
            self._forget(path)  # once the answer is there, the same id may be asked again
            try:
                self._files.create(path + layout.ANSWERED, told)
            except FileExistsError:  # answered before the job was killed, and asked again
                self._files.delete(path + layout.ANSWERED)
                self._files.create(path + layout.ANSWERED, told)
        except (CairnError, OSError) as error:
            _log.warning("a request could not be answered: %s", error)


def _gist(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What tells two requests with the same id apart."""
    return {"action": asked.get("action"), "drain": bool(asked.get("drain"))}


def _told(error: Exception) -> str:
    if isinstance(error, CairnError):
        return error.message
    if isinstance(error, TimeoutError) and str(error):
        return str(error)
    _log.error("a request to the job failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _refuse_late(asked: Mapping[str, Any], info: FileInfo) -> None:
    """An end that was asked for long ago is no wish of today: who asked has given up, or was killed."""
    age = time.time() - info.modified
    if asked.get("action") in _ENDINGS and age > _LATE * PATIENCE:
        raise CheckpointFailedError(
            f"the request to {asked['action']} is {age:.0f} s old and was not taken up by this run in time, so the job "
            "goes on; ask again if it is to end"
        )


class RunWatch:
    """Looks about once a second whether a newer run has taken the job, and tells it once.

    The epoch loop looks too, but only when an epoch begins, and Spark writes its log before that: an old run at rest
    would wake with the first new rows, and put an entry into the log of the run that has the job now.
    """

    def __init__(
        self,
        runs: Runs,
        run: int,
        overtaken: Callable[[FencedError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._run = run
        self._overtaken = overtaken
        self._clock = clock
        self._next = clock()
        self._ended = False

    def look(self) -> None:
        now = self._clock()
        if self._ended or now < self._next:
            return
        self._next = now + LOOK_SECONDS
        try:
            self._runs.check(self._run)
        except FencedError as error:
            if not self._ended:  # a run that has ended is followed by the next one of the same job
                self._ended = True
                self._overtaken(error)
        except (CairnError, OSError) as error:  # away for a moment: the next look, or the next epoch, tells
            _log.debug("cannot look for a newer run: %s", error)

    def end(self) -> None:
        self._ended = True


class CheckpointThread:
    """Calls the coordinator until it is stopped."""

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        between: Callable[[], None] = lambda: None,
        watch: RunWatch | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._between = between
        self._watch = watch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cairn-checkpoints", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._watch is not None:
                self._watch.look()
            try:
                self._between()
            except Exception:  # noqa: BLE001 - requests are one thing, the coordinator's own work another
                _log.exception("requests could not be looked at")
            try:
                due = self._coordinator.step()
            except Exception:  # noqa: BLE001 - the next round may do better; the stream must not suffer
                _log.exception("the checkpoint coordinator stumbled; it goes on")
                due = 1000.0
            if not self._stop.is_set():
                self._coordinator.wait(due)

    def stop(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.end()
        self._coordinator.close()
        self._thread.join(10)


def ask(files: FileSystem, question: dict[str, Any], timeout: float, request: str = "") -> dict[str, Any] | None:
    """The asking side: the job's answer, or None if it gave none in time. Whoever gives up takes the request back.

    `request` is the id to ask with; an answer that is there already under that id is taken, if it answers the same
    question. `InvalidInputError` if the id stands for another one.
    """
    path = f"{layout.CONTROL}/{layout.checked_request(request) if request else uuid.uuid4().hex}"
    gist = _gist(question)
    waiting = _waiting_request(files, path)
    if waiting is not None and waiting != gist:
        raise _other_question(request, waiting)
    fresh = False
    began = heard = time.monotonic()
    try:
        if not files.exists(path + layout.ANSWERED):
            try:
                files.create(path, msgspec.json.encode(question))
                fresh = True
            except FileExistsError:
                _log.info("request %s is waiting already", request)
        while time.monotonic() - began < timeout:
            answer = _answer_to(files, path)
            if answer is not None:
                asked = answer.pop("asked", gist if fresh else {})  # a job of an older release does not tell
                if asked != gist:
                    raise _other_question(request, asked)
                files.delete(path + layout.ANSWERED)
                return answer
            if files.exists(path + layout.TAKEN_UP):
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE:
                break
            time.sleep(0.05)
        return None
    finally:
        _take_back(files, path)


def _answer_to(files: FileSystem, path: str) -> dict[str, Any] | None:
    """The answer to a request, None while there is none. Another process that asks with the same id may take it."""
    if not files.exists(path + layout.ANSWERED):
        return None
    try:
        return msgspec.json.decode(files.read(path + layout.ANSWERED), type=dict[str, Any])
    except NotFoundError:
        return None


def answered(files: FileSystem, request: str) -> bool:
    """Whether an answer waits for whoever asks with this id."""
    return files.exists(f"{layout.CONTROL}/{layout.checked_request(request)}{layout.ANSWERED}")


def _waiting_request(files: FileSystem, path: str) -> dict[str, Any] | None:
    """What a request that waits under the same id asks for; None if there is none."""
    if not files.exists(path):
        return None
    try:
        return _gist(msgspec.json.decode(files.read(path), type=dict[str, Any]))
    except NotFoundError:
        return None
    except msgspec.MsgspecError:
        return {}


def _take_back(files: FileSystem, path: str) -> None:
    try:
        files.delete(path)
        files.delete(path + layout.TAKEN_UP)
    except (CairnError, OSError) as error:
        _log.warning("request %s could not be taken back, remove it by hand: %s", path, error)


def _other_question(request: str, asked: Mapping[str, Any]) -> InvalidInputError:
    what = str(asked.get("action") or "something else") + (" with drain" if asked.get("drain") else "")
    return InvalidInputError(
        f"request id '{request}' was used to ask for another thing ({what}), whose answer is still to come or to be "
        "read: take another id, or ask for that again with this one to hear of it",
        request=request,
    )
