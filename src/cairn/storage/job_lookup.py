"""Finds the directory of a job by its name, by a prefix of its id, or by its path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

from cairn.config import DEFAULT_DIRECTORY
from cairn.errors import CairnError, InvalidInputError, NotFoundError
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.manifest_store import JobIdentity, load_identity
from cairn.storage.running_jobs import running_directories


def open_job(job: str, directory: str | None, exact: bool = False) -> tuple[LocalFileSystem, JobIdentity]:
    """The job of a name, an id prefix or a path.

    Names are looked up in `directory`; without one, in the default directory and then among the running jobs.
    With `exact`, a prefix of an id is refused: what changes a job must not take another one after a typing error.
    """
    if os.sep in job or os.path.isdir(job):
        files = LocalFileSystem(local_root(job))
        identity = load_identity(files)
        if identity is None:
            raise NotFoundError(f"{files.root} is not the directory of a cairn job", path=files.root)
        return files, identity
    root = local_root(directory or DEFAULT_DIRECTORY)
    own = [os.path.join(root, name) for name in LocalFileSystem(root).folders("")]
    try:
        return _named(job, own, root, exact)
    except NotFoundError as error:
        elsewhere = [path for path in running_directories() if path not in own] if directory is None else []
        try:
            return _named(job, elsewhere, "the directories of running jobs", exact)
        except NotFoundError as other:
            raise (other if "candidates" in other.facts and "candidates" not in error.facts else error) from None


def _named(job: str, places: Sequence[str], where: str, exact_only: bool) -> tuple[LocalFileSystem, JobIdentity]:
    """The job among these folders that a name or an id prefix means."""
    matches = []
    seen: list[tuple[str, str]] = []
    damaged: dict[str, CairnError] = {}
    for place in places:
        files = LocalFileSystem(place)
        try:
            identity = load_identity(files)
        except CairnError as error:  # its neighbours are none the worse for it
            damaged[os.path.basename(place)] = error
            continue
        if identity is not None:
            seen.append((identity.job_id, identity.name))
        if identity is not None and (identity.name == job or identity.job_id.startswith(job)):
            matches.append((files, identity))
    exact = [pair for pair in matches if job in (pair[1].name, pair[1].job_id)]
    meant = [name for name in damaged if name.startswith(job)]  # a job's folder has its id for a name
    if not exact and (job in damaged or (not matches and len(meant) == 1)):
        raise damaged[job if job in damaged else meant[0]]
    if exact_only and not exact and matches:
        ids = sorted(identity.job_id for _, identity in matches)
        verb = "begins" if len(ids) == 1 else "begin"
        raise NotFoundError(
            f"there is no job '{job}' in {where}; {', '.join(ids)} {verb} like this, but only a whole name or id is "
            "accepted here",
            job=job,
            candidates=ids,
        )
    if len(exact) == 1 or (not exact and len(matches) == 1 and not meant):
        return (exact or matches)[0]
    if not matches and not meant:
        near = difflib.get_close_matches(job, [name for ids in seen for name in ids], 1)
        hint = f"; did you mean '{near[0]}'?" if near else "; pass its path, or its directory with --dir"
        unread = f". Skipped because their {layout.JOB} cannot be read: {', '.join(damaged)}" if damaged else ""
        raise NotFoundError(f"there is no job '{job}' in {where}{hint}{unread}", job=job)
    ids = [identity.job_id for _, identity in matches]
    alike = len(set(ids)) < len(ids)  # the same id in two places: only their paths tell them apart
    names = ", ".join(sorted([*([files.root for files, _ in matches] if alike else ids), *meant]))
    raise InvalidInputError(
        f"'{job}' is ambiguous: {names}; pass {'the path' if alike else 'a longer prefix of the id'}", job=job
    )
