"""Permissions that bind the superuser as well, so that tests of them mean something wherever they run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522
_OVERRIDES = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what lets root read and write whatever the mode of a file says."""


class _Head(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Within, file modes hold for this thread also if it runs as root."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    head, sets = _Head(_VERSION, 0), (_Set * 2)()

    def call(what: str) -> None:
        if getattr(libc, what)(ctypes.byref(head), sets) != 0:
            raise OSError(ctypes.get_errno(), what)

    call("capget")
    before = sets[0].effective
    sets[0].effective = before & ~_OVERRIDES
    call("capset")
    try:
        yield
    finally:
        sets[0].effective = before
        call("capset")
