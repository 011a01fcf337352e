"""Every operator action in one table, shared by the command line, the DAGs and the pages."""

from typing import Any

from epochline.operations.accept import AcceptLedger, AcceptState
from epochline.operations.action import Action, ActionPreview, DirectAction, Done, Parameters, Request, Subject
from epochline.operations.adopt_topic import AdoptTopic
from epochline.operations.approve import Approve
from epochline.operations.declare_loss import DeclareLoss
from epochline.operations.epoch_action import EpochAction
from epochline.operations.extend_back import ExtendBack
from epochline.operations.forget import Forget
from epochline.operations.janitor import STALE_AFTER, refresh_log_ends, tidy
from epochline.operations.requeue import Requeue
from epochline.operations.runs import Abort, Drop, Pause, PublishDue, Resume, Retry
from epochline.operations.savepoint import DeleteSavepoint, MakeSavepoint, Restore

ACTIONS: dict[str, Action[Any, Any]] = {
    action.name: action
    for action in (
        Abort(),
        Approve(),
        DeclareLoss(),
        AdoptTopic(),
        Requeue(),
        ExtendBack(),
        AcceptState(),
        AcceptLedger(),
        MakeSavepoint(),
        DeleteSavepoint(),
        Restore(),
        Forget(),
        Drop(),
        Pause(),
        Resume(),
    )
}
"""Every action by its name in commands and DAGs."""

DAG_ACTIONS: dict[str, Action[Any, Any]] = {
    action.name: action for action in (*ACTIONS.values(), Retry(), PublishDue()) if not isinstance(action, Forget)
}
"""Every action that has a DAG: those of the command line, and two for which it has commands of its own.

`Forget` has none: Airflow keeps the parameters of a run in its database and its logs, and with them the key.
"""

__all__ = [
    "ACTIONS",
    "DAG_ACTIONS",
    "STALE_AFTER",
    "Action",
    "ActionPreview",
    "DirectAction",
    "Done",
    "EpochAction",
    "Parameters",
    "Request",
    "Subject",
    "refresh_log_ends",
    "tidy",
]
