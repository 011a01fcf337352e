"""When Airflow tries ``pre_commit`` again. Airflow 3.3 has retry policies, Airflow 3.2 has none."""

from airflow.sdk import Context
from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from epochline.airflow.connections import adapters
from epochline.declare.pipeline import Pipeline
from epochline.errors import LedgerUnavailableError


class RetryByLedger(RetryPolicy):
    """Ask the ledger how long to wait: it has the errors of all attempts, and Airflow has its own try number alone."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """The pause before the next try. Without a ledger, Airflow's ``retry_delay`` is the strategy's own delay."""
        from epochline.coordinator import pause_before_retry

        epoch_id = getattr(context["task"], "epoch_id", "") if context is not None else ""
        if try_number > max_tries or not epoch_id:
            return RetryDecision.default()
        try:
            pause, reason = pause_before_retry(adapters().ledger(self.pipeline), self.pipeline.name, int(epoch_id))
        except LedgerUnavailableError:
            return RetryDecision.default()
        return RetryDecision.fail(reason) if pause is None else RetryDecision.retry(pause, reason)
