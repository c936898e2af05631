"""From state files to backends: opening what handles name, and what a section asks of a backend."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptFileError
from cairn.model.manifest import Manifest, StateHandle, inline_key
from cairn.state import codec
from cairn.state.backend import Put, TableChanges
from cairn.storage.filesystem import FileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.state_file import Section, StateFile
from cairn.storage.state_owner import Place


class ChainFiles:
    """Opens the files that handles name: memory-mapped where they lie on this host, read whole elsewhere.

    Every file is compared with the handle that names it (`storage/state_owner.py`). Without a manifest `incarnation`
    says of which job the handles are.
    """

    def __init__(self, files: FileSystem, manifest: Manifest | None, incarnation: str = "") -> None:
        self.files = files
        self._manifest = manifest
        self._incarnation = manifest.incarnation if manifest is not None else incarnation
        self._manifests = ManifestStore(files)

    def open(self, uid: str, handle: StateHandle) -> StateFile:
        if not handle.path:
            manifest = self._manifest
            if manifest is None or manifest.epoch != handle.epoch:
                manifest = self._manifests.load(handle.epoch)
            data = manifest.inlined.get(inline_key(uid, handle.first_group))
            if data is None:
                raise CorruptFileError(f"the manifest of epoch {handle.epoch} lacks the state of operator '{uid}'")
            return self.inlined(uid, handle, data, f"inlined in epoch {handle.epoch}")
        place = Place(self.files.root, self._incarnation, uid, handle)
        path = self.files.local_path(handle.path)
        if path is not None:
            return StateFile.open(path, handle.checksum, handle.size, place)
        return StateFile(self.files.read(handle.path), handle.path, handle.checksum, handle.size, place)

    def inlined(self, uid: str, handle: StateHandle, data: bytes, name: str) -> StateFile:
        """The bytes of a handle that has no file of its own."""
        place = Place(self.files.root, self._incarnation, uid, handle)
        return StateFile(data, name, handle.checksum, handle.size, place)


def changes_of(section: Section) -> TableChanges:
    """What a section asks of a backend. The key layout of each kind of table is decided here and nowhere else."""
    data = section.data.combine_chunks()
    if data.num_rows == 0:
        return TableChanges(section.table)
    keys = data.column("key").chunk(0)
    value = data.column("value").chunk(0)
    times = data.column("time").chunk(0) if section.ttl else None
    values = codec.value_bytes(value, section.storage, times)
    if not section.has_entries:
        names = keys.to_pylist()
        if value.null_count == 0:
            return TableChanges(section.table, puts=cast(list[Put], list(zip(names, values, strict=True))))
        return TableChanges(
            section.table,
            puts=[(k, v) for k, v in zip(names, values, strict=True) if v is not None],
            deletes=[k for k, v in zip(names, values, strict=True) if v is None],
        )
    entries = data.column("entry").chunk(0)
    if section.kind == "timer":
        names = pc.binary_join_element_wise(entries, keys, pa.scalar(b"", pa.binary())).to_pylist()
        clears: list[bytes] = []
    else:
        lengths = np.asarray(pc.binary_length(keys)).astype(">u2").view(np.uint8)
        prefix = pa.FixedSizeBinaryArray.from_buffers(pa.binary(2), len(keys), [None, pa.py_buffer(lengths)])
        blank = pa.scalar(b"", pa.binary())
        names = pc.binary_join_element_wise(prefix.cast(pa.binary()), keys, entries, blank).to_pylist()
        clears = []
        if entries.null_count:
            clears = [codec.entry_prefix(k) for k in keys.filter(pc.is_null(entries)).to_pylist()]
    if entries.null_count == 0 and value.null_count == 0:
        return TableChanges(section.table, puts=cast(list[Put], list(zip(names, values, strict=True))))
    return TableChanges(
        section.table,
        puts=[(k, v) for k, v in zip(names, values, strict=True) if v is not None and k is not None],
        deletes=[k for k, v in zip(names, values, strict=True) if v is None and k is not None],
        clears=clears,
    )
