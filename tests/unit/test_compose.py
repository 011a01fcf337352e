"""docker-compose.yaml, checked without Docker: its form, and that what it names exists and agrees with the code."""

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from epochline.declare.version import VERSION
from epochline.local import spark
from epochline.local.jars import KAFKA
from epochline.local.part import shipped_settings

PROJECT = Path(__file__).parents[2]
INCLUDE = PROJECT / "include"
SERVER_CONF = INCLUDE / "docker" / "spark-connect.conf"
DOCKERFILE, PYPROJECT = PROJECT / "Dockerfile", PROJECT / "pyproject.toml"
# The variables in which a secret could be written down.
SECRETS = re.compile(r"PASSWORD$|SECRET|TOKEN$|FERNET_KEY|SQL_ALCHEMY_CONN|^CLUSTER_ID$")
REQUIRED = re.compile(r"\$\{(\w+):\?[^}]+\}")

# What of the Compose specification this file uses; anything else is a slip of the pen.
TEXT = {"type": "string", "minLength": 1}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}
NEED = {"enum": ["service_healthy", "service_completed_successfully", "service_started"]}


def exactly(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def each(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


SERVICE = exactly(
    "image environment",
    image={"type": "string", "pattern": r"^[a-z/]+:\d[\w.-]*$"},
    build={"const": "."},
    init={"type": "boolean"},
    restart={"enum": ["no", "unless-stopped"]},
    stop_grace_period=DURATION,
    shm_size={"type": "string", "pattern": r"^\d+mb$"},
    command={"type": "array", "items": TEXT, "minItems": 1},
    network_mode={"const": "service:task-network"},
    # YAML's own true, 1 and null mean other things than one thinks.
    environment=each(TEXT) | {"propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"}},
    ports={"type": "array", "items": {"type": "string"}},
    volumes={"type": "array", "items": {"type": "string", "pattern": "^[^:]+:/[^:]+(:ro)?$"}},
    healthcheck=exactly(
        "test interval timeout retries start_period",
        test={"type": "array", "minItems": 2, "items": TEXT, "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}]},
        interval=DURATION,
        timeout=DURATION,
        start_period=DURATION,
        retries={"type": "integer", "minimum": 1},
    ),
    depends_on=each(exactly("condition", condition=NEED)),
)
PARTS = {"name": TEXT, "services": each(SERVICE), "volumes": each({"type": "null"})}
SCHEMA = exactly("name services volumes", **PARTS) | {"patternProperties": {"^x-": {"type": "object"}}}

COMPOSE_TEXT = (PROJECT / "docker-compose.yaml").read_text()
COMPOSE: Mapping[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: Mapping[str, Any] = COMPOSE["services"]
SETTINGS = sorted({(name, value) for one in SERVICES.values() for name, value in one["environment"].items()})
CONNECTIONS = {name: json.loads(value) for name, value in SETTINGS if name.startswith("AIRFLOW_CONN_")}
MOUNTED = [volume.split(":") for service in SERVICES.values() for volume in service.get("volumes", [])]


def found(pattern: str, file: Path) -> str:
    """The group of a pattern in a file, in which ``^`` is the begin of a line and ``.`` any character."""
    match = re.search(pattern, file.read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def image_environment() -> dict[str, str]:
    pairs = found(r"^ENV (.*?[^\\])$", DOCKERFILE).replace("\\\n", " ").split()
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def server_settings() -> dict[str, str]:
    lines = (line for line in SERVER_CONF.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(maxsplit=1) for line in lines)


def after_its_needs(name: str, seen: tuple[str, ...] = ()) -> None:
    assert name not in seen, f"{name} waits for itself"
    for need in SERVICES[name].get("depends_on", {}):
        after_its_needs(need, (*seen, name))


def test_the_file_has_the_form_that_compose_expects_and_the_services_of_the_architecture() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(COMPOSE)
    cluster = {"spark-master", "spark-worker-1", "spark-worker-2", "spark-connect", "task-network"}
    airflow = {"airflow-init", "airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}
    assert set(SERVICES) == {"kafka", "postgres"} | cluster | airflow
    images = {SERVICES[name]["image"] for name in cluster | airflow}
    assert images == {f"epochline:{VERSION}"}, "the one image"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_that_goes_on_says_how_it_is_and_what_a_service_waits_for_can_happen(name: str) -> None:
    assert ("healthcheck" in SERVICES[name]) == (SERVICES[name]["restart"] == "unless-stopped")
    after_its_needs(name)
    for need, how in SERVICES[name].get("depends_on", {}).items():
        ends = SERVICES[need]["restart"] == "no"
        assert how["condition"] == ("service_completed_successfully" if ends else "service_healthy")


def test_ports_are_published_once_and_on_the_loopback_address_only() -> None:
    published = [port.split(":") for service in SERVICES.values() for port in service.get("ports", [])]

    assert {address for address, *_ in published} == {"127.0.0.1"}
    assert len({port for _, port, *_ in published}) == len(published)


def test_every_mounted_path_exists_and_is_no_source_of_the_image_and_every_volume_is_declared() -> None:
    for source, _, *options in MOUNTED:
        if source.startswith("."):
            assert (PROJECT / source).exists(), source
            assert options == ["ro"], source
        else:
            assert source in COMPOSE["volumes"]
    assert "./include" not in {source for source, *_ in MOUNTED}, "hides the library of the image behind sources"
    assert not any(source.startswith(("./include/epochline", "./plugins")) for source, *_ in MOUNTED)


@pytest.mark.parametrize("name", sorted({name for name, _ in SETTINGS if name.startswith("EPOCHLINE_")}))
def test_every_setting_of_epochline_is_read_by_its_code(name: str) -> None:
    sources = (*INCLUDE.rglob("*.py"), *INCLUDE.rglob("*.sql"))

    assert any(re.search(rf"\b{name}\b", source.read_text()) for source in sources)


def test_every_setting_of_airflow_exists_in_this_version() -> None:
    described = yaml.safe_load((package("airflow") / "config_templates" / "config.yml").read_text())
    options = {
        f"AIRFLOW__{section}__{option}".upper() for section in described for option in described[section]["options"]
    }

    assert {name for name, _ in SETTINGS if name.startswith("AIRFLOW__")} - options == set()


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, v in SETTINGS if SECRETS.search(n)])
def test_no_secret_is_written_down(name: str, value: str) -> None:
    database = rf"postgresql\+psycopg2://airflow:{REQUIRED.pattern}@postgres:5432/airflow"

    assert re.fullmatch(database if name.endswith("SQL_ALCHEMY_CONN") else REQUIRED, value)


def test_connections_lead_to_services_of_this_file_and_hold_no_password_of_their_own() -> None:
    cluster = CONNECTIONS["AIRFLOW_CONN_SPARK_SUBMIT"]
    servers = CONNECTIONS["AIRFLOW_CONN_EPOCHLINE_KAFKA"]["extra"]["bootstrap.servers"]

    assert CONNECTIONS["AIRFLOW_CONN_EPOCHLINE_POSTGRES"]["host"] in SERVICES
    assert cluster["host"].removeprefix("spark://") in SERVICES
    assert str(cluster["port"]) in SERVICES["spark-master"]["command"]
    assert f"BROKER://{servers}" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert {connection["conn_type"] for connection in CONNECTIONS.values()} <= {
        "postgres", "kafka", "spark", "spark_connect",
    }  # fmt: skip
    passwords = [connection["password"] for connection in CONNECTIONS.values() if "password" in connection]
    assert all(map(REQUIRED.fullmatch, passwords))


def test_tasks_reach_the_server_of_spark_on_one_loopback_address_with_a_token_that_is_no_argument() -> None:
    """SEC-4: Spark's client sends a token without TLS to `localhost` only."""
    server, connection = SERVICES["spark-connect"], CONNECTIONS["AIRFLOW_CONN_SPARK_DEFAULT"]
    assert connection["conn_type"] == "spark_connect"
    assert connection["host"] == "localhost"
    assert connection["password"] == server["environment"]["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    assert server["network_mode"] == SERVICES["airflow-scheduler"]["network_mode"] == "service:task-network"

    settings = server_settings()

    assert int(settings["spark.connect.grpc.binding.port"]) == connection["port"]
    assert int(settings["spark.cores.max"]) == connection["extra"]["cores"]
    assert settings["spark.driver.host"] in SERVICES
    assert f"/opt/epochline/{SERVER_CONF.relative_to(PROJECT)}" in " ".join(server["command"])
    assert not any("token" in name for name in settings)
    assert not any("TOKEN" in argument for service in SERVICES.values() for argument in service.get("command", []))


def test_the_server_of_spark_has_the_settings_of_the_embedded_one() -> None:
    assert shipped_settings("spark").items() <= server_settings().items()
    assert (
        server_settings()["spark.scheduler.allocation.file"]
        == f"file:///opt/epochline/{spark.POOLS.relative_to(PROJECT)}"
    )


def test_the_script_makes_every_variable_that_is_required(tmp_path: Path) -> None:
    made, shell = tmp_path / ".env", shutil.which("sh")
    assert shell is not None
    script = [shell, str(INCLUDE / "docker" / "make-env.sh"), str(made)]

    subprocess.run(script, check=True, capture_output=True)

    variables = dict(line.split("=", 1) for line in made.read_text().splitlines())
    assert set(variables) == set(REQUIRED.findall(COMPOSE_TEXT))
    assert all(re.fullmatch(r"[\w=-]{22,}", value) for value in variables.values())
    assert len(set(variables.values())) == len(variables)
    assert made.stat().st_mode & 0o077 == 0
    again = subprocess.run(script, check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert "was left as it is" in again.stderr


def test_both_databases_are_made_with_passwords_from_the_environment() -> None:
    script = (INCLUDE / "docker" / "databases.sql").read_text()
    given = SERVICES["postgres"]["environment"]

    for database in ("epochline", "airflow"):
        assert f"CREATE DATABASE {database} OWNER {database};" in script
    assert set(re.findall(r"\\getenv \w+ (\w+)", script)) <= set(given)
    assert not re.search(r"PASSWORD\s+'", script)


def test_the_servers_are_of_the_versions_that_the_embedded_stack_runs() -> None:
    kafka = found(r'name="kafka_2\.13" rev="([\d.]+)"', KAFKA)
    major = found(r"pginstall(\d+)", INCLUDE / "epochline" / "local" / "postgres.py")

    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka}"
    assert SERVICES["postgres"]["image"] == f"postgres:{major}"


def test_spark_and_its_client_in_the_image_are_of_one_version() -> None:
    spark, client = (found(rf"^{name}==(\S+)", PROJECT / "requirements.txt") for name in ("pyspark", "pyspark-client"))

    assert spark == client


def test_the_class_of_sparks_server_is_among_the_jars_of_pyspark() -> None:
    command = " ".join(SERVICES["spark-connect"]["command"])
    (name,) = re.findall(r"--class (\S+)", command)
    (jar,) = package("pyspark").glob("jars/spark-connect_*.jar")

    assert f"{name.replace('.', '/')}.class" in zipfile.ZipFile(jar).namelist()
    assert "--jars" not in command


def test_postgres_has_the_durability_of_the_embedded_stack() -> None:
    settings = {word for word in SERVICES["postgres"]["command"] if "=" in word}

    assert {"fsync=on", "full_page_writes=on", "synchronous_commit=on"} <= settings
    assert "client_connection_check_interval=2s" in settings
    assert "--data-checksums" in SERVICES["postgres"]["environment"]["POSTGRES_INITDB_ARGS"]


def test_kafka_takes_transactions_as_the_embedded_broker_does() -> None:
    """K17, P9: with one broker a transaction log that wants three copies takes no transaction at all."""
    given = SERVICES["kafka"]["environment"]
    wanted = {
        name: value
        for name, value in shipped_settings("kafka").items()
        if name.startswith(("transaction.", "offsets.topic.")) or name in ("log.retention.ms", "message.max.bytes")
    }

    assert {name: given[f"KAFKA_{name.upper().replace('.', '_')}"] for name in wanted} == wanted
    assert wanted["transaction.state.log.replication.factor"] == wanted["transaction.state.log.min.isr"] == "1"


def test_compose_and_image_agree_on_the_environment() -> None:
    image = image_environment()

    for name, value in SETTINGS:
        assert image.get(name, value) == value, name


def test_the_image_is_of_the_python_that_is_required_and_not_run_by_root() -> None:
    text = DOCKERFILE.read_text()
    required = found(r'requires-python = ">=([\d.]+)', PYPROJECT)

    assert f"ARG BASE=python:{required}-slim-bookworm\nFROM ${{BASE}}\n" in text
    assert f"python{required}/site-packages" in image_environment()["SPARK_HOME"]
    assert "openjdk-17-jre-headless" in text
    assert text.rstrip().splitlines()[-1] == "USER epochline"


def test_the_image_holds_bytecode_of_all_that_it_runs() -> None:
    """Its processes may write none, so each would compile what is not compiled; archives cannot hold any."""
    text = DOCKERFILE.read_text()

    assert "compileall -q -x site-packages /usr/local/lib/python3.11" in text
    assert "compileall -q include spark_jobs plugins dags" in text
    assert "rm /usr/local/lib/python3.11/site-packages/pyspark/python/lib/*.zip" in text
    assert "--no-compile" not in text


def test_what_the_image_copies_reaches_the_builder() -> None:
    sources = re.findall(r"^COPY (.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    let_through = {line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert {name for line in sources for name in line.split()} == let_through


def test_spark_class_comes_with_pyspark() -> None:
    assert os.access(package("pyspark") / "bin" / "spark-class", os.R_OK)
