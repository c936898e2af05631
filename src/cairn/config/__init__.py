"""Settings of a job: what other packages import, from the modules that define it."""

from __future__ import annotations

from cairn.config.options import ALIASES, OPTIONS, REFUSED
from cairn.config.parsing import check, parse, with_options
from cairn.config.settings import (
    CLAIM_MODES,
    DEFAULT_DIRECTORY,
    MAX_INLINE,
    MIN_CHECKPOINT_MS,
    MODES,
    RESTART_TYPES,
    RETENTIONS,
    STORAGES,
    CheckpointSettings,
    RememberedOption,
    RestartSettings,
    Settings,
    WebSettings,
    default_local_directory,
)

__all__ = [
    "ALIASES",
    "CLAIM_MODES",
    "DEFAULT_DIRECTORY",
    "MAX_INLINE",
    "MIN_CHECKPOINT_MS",
    "MODES",
    "OPTIONS",
    "REFUSED",
    "RESTART_TYPES",
    "RETENTIONS",
    "STORAGES",
    "CheckpointSettings",
    "RememberedOption",
    "RestartSettings",
    "Settings",
    "WebSettings",
    "check",
    "default_local_directory",
    "parse",
    "with_options",
]
