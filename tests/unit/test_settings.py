"""Settings of epochs: what each refuses, which place decides, and what the profiles hold."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from epochline import Endless, FailureRate, FixedDelay, NoRestart, Pipeline, Settings
from epochline.config.resolve import file_settings, recorded_restart, resolve_settings, run_settings, settings_file
from epochline.declare.settings import WITHOUT_END, Kept, PerRun, profile, profiles
from epochline.errors import ConfigurationError, DeclarationError
from tests.conftest import AIRFLOW_DAGS, FUNCTIONS
from tests.contract.worlds import orders
from tests.declared import find_all

PARAMS = ("record_limit", "note", "minimum_pause", "timeout", "on_cancel", "parallelism")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"minimum_pause": -1}, "minimum_pause: must not be negative"),
        ({"timeout": 0}, "timeout: must be longer than zero"),
        ({"interval": 0}, "interval: must be longer than zero"),
        ({"tolerable_failures": -1}, "tolerable_failures: "),
        ({"max_concurrent": 3}, "max_concurrent: Input should be less than or equal to 2"),
        ({"max_concurrent": 0}, "max_concurrent: "),
        ({"on_cancel": "keep"}, "on_cancel: Input should be 'delete' or 'retain'"),
        (
            {"semantics": "at_least_once"},
            "semantics: at_least_once is not supported.*include/epochline_examples/at_least_once.py",
        ),
        ({"semantics": "at_most_once"}, "semantics: at_most_once is not supported.*examples/at_most_once.py"),
        ({"semantics": "best_effort"}, "semantics: Input should be 'exactly_once'"),
        ({"restart": {"kind": "fixed_delay", "attempts": -1}}, "attempts: "),
        ({"restart": {"kind": "failure_rate", "max_failures": 0, "interval": 9}}, "max_failures: "),
        ({"restart": {"kind": "failure_rate", "max_failures": 1, "interval": 0}}, "interval: must be longer than zero"),
        ({"restart": {"kind": "endless", "delay": -1}}, "delay: must not be negative"),
        ({"restart": {"kind": "exponential"}}, "restart: "),
        ({"parallelism": 0}, "parallelism: "),
        ({"checkpoint_dir": "x"}, "checkpoint_dir: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_setting_names_its_field_and_the_fix(fields: dict[str, Any], said: str) -> None:
    """K8 to K15, R1 to R4."""
    with pytest.raises(DeclarationError, match=f"(?s)Invalid declaration of .*{said}"):
        Settings(**fields)


# Precedence


def test_the_run_beats_the_declaration_which_beats_the_file_which_beats_the_default() -> None:
    """C10: global 60 s, DAG 10 s, run conf 5 s: effective 5 s, with the place that decided it."""
    declared, file = orders(settings=Settings(minimum_pause=10)), Settings(minimum_pause=60)
    resolved = (
        resolve_settings(declared, file=file, run=PerRun(minimum_pause=5)),
        resolve_settings(declared, file=file),
        resolve_settings(orders(), file=file),
        resolve_settings(orders()),
    )

    assert [one.recorded()["minimum_pause"] for one in resolved] == [
        {"value": 5.0, "from": "run conf"},
        {"value": 10.0, "from": "declaration"},
        {"value": 60.0, "from": "file"},
        {"value": 0.0, "from": "default"},
    ]


def test_a_profile_stands_between_the_file_and_the_declaration() -> None:
    """C10, K2."""
    one = resolve_settings(
        orders(profile="word_count", settings=Settings(timeout=7)),
        file=Settings(timeout=1, minimum_pause=2, parallelism=3),
    )

    assert (one.timeout, one.minimum_pause, one.parallelism) == (seconds(7), seconds(0.5), 3)
    assert one.decided_by["minimum_pause"] == "profile word_count"


def test_a_declared_restart_strategy_beats_the_global_one() -> None:
    """R5."""
    declared, file = orders(settings=Settings(restart=NoRestart())), Settings(restart=FixedDelay(attempts=3))

    assert resolve_settings(declared, file=file).restart == NoRestart()


@pytest.mark.parametrize(
    ("declared", "in_file", "expected"),
    [
        ({}, None, (None, "default")),
        ({}, 60, (seconds(60), "file")),
        ({"schedule": seconds(10)}, 60, (seconds(10), "declaration")),
        ({"schedule": "*/5 * * * *"}, 60, ("*/5 * * * *", "declaration")),
        ({"schedule": None}, 60, (None, "declaration")),
    ],
)
def test_the_schedule_is_the_interval(declared: dict[str, Any], in_file: Any, expected: tuple[Any, str]) -> None:
    """K8: a schedule of None is run by hand, whatever the file says."""
    one = resolve_settings(orders(**declared), file=Settings(interval=in_file))

    assert (one.interval, one.decided_by["interval"]) == expected


@pytest.mark.parametrize(
    ("settings", "tolerated"),
    [
        ({}, None),
        ({"tolerable_failures": 10}, 10),
        ({"tolerable_failures": 0}, 0),
        ({"fail_on_epoch_error": True}, 0),
        ({"fail_on_epoch_error": False}, None),
        ({"fail_on_epoch_error": True, "tolerable_failures": 10}, 10),
        ({"fail_on_epoch_error": False, "tolerable_failures": 0}, 0),
    ],
)
def test_the_tolerance_wins_where_the_older_word_for_it_is_set_too(settings: dict[str, Any], tolerated: Any) -> None:
    """K11, K12, X29."""
    assert resolve_settings(orders(settings=Settings(**settings))).tolerable_failures == tolerated


def test_two_epochs_at_once_are_accepted_and_capped_at_one_with_a_note() -> None:
    """K5, K14."""
    one = resolve_settings(orders(schedule=seconds(1), settings=Settings(max_concurrent=2)))

    assert one.max_concurrent == 1
    assert one.notes == ("max_concurrent=2 has no effect: one epoch of a pipeline is in flight at a time",)


def test_without_an_interval_there_is_one_attempt_and_a_note_says_what_is_off() -> None:
    """K22, R4: checkpointing is off unless an interval turns it on."""
    off, on = resolve_settings(orders()), resolve_settings(orders(schedule=seconds(10)))

    assert off.restart == NoRestart()
    assert "checkpointing is off" in off.notes[0]
    assert on.restart == Endless()
    assert on.restart.retries == WITHOUT_END
    assert on.notes == ()


def test_a_pipeline_that_data_wakes_is_tried_again_like_one_with_an_interval() -> None:
    """K23, R4."""
    woken = resolve_settings(orders(wake_on_data=seconds(10)))

    assert woken.interval is None
    assert woken.restart == Endless()
    assert woken.notes == ()


@pytest.mark.parametrize(
    "strategy",
    [FixedDelay(attempts=3, delay=5), FailureRate(max_failures=3, interval=300, delay=10), Endless(), NoRestart()],
    ids=lambda one: one.kind,
)
def test_a_strategy_is_read_back_from_an_epochs_row_as_it_was(strategy: Any) -> None:
    recorded = resolve_settings(orders(settings=Settings(restart=strategy))).recorded()

    assert recorded_restart(json.loads(json.dumps(recorded))) == strategy


# Conf of a run


def test_a_run_may_change_these_settings() -> None:
    """C10."""
    conf = {"minimum_pause": 5, "timeout": 0.5, "on_cancel": "delete", "parallelism": 2, "note": "x", "record_limit": 1}

    assert run_settings(conf, PARAMS) == PerRun(minimum_pause=5, timeout=0.5, on_cancel="delete", parallelism=2)
    assert run_settings(dict.fromkeys(PARAMS), PARAMS) == PerRun()


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"spark.jars": "x.jar"}, "holds spark.jars, which no run may set"),
        ({"kafka.bootstrap.servers": "elsewhere:9092"}, "which no run may set"),
        ({"postgres_connection": "other"}, "which no run may set"),
        ({"schedule": 5}, "schedule cannot be set for one run: it belongs to the DAG"),
        ({"interval": 5}, "interval cannot be set for one run: the schedule belongs to the DAG"),
        ({"restart": {"kind": "none"}}, "restart cannot be set for one run: Airflow reads it from the DAG"),
        ({"tolerable_failures": 5}, "tolerable_failures cannot be set for one run"),
        ({"semantics": "at_least_once"}, "semantics cannot be set for one run: it is always exactly_once"),
        ({"timeout": -5}, "timeout: must be longer than zero"),
        ({"timeout": {"seconds": 5}}, "the conf of the run: .*timeout: "),
    ],
)
def test_a_conf_that_holds_anything_else_is_refused(conf: dict[str, Any], said: str) -> None:
    """SEC-2: no option of Spark or Kafka passes, and what cannot differ per run is said to be so."""
    with pytest.raises(ConfigurationError, match=said):
        run_settings(conf, PARAMS)


# The settings file


def test_the_file_that_the_environment_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: one config file, durations in seconds or ISO 8601."""
    path = tmp_path / "settings.toml"
    path.write_text('[settings]\ninterval = 60\ntimeout = "PT90S"\nrestart = {kind = "fixed_delay", attempts = 3}\n')
    monkeypatch.setenv("EPOCHLINE_SETTINGS", str(path))

    assert file_settings() == Settings(interval=60, timeout=90, restart=FixedDelay(attempts=3))


