"""The folder of a sweep: its state is that of its files, whoever looks and whatever was killed."""

import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import SweepFolder, create_sweep
from precgui.sweeps.lock import FileLock
from precgui.sweeps.report import sweep_document
from precgui.sweeps.runner import next_member
from tests.sweeps.sample_sweep import small_spec, small_sweep, write_member


def _status(folder: SweepFolder) -> dict[str, str]:
    return {state.member.name: state.status for state in folder.states()}


def test_that_the_state_is_that_of_the_files(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    for name, status, loss in (
        ("s01-fp32", "completed", 0.5), ("s01-bf16-amp", "failed", 0.5), ("s02-fp32", "stopped", 0.5),
        ("s02-bf16-amp", None, 0.5), ("s01-fp32-twin", "completed", float("nan")),
    ):  # fmt: skip
        write_member(folder, folder.plan.member(name), status=status, loss=loss)
    assert _status(folder) == {
        "warm-up": "waiting", "s01-fp32": "completed", "s01-bf16-amp": "failed", "s02-fp32": "cut off",
        "s02-bf16-amp": "running", "s01-fp32-twin": "completed", "s02-fp32-twin": "waiting",
    }  # fmt: skip
    twin = next(state for state in folder.states() if state.member.name == "s01-fp32-twin")
    assert not twin.came_through  # its loss is NaN


def test_that_a_run_that_was_cut_off_is_put_aside_and_runs_again(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    member = folder.plan.members[0]
    for _ in range(2):
        write_member(folder, member, status="stopped")
        assert next_member(folder.states()) == member
        folder.discard(member)
    assert next_member(folder.states()) == member
    assert sorted(path.name for path in (folder.path / "discarded").iterdir()) == ["warm-up.1.h5", "warm-up.2.h5"]


def test_that_the_weights_of_a_run_are_put_aside_with_it(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    member = folder.plan.members[0]
    write_member(folder, member, status="stopped")
    beside = folder.path_of(member).with_suffix(".safetensors")
    beside.write_bytes(b"weights")
    folder.discard(member)
    assert not beside.exists()
    assert (folder.path / "discarded" / "warm-up.1.safetensors").read_bytes() == b"weights"


def test_that_what_another_process_changes_is_seen(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    other = SweepFolder(folder.path)
    other.skip("s01-fp32")
    other.put_first("s02-bf16-amp")
    other.add_seeds(1)
    folder.reload()
    assert folder.plan == other.plan
    assert _status(folder)["s01-fp32"] == "skipped"
    assert next_member(folder.states()).name == "s02-bf16-amp"
    assert folder.plan.seeds == [1, 0, 2] or folder.plan.seeds == [0, 1, 2]


def test_that_an_arm_that_fails_twice_is_given_up(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=4)
    for name in ("s01-bf16-amp", "s02-bf16-amp"):
        write_member(folder, folder.plan.member(name), status="failed")
    status = _status(folder)
    assert {status["s03-bf16-amp"], status["s04-bf16-amp"]} == {"given up"}
    assert status["s03-fp32"] == "waiting"


def test_that_a_changed_config_is_refused_and_not_mixed_in(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    spec = folder.path / "sweep.toml"
    spec.write_text(spec.read_text().replace("max_steps = 5", "max_steps = 6").replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(SweepError, match="was changed after warm-up was planned"):
        SweepFolder(folder.path)


def test_that_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SweepError, match="already holds something"):
        create_sweep(tmp_path, small_spec())
    with pytest.raises(SweepError, match="not the folder of a sweep"):
        SweepFolder(tmp_path)
    folder = small_sweep(tmp_path)
    with pytest.raises(SweepError, match="name the folder alone to go on with it"):
        create_sweep(folder.path, small_spec())


def test_that_the_document_has_the_keys_that_others_rely_on(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    write_member(folder, folder.plan.member("s01-fp32"))
    document = sweep_document(folder)
    assert (document.done, document.left) == (1, 6)
    row = next(row for row in document.members if row.name == "s01-fp32")
    assert (row.precision, row.seed, row.block, row.status, row.metric) == ("fp32", 0, 1, "completed", 0.9)
    assert row.run == str(folder.path / "members/s01-fp32.h5")
    assert [r.run for r in document.members if r.status == "waiting"] == [None] * 6


def test_that_a_pause_is_seen_by_all(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    other = SweepFolder(folder.path)
    other.pause()
    assert folder.paused
    folder.unpause()
    folder.unpause()
    assert not other.paused


def _hold(path: str, held: Event) -> None:
    lock = FileLock(Path(path))
    assert lock.acquire()
    held.set()
    time.sleep(60)


def test_that_a_lock_holds_one_owner_and_does_not_outlive_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, path = context.Event(), tmp_path / "lock"
    process = context.Process(target=_hold, args=(str(path), held))
    process.start()
    lock = FileLock(path)
    try:
        assert held.wait(60)
        assert not lock.acquire()
        assert lock.owner()["pid"] == process.pid
    finally:
        process.kill()
        process.join()
    assert lock.owner() is None
    assert lock.acquire()
    assert not FileLock(path).acquire()
    lock.release()
    lock.release()
    again = FileLock(path)
    assert again.acquire()
    again.release()
