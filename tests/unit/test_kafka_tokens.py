"""Tokens of Kafka's clients: when another one is fetched, and for which region AWS's signer signs."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from epochline.config.kafka import broker_settings
from epochline.errors import ConfigurationError
from epochline.kafka import tokens
from epochline.kafka.tokens import Tokens, kafka_python_settings, librdkafka_settings

MSK = {"security.protocol": "SASL_SSL", "sasl.mechanism": "aws_msk_iam"}
LIFE = 900


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(at=1000.0)
    monkeypatch.setattr(tokens, "time", SimpleNamespace(time=lambda: clock.at))
    return clock


@pytest.fixture
def regions(now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The regions for which the signer was asked."""
    asked: list[str] = []

    def generate_auth_token(region: str) -> tuple[str, int]:
        asked.append(region)
        return f"token {len(asked)}", int((now.at + LIFE) * 1000)

    signer = ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = SimpleNamespace(generate_auth_token=generate_auth_token)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    return asked


def at(servers: str) -> dict[str, str]:
    return broker_settings("here", {"bootstrap.servers": servers, **MSK})


def test_a_token_is_given_until_half_of_its_life_is_over(now: SimpleNamespace, regions: list[str]) -> None:
    """F53: neither client asks later: librdkafka at four fifths of it, kafka-python when it logs in again."""
    one = Tokens(at("b-1.shop.kafka.eu-west-1.amazonaws.com:9098"))
    given = []
    for seconds in (0, LIFE / 2 - 1, 2, 1):
        now.at += seconds
        given.append(one()[:2])

    assert given == [("token 1", 1900.0), ("token 1", 1900.0), ("token 2", 2351.0), ("token 2", 2351.0)]


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        ("b-1.shop.x1.c2.kafka.us-east-1.amazonaws.com:9098,b-2.shop.kafka.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("boot-a1.c3.kafka-serverless.ap-southeast-2.amazonaws.com:9098", "ap-southeast-2"),
        ("b-1.shop.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("kafka.example.com:9098", "eu-central-1"),
    ],
)
def test_the_region_is_that_of_the_brokers_names_or_else_of_the_environment(
    servers: str, region: str, regions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "amazonaws" not in servers:
        with pytest.raises(ConfigurationError, match="set AWS_REGION"):
            librdkafka_settings(at(servers))
        monkeypatch.setenv("AWS_REGION", "eu-central-1")

    made = librdkafka_settings(at(servers)) | {"python": kafka_python_settings(at(servers))}

    assert (regions, made["sasl.mechanism"], made["python"]["sasl_mechanism"]) == (
        [region],
        "OAUTHBEARER",
        "OAUTHBEARER",
    )


def test_extensions_go_to_both_clients_and_properties_of_the_issuer_to_none() -> None:
    given = {
        "bootstrap.servers": "k:9093", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool-2=",
    }  # fmt: skip
    made = kafka_python_settings(broker_settings("here", given, login="me", password="canary"))

    provider = made.pop("sasl_oauth_token_provider")
    assert provider.extensions() == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2="}
    assert made == {"bootstrap_servers": "k:9093", "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
