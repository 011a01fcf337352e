"""docker-compose.yaml, checked without Docker: its form, and that what it names exists and agrees with the code."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from epochline.local import kafka

PROJECT = Path(__file__).parents[2]
COMPOSE = PROJECT / "docker-compose.yaml"
INCLUDE = PROJECT / "include"
JARS = INCLUDE / "epochline" / "local" / "ivy"
# The variables in which a secret could be written down.
SECRETS = re.compile(r"PASSWORD$|SECRET|FERNET_KEY|SQL_ALCHEMY_CONN|^CLUSTER_ID$")
REQUIRED = re.compile(r"\$\{(\w+):\?[^}]+\}")

# What of the Compose specification this file uses; anything else is a slip of the pen.
TEXT = {"type": "string", "minLength": 1}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}
NEED = {"enum": ["service_healthy", "service_completed_successfully", "service_started"]}
HEALTHCHECK = {
    "type": "object",
    "additionalProperties": False,
    "required": ["test", "interval", "timeout", "retries", "start_period"],
    "properties": {
        "test": {"type": "array", "minItems": 2, "items": TEXT, "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}]},
        "interval": DURATION,
        "timeout": DURATION,
        "start_period": DURATION,
        "retries": {"type": "integer", "minimum": 1},
    },
}
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "environment"],
    "properties": {
        "image": {"type": "string", "pattern": r"^[a-z/]+:\d[\w.-]*$"},
        "build": {"const": "."},
        "init": {"type": "boolean"},
        "restart": {"enum": ["no", "unless-stopped"]},
        "stop_grace_period": DURATION,
        "shm_size": {"type": "string", "pattern": r"^\d+mb$"},
        "command": {"type": "array", "items": TEXT, "minItems": 1},
        "environment": {
            "type": "object",
            "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"},
            "additionalProperties": TEXT,  # YAML's own true, 1 and null mean other things than one thinks
        },
        "ports": {"type": "array", "items": {"type": "string"}},
        "volumes": {"type": "array", "items": {"type": "string", "pattern": "^[^:]+:/[^:]+(:ro)?$"}},
        "healthcheck": HEALTHCHECK,
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["condition"],
                "additionalProperties": False,
                "properties": {"condition": NEED},
            },
        },
    },
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "services", "volumes"],
    "patternProperties": {"^x-": {"type": "object"}},
    "properties": {
        "name": TEXT,
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
    },
}


def load():
    return yaml.safe_load(COMPOSE.read_text())


SERVICES = load()["services"]
SETTINGS = sorted({(name, value) for one in SERVICES.values() for name, value in one["environment"].items()})


def dockerfile_environment():
    block = re.search(r"^ENV (.*?[^\\])$", (PROJECT / "Dockerfile").read_text(), re.DOTALL | re.MULTILINE)
    return dict(pair.split("=", 1) for pair in block[1].replace("\\\n", " ").split())


def pinned(package):
    return re.search(rf"^{package}==(\S+)", (PROJECT / "requirements.txt").read_text(), re.MULTILINE)[1]


def after_its_needs(name, seen=()):
    assert name not in seen, f"{name} waits for itself"
    for need in SERVICES[name].get("depends_on", {}):
        after_its_needs(need, (*seen, name))


def test_the_file_has_the_form_that_compose_expects():
    jsonschema.Draft202012Validator(SCHEMA).validate(load())


def test_the_services_are_those_of_the_architecture():
    assert set(SERVICES) == {
        "kafka",
        "postgres",
        "spark-master",
        "spark-worker-1",
        "spark-worker-2",
        "airflow-init",
        "airflow-api-server",
        "airflow-scheduler",
        "airflow-dag-processor",
    }


def test_airflow_and_spark_run_from_the_one_image():
    images = {service["image"] for name, service in SERVICES.items() if name.startswith(("airflow", "spark"))}

    version = re.search('^version = "(.+)"', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert images == {f"epochline:{version}"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_that_goes_on_says_how_it_is(name):
    service = SERVICES[name]

    assert ("healthcheck" in service) == (service["restart"] == "unless-stopped")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_a_service_waits_for_can_happen(name):
    after_its_needs(name)

    for need, how in SERVICES[name].get("depends_on", {}).items():
        ends = SERVICES[need]["restart"] == "no"
        assert how["condition"] == ("service_completed_successfully" if ends else "service_healthy")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_ports_are_published_on_the_loopback_address_only(name):
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_no_two_services_publish_one_port():
    published = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]

    assert len(set(published)) == len(published)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_mounted_path_exists_and_every_volume_is_declared(name):
    declared = load()["volumes"]

    for volume in SERVICES[name].get("volumes", []):
        source, _, options = volume.partition(":")
        if source.startswith("."):
            assert (PROJECT / source).exists(), source
            assert options.endswith(":ro")
        else:
            assert source in declared


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, v in SETTINGS if n.startswith("EPOCHLINE_")])
def test_every_setting_of_epochline_is_read_by_its_code(name, value):
    sources = (*INCLUDE.rglob("*.py"), *INCLUDE.rglob("*.sql"))

    assert any(re.search(rf"\b{name}\b", source.read_text()) for source in sources)


def airflow_options():
    """Sections and options of Airflow's description of its configuration, read without importing Airflow."""
    folder = Path(importlib.util.find_spec("airflow").origin).parent / "config_templates"
    described = yaml.safe_load((folder / "config.yml").read_text())
    return {(section, option) for section, body in described.items() for option in body["options"]}


