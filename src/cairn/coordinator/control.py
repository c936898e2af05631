"""Requests to a running job as files in its directory.

Whoever can write the directory can send a request, without a port: `control/<id>` with a JSON document. The job removes
it and answers with `control/<id>.done`. It also answers requests that were there before the run started, but refuses a
stop or cancel that is so old that nobody waits for it any more. The sender removes the answer; otherwise it goes after
a day. The sender chooses the id: sending a request again with the same id never makes a second savepoint. An answer
repeats what was requested, so that it is never taken for that of another request.
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
from cairn.errors import CairnError, CheckpointFailedError, InvalidInputError, NotFoundError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.storage import layout
from cairn.storage.filesystem import FileInfo, FileSystem

_log = get_logger("cairn.checkpoint")
PATIENCE = 30.0
"""Seconds after which a job that has not accepted a request is considered down."""
_KEPT_SECONDS = 86_400.0
_LATE = 2.0
"""Times `PATIENCE`: the age at which a request to end the job is refused, since its sender has given up."""
_ENDINGS = ("stop", "cancel")

Action = Callable[[Mapping[str, Any]], Callable[[], CheckpointInfo | None]]
"""Starts what is requested, and returns a function that waits for its end; `ValueError` if the request is invalid."""


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
        """Whether a file is outdated by the start of this run; it is removed then.

        That is an answer which says that the job has ended, and the mark of a request that is gone.
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
        question = answer.get("asked")
        if not isinstance(question, dict) or question.get("action") not in _ENDINGS or "error" in answer:
            return False
        self._files.delete(path)
        return True

    def _take(self, info: FileInfo) -> None:
        path = info.path
        try:
            raw = self._files.read(path)
        except NotFoundError:  # withdrawn, or answered in the meantime
            self._forget(path)
            return
        except CairnError as error:
            self._answer(path, {}, {"error": error.message})
            return
        question: dict[str, Any] = {}
        try:
            question = msgspec.json.decode(raw, type=dict[str, Any])
            if question.get("action") == "progress":
                self._answer(path, question, {"checkpoints": msgspec.to_builtins(self._coordinator.infos())})
                return
            action = self._actions.get(question.get("action", ""))
            if action is None:
                raise ValueError(f"unknown request {question}")
            _refuse_late(question, info)
            wait_for_end = action({**question, "id": path.rsplit("/", 1)[-1]})
        except CairnError as error:
            self._answer(path, question, {"error": error.message})
            return
        except (ValueError, msgspec.MsgspecError) as error:
            self._answer(path, question, {"error": f"not a request: {error}"})
            return
        except Exception as error:  # noqa: BLE001 - the sender gets an answer, and the next request is served
            self._answer(path, question, {"error": _message(error)})
            return

        with suppress(FileExistsError, CairnError, OSError):
            self._files.create(path + layout.TAKEN_UP, b"")

        def wait() -> None:
            try:
                info = wait_for_end()
                answer = {"done": True} if info is None else {"checkpoint": msgspec.to_builtins(info)}
            except Exception as error:  # noqa: BLE001 - whatever it was, the sender gets an answer
                answer = {"error": _message(error)}
            self._answer(path, question, answer)

        thread = threading.Thread(target=wait, name="cairn-control", daemon=True)
        with self._lock:
            self._waiting = [*(known for known in self._waiting if known.is_alive()), thread]
            thread.start()

    def _checkpoint(self, question: Mapping[str, Any]) -> Callable[[], CheckpointInfo]:
        if question.get("full") not in (None, True, False):
            raise ValueError(f"full is true or false, not {question['full']!r}")
        return self._coordinator.request(question.get("full")).wait

    def _answer(self, path: str, question: Mapping[str, Any], answer: dict[str, Any]) -> None:
        """Answer a request. The request is deleted first: if the job dies here, it must not stop the next run."""
        document = msgspec.json.encode({"asked": _gist(question), **answer})
        try:
            self._files.delete(path)
            self._files.delete(path + layout.TAKEN_UP)
            self._forget(path)  # once the answer is there, the same id may be sent again
            try:
                self._files.create(path + layout.ANSWERED, document)
            except FileExistsError:  # answered before the job was killed, and sent again
                self._files.delete(path + layout.ANSWERED)
                self._files.create(path + layout.ANSWERED, document)
        except (CairnError, OSError) as error:
            _log.warning("a request could not be answered: %s", error)


def _gist(question: Mapping[str, Any]) -> dict[str, Any]:
    """What distinguishes two requests with the same id."""
    return {"action": question.get("action"), "drain": bool(question.get("drain"))}


def _message(error: Exception) -> str:
    if isinstance(error, CairnError):
        return error.message
    if isinstance(error, TimeoutError) and str(error):
        return str(error)
    _log.error("a request to the job failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _refuse_late(question: Mapping[str, Any], info: FileInfo) -> None:
    """Refuse to end the job for a request whose sender has given up or was killed long ago."""
    age = time.time() - info.modified
    if question.get("action") in _ENDINGS and age > _LATE * PATIENCE:
        raise CheckpointFailedError(
            f"the request to {question['action']} is {age:.0f} s old and was not accepted by this run in time, so the "
            "job continues; repeat the request to end it"
        )


def ask(files: FileSystem, question: dict[str, Any], timeout: float, request: str = "") -> dict[str, Any] | None:
    """Send a request to a job and wait for its answer; None if there is none in time, and the request is withdrawn.

    `request` is the id to send it with. An answer that is there already under that id is taken if it answers the same
    question. `InvalidInputError` if the id stands for another question.
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
                _log.info("request %s is already waiting", request)
        while time.monotonic() - began < timeout:
            answer = _answer_to(files, path)
            if answer is not None:
                repeated = answer.pop("asked", gist if fresh else {})  # older releases do not repeat the question
                if repeated != gist:
                    raise _other_question(request, repeated)
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
    """The answer to a request, None while there is none. Another sender with the same id may take it."""
    if not files.exists(path + layout.ANSWERED):
        return None
    try:
        return msgspec.json.decode(files.read(path + layout.ANSWERED), type=dict[str, Any])
    except NotFoundError:
        return None


def answered(files: FileSystem, request: str) -> bool:
    """Whether there is an answer to a request with this id."""
    return files.exists(f"{layout.CONTROL}/{layout.checked_request(request)}{layout.ANSWERED}")


def _waiting_request(files: FileSystem, path: str) -> dict[str, Any] | None:
    """What a waiting request with the same id is for; None if there is none."""
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
        _log.warning("request %s could not be withdrawn; remove it manually: %s", path, error)


def _other_question(request: str, question: Mapping[str, Any]) -> InvalidInputError:
    what = str(question.get("action") or "something else") + (" with drain" if question.get("drain") else "")
    return InvalidInputError(
        f"request id '{request}' is in use by another request ({what}) whose answer has not been read yet: use another "
        "id, or repeat that request with this id to get its answer",
        request=request,
    )