def test_the_file_next_to_the_package_is_read_by_default_and_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EPOCHLINE_SETTINGS", raising=False)
    monkeypatch.delenv("EPOCHLINE_PROJECT", raising=False)
    assert settings_file().name == "epochline.toml"
    assert settings_file().is_file()
    assert file_settings() == Settings()

    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    assert file_settings() == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "EPOCHLINE_SETTINGS names .*settings.toml, which does not exist"),
        ("[settings", "settings.toml: "),
        ("[settings]\ntimeout = 0\n", "settings.toml: Invalid declaration of Settings: timeout: "),
        ("[settings]\npassword = 1\n", "settings.toml: .*password: Extra inputs"),
        ("[pipelines]\n", "settings.toml: unknown: pipelines"),
        ("settings = 3\n", "settings.toml: "),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings.toml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("EPOCHLINE_SETTINGS", str(path))

    with pytest.raises(ConfigurationError, match=said):
        file_settings()


# Profiles

Values = dict[str, Any]
DOCUMENTS_DEFAULTS: Values = {
    "minimum_pause": seconds(0), "timeout": seconds(600), "tolerable_failures": 0, "on_cancel": "delete",
    "max_concurrent": 1, "semantics": "exactly_once", "restart": Endless(), "parallelism": None,
}  # fmt: skip
RETAINED: Values = {
    "minimum_pause": seconds(0.5), "timeout": seconds(60), "on_cancel": "retain", "tolerable_failures": None,
}  # fmt: skip
RESTARTED: Values = {
    "interval": seconds(1), "on_cancel": "retain", "restart": FixedDelay(attempts=3, delay=5), "parallelism": 1,
}  # fmt: skip