@pytest.mark.parametrize("name", sorted({name for name, _ in SETTINGS if name.startswith("AIRFLOW__")}))
def test_every_setting_of_airflow_exists_in_this_version(name):
    section, option = name.removeprefix("AIRFLOW__").lower().split("__")

    assert (section, option) in airflow_options()


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, v in SETTINGS if SECRETS.search(n)])
def test_no_secret_is_written_down(name, value):
    if name.endswith("SQL_ALCHEMY_CONN"):
        value = re.fullmatch(r"postgresql\+psycopg2://airflow:(.+)@postgres:5432/airflow", value)[1]

    assert REQUIRED.fullmatch(value)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, v in SETTINGS if n.startswith("AIRFLOW_CONN_")])
def test_connections_are_json_without_a_password_of_their_own(name, value):
    connection = json.loads(value)

    assert connection["conn_type"] in {"postgres", "kafka", "spark"}
    assert REQUIRED.fullmatch(connection.get("password", "${NONE:?needed}"))


def test_connections_lead_to_services_of_this_file():
    connections = {name: json.loads(value) for name, value in SETTINGS if name.startswith("AIRFLOW_CONN_")}
    spark = connections["AIRFLOW_CONN_SPARK_DEFAULT"]
    servers = connections["AIRFLOW_CONN_EPOCHLINE_KAFKA"]["extra"]["bootstrap.servers"]

    assert connections["AIRFLOW_CONN_EPOCHLINE_POSTGRES"]["host"] in SERVICES
    assert spark["host"].removeprefix("spark://") in SERVICES
    assert str(spark["port"]) in SERVICES["spark-master"]["command"]
    assert f"BROKER://{servers}" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_the_script_makes_every_variable_that_is_required(tmp_path):
    made = tmp_path / ".env"
    script = [shutil.which("sh"), str(INCLUDE / "docker" / "make-env.sh"), str(made)]

    subprocess.run(script, check=True, capture_output=True)

    variables = dict(line.split("=", 1) for line in made.read_text().splitlines())
    assert set(variables) == set(REQUIRED.findall(COMPOSE.read_text()))
    assert all(re.fullmatch(r"[\w=-]{22,}", value) for value in variables.values())
    assert len(set(variables.values())) == len(variables)
    assert made.stat().st_mode & 0o077 == 0
    again = subprocess.run(script, check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert "was left as it is" in again.stderr


def test_both_databases_are_made_with_passwords_from_the_environment():
    script = (INCLUDE / "docker" / "databases.sql").read_text()
    given = SERVICES["postgres"]["environment"]

    for database in ("epochline", "airflow"):
        assert f"CREATE DATABASE {database} OWNER {database};" in script
    assert set(re.findall(r"\\getenv \w+ (\w+)", script)) <= set(given)
    assert not re.search(r"PASSWORD\s+'", script)


def test_the_servers_are_of_the_versions_that_the_embedded_stack_runs():
    kafka = re.search(r'name="kafka_2\.13" rev="([\d.]+)"', (JARS / "kafka.xml").read_text())[1]
    major = re.search(r"pginstall(\d+)", (INCLUDE / "epochline" / "local" / "postgres.py").read_text())[1]

    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka}"
    assert SERVICES["postgres"]["image"] == f"postgres:{major}"


