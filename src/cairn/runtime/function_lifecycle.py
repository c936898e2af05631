"""The life of a user's function in one subtask, apart from its rows: initialize, open, notify, snapshot, close."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from cairn.errors import InternalError, UserFunctionError
from cairn.model.functions import CheckpointListener
from cairn.model.process_functions import CheckpointedFunction
from cairn.runtime.operator_state import InitializationContext, SnapshotContext, TaskOperatorStateStore
from cairn.runtime.subtask_setup import SubtaskSetup
from cairn.runtime.user_errors import Explainer


class FunctionLifecycle:
    """Calls everything of a function that is not a row or a timer, and keeps its operator state."""

    def __init__(self, function: Any, setup: SubtaskSetup, explained: Explainer) -> None:
        self._function = function
        self._setup = setup
        self._explained = explained
        self._operator_states: TaskOperatorStateStore | None = None
        if setup.history is not None and setup.history.deals:
            self.operator_states  # noqa: B018 - takes over what other subtasks had, whether it is asked for or not

    @property
    def operator_states(self) -> TaskOperatorStateStore:
        """The operator state of this subtask."""
        if self._operator_states is None:
            if self._setup.history is None:
                raise InternalError(f"operator '{self._setup.spec.uid}': nobody said where its operator state is")
            self._operator_states = TaskOperatorStateStore(self._setup.registry, self._setup.history)
        return self._operator_states

    def open(self, runtime: Any) -> None:
        function = self._function
        if isinstance(function, CheckpointedFunction):
            states, history = self.operator_states, self._setup.history
            assert history is not None
            with self._explained("initialize_state()"):
                function.initialize_state(InitializationContext(states, history, runtime))
        with self._explained("open()"):
            function.open(runtime)
        if isinstance(function, CheckpointListener):
            self._notify(function)

    def _notify(self, function: CheckpointListener) -> None:
        for number, complete in self._setup.context.notices:
            if complete:
                with self._explained("notify_checkpoint_complete()"):
                    function.notify_checkpoint_complete(number)
            else:
                with self._explained("notify_checkpoint_aborted()"):
                    function.notify_checkpoint_aborted(number)

    def close(self, aside: list[Any]) -> None:
        """After the last row: snapshot the operator state, then close the function.

        `aside` is where `ctx.output` puts rows: the output of the epoch is complete, so a row there would be lost.
        """
        if isinstance(self._function, CheckpointedFunction):
            context = self._setup.context
            self._silently(aside, self._function.snapshot_state, SnapshotContext(context.epoch, context.time_ms))
        self._silently(aside, self._function.close)

    def _silently(self, aside: list[Any], method: Callable[..., Any], *arguments: Any) -> None:
        where = f"{method.__name__}()"
        with self._explained(where):
            result = method(*arguments)
        if aside or isinstance(result, (Iterator, list, tuple)):
            raise UserFunctionError(
                f"operator '{self._setup.spec.uid}': {where} cannot put anything out, neither by ctx.output nor by "
                "yield or return: it is called when the output of the epoch is complete. Put it out in "
                "process_element or on_timer, or keep it in state until the next epoch."
            )

    def settle(self) -> None:
        """Before the changes of the epoch are drained."""
        if self._operator_states is not None:
            self._operator_states.settle()

    def abandon(self) -> None:
        """Close the function after a failure. The user must hear of that failure, not of what this may raise."""
        with suppress(Exception):
            self._function.close()
