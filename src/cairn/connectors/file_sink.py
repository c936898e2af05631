"""A sink of files in a directory: written where nobody sees them, moved into sight once their epoch is committed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from typing import Any

import xxhash

from cairn.connectors.sink_base import BaseSink
from cairn.connectors.staging import durable_parts
from cairn.errors import CorruptFileError, InvalidInputError, StorageError
from cairn.storage import layout, regular_files
from cairn.storage.filesystem import LocalFileSystem, as_url, local_root

_FORMATS = ("parquet", "json", "csv")
_PORTION = 1 << 20


class FileSink(BaseSink):
    """Files in a directory that plain `spark.read` reads: each row once, and only of committed epochs.

    Rows are written to a hidden folder, `_cairn`, inside the directory; the commit moves the files, one atomic
    rename each, to names that carry the epoch. `options` go to Spark's writer (`header`, `compression`, ...).
    """

    kind = "file"
    only_writes = True

    def __init__(self, path: str, format: str = "parquet", **options: Any) -> None:  # noqa: A002 - Spark's word
        super().__init__()
        if format not in _FORMATS:
            raise InvalidInputError(f"FileSink writes {', '.join(_FORMATS)}, not {format!r}")
        self.path = local_root(path)
        self.format = format
        self.options = options
        self._files = LocalFileSystem(self.path)

    def start(self, spark: Any, job_dir: str, schema: Any) -> None:
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise InvalidInputError(f"FileSink: {self.path} is a file, not a directory")
        self._identify(job_dir)

    def _identify(self, job_dir: str) -> None:
        """A token of this job's sink: files of two sinks, or of two jobs, never meet, even in one directory."""
        self._job_dir = job_dir
        self._token = hashlib.blake2b(f"{job_dir}\0{self.uid}".encode(), digest_size=6).hexdigest()
        self._resumed = True

    def _stage(self, attempt: str) -> str:
        return f"{layout.OUTPUT_STAGING}/{self._token}/{attempt}"

    def _resume(self, epoch: int) -> None:
        """Before the first epoch that a run prepares: see that the directory and the history of the job agree.

        Output of this epoch or a later one means that the history has lost epochs whose rows were published. What is
        staged of earlier epochs belongs to attempts that nobody will publish any more.
        """
        if not self._resumed:
            return
        self._resumed = False
        if not self.may_repeat:
            self._refuse_published(epoch)
        self._forget_until(epoch - 1)

    def _refuse_published(self, epoch: int) -> None:
        pattern = re.compile(rf"part-(\d{{10}})-{self._token}-.+")
        numbered = [
            (int(match[1]), info.path) for info in self._files.list("") if (match := pattern.fullmatch(info.path))
        ]
        unknown = sorted((number, path) for number, path in numbered if number >= epoch)
        if not unknown:
            return
        first, last = unknown[0][0], unknown[-1][0]
        epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        history = f"ends with epoch {epoch - 1}" if epoch > 0 else "is empty"
        raise CorruptFileError(
            f"sink '{self.uid}': {self.path} holds output of {epochs} of this job ({unknown[0][1]}), but the history "
            f"of the job in {self._job_dir} {history}: its directory was restored from an older backup, or lost "
            "manifests. Continuing would write the rows of these epochs twice. Restore the newest copy of the job's "
            "directory; or, to continue from here, first move the files of these epochs away.",
            path=unknown[0][1],
            epochs=sorted({number for number, _ in unknown}),
            epoch=epoch,
        )

    def prepare(self, frame: Any, epoch: int, attempt: str) -> list[dict[str, Any]]:
        self._resume(epoch)
        stage = self._stage(attempt)
        target = os.path.join(self.path, *stage.split("/"))
        frame.write.format(self.format).options(**self.options).mode("error").save(as_url(target))
        return self._staged(stage, epoch, attempt)

    def _staged(self, stage: str, epoch: int, attempt: str) -> list[dict[str, Any]]:
        """The files that Spark wrote to a hidden folder, as `commit` needs them."""
        moves: list[dict[str, Any]] = []
        parts = durable_parts(self._files, stage, self.format)
        self.rows = parts.rows
        for info in parts:
            extension = info.path.rsplit("/", 1)[-1].split(".", 1)[1]
            final = f"part-{epoch:010d}-{self._token}-{attempt.rsplit('-', 1)[-1]}-{len(moves):05d}.{extension}"
            size, checksum = self._fingerprint(info.path)
            moves.append({"from": info.path, "to": final, "size": size, "checksum": checksum})
        return moves

    def commit(self, data: list[dict[str, Any]], epoch: int) -> None:
        for move in data:
            self._publish(move, epoch)
        # With AT_LEAST_ONCE the epoch is not committed yet, and a newer run may be preparing it as well.
        self._forget_until(epoch - 1 if self.may_repeat else epoch)

    def _publish(self, move: dict[str, Any], epoch: int) -> None:
        source, target = move["from"], move["to"]
        if not self._files.exists(target):
            try:
                self._verify(move, source, epoch)
                self._files.move(source, target)
                return
            except (FileNotFoundError, FileExistsError, StorageError):
                if not self._files.exists(target):  # else an overtaken run published the same file just now
                    if self._files.exists(source):
                        raise
                    raise CorruptFileError(
                        f"sink '{self.uid}': epoch {epoch} is committed, but both its prepared file "
                        f"{self.path}/{source} and {target} are missing; only a replay of the "
                        "epoch in another job can recover its rows",
                        path=source,
                    ) from None
        self._verify(move, target, epoch)
        self._files.delete(source)

    def _verify(self, move: dict[str, Any], path: str, epoch: int) -> None:
        """Refuse a file that is not, byte by byte, the one that was prepared."""
        size, checksum = self._fingerprint(path)
        if size == move["size"] and checksum == move.get("checksum", checksum):  # older releases kept no checksum
            return
        found = f"{size} bytes instead of {move['size']}" if size != move["size"] else "other bytes than were prepared"
        raise CorruptFileError(
            f"sink '{self.uid}': epoch {epoch} is committed, but {self.path}/{path} holds {found}. It was cut or "
            "changed after it was written, and is not published. Bring the file back from a copy, then start the job "
            "again; its rows are nowhere else.",
            path=path,
        )

    def _fingerprint(self, path: str) -> tuple[int, str]:
        """Size and checksum of a file."""
        digest = xxhash.xxh3_64()
        size = 0
        with open(regular_files.open_file(os.path.join(self.path, *path.split("/"))), "rb") as file:
            while portion := file.read(_PORTION):
                digest.update(portion)
                size += len(portion)
        return size, digest.hexdigest()

    def _forget_until(self, epoch: int) -> None:
        """Remove the staging folders of published epochs, and of attempts at them that were abandoned."""
        mine = os.path.dirname(os.path.join(self.path, *self._stage("x").split("/")))
        try:
            attempts = os.listdir(mine)
        except FileNotFoundError:
            return
        for attempt in attempts:
            number = attempt.split("-", 1)[0]
            if number.isdigit() and int(number) <= epoch:
                shutil.rmtree(os.path.join(mine, attempt), ignore_errors=True)

    def __repr__(self) -> str:
        return f"FileSink({self.path!r}, format={self.format!r})"
