"""`cairn verify` and `cairn savepoint-dispose`: whether a snapshot is whole, and deleting one. Neither needs Spark."""

from __future__ import annotations

import os
import sys

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.cli.progress_bar import progress
from cairn.cli.state_queries import opened
from cairn.errors import InvalidInputError
from cairn.quantities import size
from cairn.snapshots.snapshot import reading
from cairn.snapshots.verification import verified_bytes, verify_snapshot
from cairn.storage import layout
from cairn.storage.filesystem import local_root
from cairn.storage.savepoint_folder import dispose, is_savepoint
from cairn.text import one_line


def verify(path: str, out: Output) -> int:
    """Read every byte of a snapshot and compare it with its checksums."""
    snapshot = opened(path, out)
    total = verified_bytes(snapshot)
    with reading(snapshot), progress(out, "verifying", total, "bytes") as advance:
        defects = verify_snapshot(snapshot, advance)
    damage = [defect for defect in defects if defect.damage]
    strange = [defect.path for defect in defects if not defect.damage]
    out.document({
        "path": snapshot.path, "kind": snapshot.kind, "bytes": total, "intact": not damage,
        "problems": [{"path": defect.path, "why": defect.why} for defect in damage], "strange": strange,
    })  # fmt: skip
    for defect in damage:
        out.line(f"{defect.path}: {defect.why}")
    for name in strange:
        out.line(f"{name}: not part of the savepoint, ignored")
    if damage:
        out.line(f"{snapshot.path} is damaged: {len(damage)} problem(s)")
        return ExitCode.DAMAGED
    out.line(f"{snapshot.path} is intact: {size(total)} verified")
    return ExitCode.OK


def _refuse_checkpoint(path: str) -> None:
    """Say so when somebody means a checkpoint: its files may be those of others, too, so only its job removes it."""
    root = local_root(path)
    named = layout.checkpoint_number(os.path.basename(root)) is not None
    if named and os.path.isfile(os.path.join(root, layout.METADATA)) and not is_savepoint(root):
        raise InvalidInputError(
            f"{root} is a checkpoint, not a savepoint; its job deletes it when it is no longer retained",
            remedy="To keep fewer checkpoints, lower execution.checkpointing.num-retained or set "
            "execution.checkpointing.externalized-checkpoint-retention.",
            path=root,
        )


def dispose_savepoint(path: str, yes: bool, dry_run: bool, force: bool, out: Output) -> int:
    """Delete a savepoint, after asking."""
    _refuse_checkpoint(path)
    plan = dispose(path, dry_run=True, force=force)
    if not dry_run and not yes:
        if out.as_json or not sys.stdin.isatty():
            raise InvalidInputError(
                f"deleting {plan.path} needs a terminal to ask for confirmation",
                remedy="Pass --yes, or check with --dry-run first.",
            )
        import typer

        if not typer.confirm(f"Delete {one_line(plan.path)} with {len(plan.removed)} files ({size(plan.size)})?"):
            out.line("nothing was deleted")
            return ExitCode.FAILED
    done = plan if dry_run else dispose(path, force=force)
    out.document(
        {"path": done.path, "removed": done.removed, "bytes": done.size, "left": done.left, "dry_run": dry_run}
    )
    verb = "would be deleted" if dry_run else "deleted"
    out.line(f"{done.path}: {len(done.removed)} files ({size(done.size)}) {verb}")
    for name in done.left:
        out.line(f"not part of the savepoint, kept: {name}")
    return ExitCode.OK
