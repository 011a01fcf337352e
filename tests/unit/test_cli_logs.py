"""The lines of a task's log, as Airflow's API gives its messages."""

from epochline.cli.logs import lines_of

MOMENT = "2026-03-01T12:00:01.5Z"


def test_what_airflow_says_of_itself_is_left_out_unless_it_is_a_warning() -> None:
    messages = [
        {"event": "::group::Pre Execute", "level": "info"},
        {"timestamp": MOMENT, "event": "bundles loaded", "level": "info"},
        {"timestamp": MOMENT, "event": "the DAG file fails", "level": "error"},
        {"event": "::endgroup::"},
        {"timestamp": MOMENT, "event": "epoch 1 is planned", "level": "info"},
        {"event": "::group::of my own"},
        {"event": "a line without a time"},
    ]

    assert list(lines_of(messages)) == [
        "12:00:01 ERROR the DAG file fails",
        "12:00:01 epoch 1 is planned",
        "         a line without a time",
    ]


def test_an_error_is_shown_with_its_places_and_one_of_airflow_without() -> None:
    frame = {"filename": "parse.py", "lineno": 3, "name": "parse"}
    mine = {"exc_type": "ValueError", "exc_value": "oh", "frames": [frame]}
    airflows = {"exc_type": "AirflowFailException", "exc_value": "epoch 1 was aborted", "frames": [frame]}

    lines = list(lines_of([{"event": "failed", "level": "error", "error_detail": [mine, airflows]}]))

    assert lines == [
        "         ERROR failed",
        "           parse.py:3 in parse",
        "         ValueError: oh",
        "         AirflowFailException: epoch 1 was aborted",
    ]