def test_the_connector_in_the_image_is_of_pysparks_version():
    spark = re.search(r'name="spark-sql-kafka-0-10_2\.13" rev="([\d.]+)"', (JARS / "spark.xml").read_text())[1]

    assert spark == pinned("pyspark") == pinned("pyspark-client")


def test_postgres_has_the_durability_of_the_embedded_stack():
    settings = {word for word in SERVICES["postgres"]["command"] if "=" in word}

    assert {"fsync=on", "full_page_writes=on", "synchronous_commit=on"} <= settings
    assert "client_connection_check_interval=2s" in settings
    assert "--data-checksums" in SERVICES["postgres"]["environment"]["POSTGRES_INITDB_ARGS"]


def test_kafka_takes_transactions_as_the_embedded_broker_does():
    """K17, P9: with one broker a transaction log that wants three copies takes no transaction at all."""
    given = SERVICES["kafka"]["environment"]
    wanted = {
        name: value
        for name, value in kafka._SETTINGS.items()
        if name.startswith(("transaction.", "offsets.topic.")) or name in ("log.retention.ms", "message.max.bytes")
    }

    assert {name: given[f"KAFKA_{name.upper().replace('.', '_')}"] for name in wanted} == wanted
    assert wanted["transaction.state.log.replication.factor"] == wanted["transaction.state.log.min.isr"] == "1"


def test_the_image_lists_exactly_the_jars_of_the_lock_file():
    locked = [line.split()[1] for line in (JARS / "spark.sha256").read_text().splitlines()]

    assert dockerfile_environment()["EPOCHLINE_SPARK_JARS"].split(",") == [f"/opt/spark-jars/{jar}" for jar in locked]


def test_compose_and_image_agree_on_the_environment():
    image = dockerfile_environment()

    for name, value in SETTINGS:
        assert image.get(name, value) == value, name


def test_the_image_is_of_the_python_that_is_required_and_not_run_by_root():
    text = (PROJECT / "Dockerfile").read_text()
    required = re.search(r'requires-python = ">=([\d.]+)', (PROJECT / "pyproject.toml").read_text())[1]

    assert f"FROM python:{required}-slim-bookworm" in text
    assert f"python{required}/site-packages" in dockerfile_environment()["SPARK_HOME"]
    assert "openjdk-17-jre-headless" in text
    assert text.rstrip().splitlines()[-1] == "USER epochline"


def test_the_image_holds_bytecode_of_all_that_it_runs():
    """Its processes may write none, so each would compile what is not compiled; archives cannot hold any."""
    text = (PROJECT / "Dockerfile").read_text()

    assert "compileall -q -x site-packages /usr/local/lib/python3.11" in text
    assert "compileall -q include spark_jobs plugins dags" in text
    assert "rm /usr/local/lib/python3.11/site-packages/pyspark/python/lib/*.zip" in text
    assert "--no-compile" not in text


def test_no_service_hides_the_library_of_the_image_behind_sources():
    mounted = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}

    assert not {one for one in mounted if one.startswith(("./include/epochline", "./plugins"))}
    assert "./include" not in mounted


def test_what_the_image_copies_reaches_the_builder():
    sources = re.findall(r"^COPY (.+) \S+$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
    let_through = {line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert {name for line in sources for name in line.split()} == let_through


def test_spark_class_comes_with_pyspark():
    spark = Path(importlib.util.find_spec("pyspark").origin).parent

    assert os.access(spark / "bin" / "spark-class", os.R_OK)
