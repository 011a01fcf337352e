"""Every operator action in one table, shared by the command line, the DAGs and the web page."""

from typing import Any

from epochline.operations.abort import Abort
from epochline.operations.accept_ledger import AcceptLedger
from epochline.operations.accept_state import AcceptState
from epochline.operations.action import Action, ActionPreview, DirectAction, Done, Parameters, Request, Subject
from epochline.operations.adopt_topic import AdoptTopic
from epochline.operations.declare_loss import DeclareLoss
from epochline.operations.drop import Drop
from epochline.operations.epoch_action import EpochAction
from epochline.operations.extend_back import ExtendBack
from epochline.operations.janitor import STALE_AFTER, Tidied, tidy
from epochline.operations.pause import Pause, Resume
from epochline.operations.requeue import Requeue
from epochline.operations.restore import Restore
from epochline.operations.savepoint import DeleteSavepoint, MakeSavepoint

ACTIONS: dict[str, Action[Any, Any]] = {
    action.name: action
    for action in (
        Abort(),
        DeclareLoss(),
        AdoptTopic(),
        Requeue(),
        ExtendBack(),
        AcceptState(),
        AcceptLedger(),
        MakeSavepoint(),
        DeleteSavepoint(),
        Restore(),
        Drop(),
        Pause(),
        Resume(),
    )
}
"""Every action by its name in commands and DAGs."""

__all__ = [
    "ACTIONS",
    "STALE_AFTER",
    "Action",
    "ActionPreview",
    "DirectAction",
    "Done",
    "EpochAction",
    "Parameters",
    "Request",
    "Subject",
    "Tidied",
    "tidy",
]
