"""Leave a file for each committed epoch, for people. The ledger is the truth: losing a file loses nothing."""

import logging
from collections.abc import Mapping
from typing import Any

from epochline.config.resolve import epoch_folder, recorded_value
from epochline.errors import LedgerError, SavepointFileError
from epochline.ports import Ledger

log = logging.getLogger(__name__)


def leave_file(ledger: Ledger, pipeline: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Write the file of the newest committed epoch if it is missing, and delete those beyond the number to keep.

    Called after each commit, and again by each plan before it plans: a process that died in between leaves the file to
    the next run. The state is that epoch's, because nothing is committed before the plan. A repeat changes nothing.

    Returns:
        A note if the file could not be written, which is also logged. A file never fails a run.
    """
    folder = recorded_value(settings, "epoch_files")
    if folder is None:
        return ()
    where = epoch_folder(folder, pipeline)
    try:
        with ledger.transaction() as tx:
            declared = tx.epochs.last_declaration(pipeline)
            if declared is None:
                return ()
            written = tx.savepoints.leave_file(declared, where, keep=recorded_value(settings, "epoch_files_kept"))
    except (LedgerError, SavepointFileError) as error:
        log.warning("epoch_file.failed pipeline=%s folder=%s reason=%s", pipeline, where, error)
        return (f"the newest epoch has no file in {where} yet: {error} The next run tries again.",)
    if written is not None:
        log.info("epoch_file.written pipeline=%s file=%s", pipeline, written)
    return ()
