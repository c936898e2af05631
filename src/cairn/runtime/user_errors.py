"""Turns what user code raises into an error that says where it happened: operator, subtask, epoch, key and line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cairn.errors import CairnError, UserFunctionError
from cairn.model.manifest import EpochContext
from cairn.runtime.subtask_setup import SubtaskSetup


class Explainer:
    """Explains the errors of one subtask. A call makes a context manager: `with explained("open()"): ...`."""

    __slots__ = ("_setup",)

    def __init__(self, setup: SubtaskSetup) -> None:
        self._setup = setup

    def __call__(self, where: str) -> _Explained:
        return _Explained(self, where)

    def explain(self, where: str, error: BaseException) -> CairnError | None:
        """The error to raise instead of one that came out of user code; None if it explains itself."""
        setup = self._setup
        uid, context, slots = setup.spec.uid, setup.context, setup.registry.slots
        slot = slots.current[0]
        at = f"operator '{uid}', subtask {setup.subtask}, epoch {context.epoch}"
        if isinstance(error, CairnError) and error.message.startswith(at):
            return None  # explained where it was raised
        # needed after errors only
        from cairn.runtime.user_code_location import facts_of, failed_row, location, noted, raised

        known = {"uid": uid, "subtask": setup.subtask, "epoch": context.epoch}
        shown = context.show_values
        row = failed_row(error) if shown else ""
        row = f" The row: {row}." if row else ""
        if slot is not None:
            at += f", key {setup.codec.decode(slots.keys[slot][2:])!r:.200}"
        if isinstance(error, CairnError):
            if isinstance(error, UserFunctionError) and f"operator '{uid}'" in error.message:
                return None
            # What cairn's own errors say is shown in any case, and so is the way to them.
            facts = {**known, **facts_of(error, show_values=True), **error.facts} if location(error) else error.facts
            return noted(type(error)(f"{at}: {error.message}{location(error)}{row and '.'}{row}", **facts))
        return noted(
            UserFunctionError(
                f"{at}: {where} raised {raised(error, shown)}.{row} The last committed epoch is intact.",
                **known,
                **facts_of(error, show_values=shown),
            )
        )


class _Explained:
    __slots__ = ("_explainer", "_where")

    def __init__(self, explainer: Explainer, where: str) -> None:
        self._explainer = explainer
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            better = self._explainer.explain(self._where, error)
            if better is not None:
                raise better from error


def explained(
    uid: str, where: str, context: EpochContext, error: Exception, rows: Sequence[Any] = ()
) -> UserFunctionError:
    """What `Explainer` makes of it, for a function on a plain stream. `rows` has the row that it was called for."""
    from cairn.runtime.user_code_location import facts_of, noted, raised, row_text

    row = f" The row: {row_text(rows[0])}." if rows and context.show_values else ""
    made = UserFunctionError(
        f"operator '{uid}', epoch {context.epoch}: {where} raised {raised(error, context.show_values)}.{row} The last "
        "committed epoch is intact.",
        uid=uid,
        epoch=context.epoch,
        **facts_of(error, show_values=context.show_values),
    )
    return noted(made)
