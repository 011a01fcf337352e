"""What operators may do, in one table: the command line, the DAGs and the web page call these and nothing else."""

from typing import Any

from epochline.operations.abort import Abort
from epochline.operations.action import Action, Done, Order, Parameters, Preview, Subject
from epochline.operations.adopt_topic import AdoptTopic
from epochline.operations.declare_loss import DeclareLoss
from epochline.operations.drop import Drop
from epochline.operations.pause import Pause, Resume

ACTIONS: dict[str, Action[Any, Any]] = {
    action.name: action for action in (Abort(), DeclareLoss(), AdoptTopic(), Drop(), Pause(), Resume())
}
"""Every action by its name, as commands and DAGs spell it."""

__all__ = ["ACTIONS", "Action", "Done", "Order", "Parameters", "Preview", "Subject"]