EXPECTED: dict[str, tuple[Values, Values]] = {
    "checkpoint_demo": (RETAINED | {"interval": seconds(1)}, {"state_path": "hdfs://node1:8020/flink/ck_demo"}),
    "word_count": (
        RETAINED | {"interval": seconds(1), "tolerable_failures": 10, "restart": FixedDelay(attempts=3, delay=10)},
        {
            "state_path": "hdfs://node1:8020/flink-checkpoint/checkpoint", "transaction_timeout": seconds(5),
            "group_id": "flink",
        },
    ),
    "kafka_to_db": (
        {"interval": seconds(10), "minimum_pause": seconds(1), "parallelism": 1},
        {"state_path": "file:///D:/ckp"},
    ),
    "socket_to_kafka": (
        RETAINED | {"interval": seconds(10)},
        {
            "state_path": "file:///e://data//checkpoint-demo//", "transaction_timeout": seconds(900),
            "producer_semantics": "exactly_once",
        },
    ),
    "kafka_wordcount": (RETAINED | {"interval": seconds(10)}, {}),
    "restart_demo": (RESTARTED, {"state_path": "hdfs://node1:8020/flink/ck"}),
    "savepoint_demo": (RESTARTED, {"state_path": "hdfs://node1:8020/flink/ck"}),
    "dual_sink": ({"interval": seconds(10)}, {"prefer_checkpoint_for_recovery": True}),
    "ip_count": (
        {"interval": seconds(5), "on_cancel": "retain", "restart": FixedDelay(attempts=3, delay=10)},
        {
            "time_characteristic": "event_time", "prefer_checkpoint_for_recovery": True,
            "state_path": "java.io.tmpdir", "transaction_timeout": seconds(60), "producer_semantics": "exactly_once",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "values", "kept"), [(k, *v) for k, v in EXPECTED.items()], ids=EXPECTED.keys())
def test_a_profile_holds_the_documents_values_and_their_defaults(name: str, values: Values, kept: Values) -> None:
    """K1 to K7, K16 to K19."""
    one = resolve_settings(orders(profile=name))

    assert {field: getattr(one, field) for field in (*DOCUMENTS_DEFAULTS, "interval")} == DOCUMENTS_DEFAULTS | values
    assert profile(name).kept.model_dump(exclude_none=True) == kept


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"producer_semantics": "at_least_once"}, "at_least_once repeats records that were sent before a crash"),
        ({"transaction_timeout": 3600}, r"3600000 ms is more than the 900000 ms that a broker grants"),
        ({"transaction_timeout": 0}, "transaction_timeout"),
        ({"group_id": ""}, "group_id"),
        ({"transaction_time_out": 5}, "transaction_time_out"),
    ],
)
def test_a_value_that_is_only_kept_is_checked_all_the_same(value: dict[str, Any], said: str) -> None:
    """K16, K18: what will not do is refused when the profile is read, not when a sink first asks for it."""
    with pytest.raises(DeclarationError, match=said):
        Kept(**value)


def test_every_profile_is_tested_and_only_two_ask_for_two_epochs_at_once() -> None:
    """K5."""
    assert list(profiles()) == list(EXPECTED)
    assert {name for name, one in profiles().items() if one.settings.max_concurrent == 2} == {
        "restart_demo", "savepoint_demo",
    }  # fmt: skip


def test_a_declaration_kept_before_there_were_settings_is_still_read() -> None:
    body = json.loads(orders().stored())
    del body["settings"], body["profile"]
    body |= {"retries": 2, "retry_delay": "PT10S", "pre_commit_timeout": "PT1H"}

    assert Pipeline.from_stored(json.dumps(body)).declaration_hash == orders().declaration_hash


def test_every_pipeline_of_the_scheduler_tests_is_declared_rightly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong file there would only be seen after minutes, and fail every test of the folder."""
    monkeypatch.syspath_prepend(str(FUNCTIONS))

    assert "canary" in find_all(AIRFLOW_DAGS)


def test_a_profile_is_a_declaration_of_its_restarts() -> None:
    """R4: the program that it reproduces goes on after an error that comes back; who declares nothing is stopped."""
    assert resolve_settings(orders(profile="kafka_to_db")).decided_by["restart"] == "profile kafka_to_db"
    assert resolve_settings(orders()).decided_by["restart"] == "default"
