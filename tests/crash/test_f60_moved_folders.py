"""The folder of a file sink is moved, is not mounted, or an older copy of it stands in its place."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline import Files, Json
from epochline.errors import SinkError
from epochline.sinks.file_manifest import committed_files
from tests.crash.cases import slow
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.integration.sinks_world import SinksPipeline, new_world

COLUMNS = {"value": "text"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


@pytest.fixture
def world(server: Server, here: Path) -> SinksPipeline:
    """A pipeline of lines to a table and a folder, which shows two epochs."""
    sink = Files(path=str(here), columns=COLUMNS, format="json")
    made = new_world(
        server.new_database(), server.kafka.bootstrap_servers, sink, parse=Json(columns=COLUMNS),
        bad_records="quarantine",
    )  # fmt: skip
    for number in (1, 2):
        made.epoch(line(number))
        made.it.publish()
    return made


def line(number: int) -> str:
    return f'{{"value":"line {number}"}}'


def shown(folder: Path) -> dict[int, str]:
    """What a reader of the folder finds: the lines of each epoch, as one text."""
    return {
        epoch.epoch_id: "".join(Path(file).read_text() for file in epoch.files)
        for epoch in committed_files(str(folder))
    }


def assert_each_line_once(world: SinksPipeline, folder: Path, recovery: Recovery) -> None:
    """Table and folder have the same lines, each once, and a reader of the folder finds every committed epoch."""
    recovery.took()
    table = world.it.sql("SELECT _epoch, value FROM lines ORDER BY _epoch")
    lines = {epoch: json.loads(text)["value"] for epoch, text in shown(folder).items() if text}
    assert list(lines.items()) == table
    assert sorted(shown(folder)) == [
        epoch for (epoch,) in world.it.sql("SELECT epoch_id FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY 1")
    ]


def moved(here: Path) -> None:
    here.rename(here.with_name("there"))


def moved_and_made_again(here: Path) -> None:
    """As where a disk is not mounted."""
    moved(here)
    here.mkdir()


def older_copy(here: Path) -> None:
    """The copy was made after the first epoch."""
    shutil.copytree(here, here.with_name("there"))
    (here / "_epochline/manifest/0000000002.json").unlink()
    shutil.rmtree(here / "epoch=0000000002")


def bring_back(here: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    here.with_name("there").rename(here)


LOST = pytest.mark.parametrize("lose", [slow(moved), slow(moved_and_made_again), older_copy])


@pytest.mark.fault("F60")
@LOST
@pytest.mark.parametrize("value", [slow(line(3), id="rows"), pytest.param("not JSON", id="no rows")])
@pytest.mark.parametrize("step", ["plan", slow("commit"), "publish"])
def test_a_folder_that_lacks_shown_epochs_gets_no_further_ones_until_it_is_back(
    world: SinksPipeline, here: Path, lose: Callable[[Path], None], step: str, value: str, recovery: Recovery
) -> None:
    """Q5, INV-6: a reader would miss the earlier epochs. An epoch without rows would hide the loss for good."""
    world.produce(value)
    if step == "plan":
        lose(here)
        with pytest.raises(SinkError, match="the ledger says that epoch 2 is there, and the manifest (ends|has no)"):
            world.it.asked_to_plan()
        assert world.it.sql("SELECT max(epoch_id) FROM epochline.epochs") == [(2,)]
    elif step == "commit":
        planned, _, _ = world.it.sealed()
        lose(here)
        with pytest.raises(SinkError, match="the ledger says that epoch 2 is there"):
            world.it.commit(planned)
    else:
        world.it.epoch()
        lose(here)
        with pytest.raises(SinkError, match="the ledger says that epoch 2 is there"):
            world.it.publish()
        assert max(shown(here), default=0) < 3

    recovery.last_fault()
    bring_back(here)
    if step != "publish":
        world.it.asked_to_plan() if step == "commit" else world.it.epoch()
    world.it.publish()
    assert_each_line_once(world, here, recovery)


def declared_at(world: SinksPipeline, folder: Path) -> None:
    sinks = (Files(path=str(folder), columns=COLUMNS, format="json"), *world.it.pipeline.targets)
    world.it.pipeline = world.it.pipeline.model_copy(update={"sinks": sinks})


@pytest.mark.fault("F60")
def test_a_folder_that_moved_with_all_its_epochs_goes_on_where_it_is_declared_anew(
    world: SinksPipeline, here: Path, recovery: Recovery
) -> None:
    """Q5: the manifest says whose it is and how far it goes; the folder's name in the ledger is another one."""
    there = here.with_name("there")
    recovery.last_fault()
    here.rename(there)
    declared_at(world, there)

    world.epoch(line(3))
    world.it.publish()

    assert_each_line_once(world, there, recovery)
    assert not here.exists()


@pytest.mark.fault("F60")
@pytest.mark.parametrize("also", ["due there", "shown by a copy left behind"])
def test_a_folder_is_not_declared_anew_before_it_has_all_epochs_of_its_former_name(
    world: SinksPipeline, here: Path, also: str, recovery: Recovery
) -> None:
    """Q5, INV-6: the third epoch would be in the other folder or nowhere, and readers of this one would miss it."""
    there = here.with_name("there")
    world.epoch(line(3))
    if also == "due there":
        here.rename(there)
    else:
        shutil.copytree(here, there)
        world.it.publish()
    before = world.it.pipeline
    declared_at(world, there)
    world.produce(line(4))

    with pytest.raises(SinkError, match=r"the folder was files:.*/here, which has epochs up to 3, and .* epoch 2"):
        world.it.asked_to_plan()

    assert sorted(shown(there)) == [1, 2]
    world.it.pipeline, declared = before, world.it.pipeline
    recovery.last_fault()
    if also == "due there":
        there.rename(here)
        world.it.publish()
    else:
        shutil.rmtree(there)
    here.rename(there)
    world.it.pipeline = declared
    world.it.epoch()
    world.it.publish()
    assert_each_line_once(world, there, recovery)


@pytest.mark.fault("F60")
def test_a_folder_that_is_lost_is_replaced_by_one_under_another_path(
    world: SinksPipeline, here: Path, recovery: Recovery
) -> None:
    """The way that the refusal names: an empty folder under a new name begins with the next epoch, and nobody is misled."""
    shutil.rmtree(here)
    recovery.last_fault()
    declared_at(world, here.with_name("new"))

    world.epoch(line(3))
    world.it.publish()

    recovery.took()
    assert sorted(shown(here.with_name("new"))) == [3]
