"""The URL of a session on a Spark Connect server."""

import uuid

import pytest
from pyspark.sql.connect.client import DefaultChannelBuilder

from epochline.spark.session import in_session

SESSION = uuid.UUID(int=7, version=4)


@pytest.mark.parametrize("url", ["sc://h:15002", "sc://h:15002/", "sc://h:15002/;", "sc://h:15002/;user_id=ada;"])
def test_a_url_with_or_without_parameters_is_taken(url: str) -> None:
    """Airflow's provider ends the URL of a server without token and login with a slash."""
    read = DefaultChannelBuilder(in_session(url, SESSION))

    assert (read.endpoint, read.session_id) == ("h:15002", str(SESSION))
    assert read.userId == ("ada" if "ada" in url else None)


def test_a_token_stays_in_the_url() -> None:
    assert DefaultChannelBuilder(in_session("sc://localhost:1/;token=a-b_c", SESSION)).token == "a-b_c"
