"""Turns what user code raises into an error that says where it happened: operator, subtask, epoch, key and line."""

from __future__ import annotations

from typing import Any

from cairn.errors import CairnError, UserFunctionError
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
        from cairn.runtime.user_errors import facts_of, failed_row, location, noted, raised  # needed after errors only

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
