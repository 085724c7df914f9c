"""A checkpoint is whole or said to be damaged, and the one that a path means is found or refused."""

import json
import zipfile

import pytest

from glmexp.config.errors import UserError
from glmexp.trial import saved


def write(run, step, size=5, **state):
    """A checkpoint as far as names and sizes go."""
    folder = run / saved.FOLDER / saved.tag(step)
    folder.mkdir(parents=True)
    (folder / "a.pt").write_bytes(b"x" * size)
    (folder / saved.STATE).write_text(json.dumps({"step": step, "files": {"a.pt": 5}, **state}))
    return folder


def test_whole_ones_are_listed_oldest_first(tmp_path):
    for step in (1000000, 20, 3):
        write(tmp_path, step)
    write(tmp_path, 7, size=4)
    (tmp_path / saved.FOLDER / ".step-000009.saving").mkdir()
    (tmp_path / saved.FOLDER / "step-000011").write_text("no folder")
    assert [item.step for item in saved.checkpoints(tmp_path)] == [3, 20, 1000000]
    assert [path.name for path in saved.folders(tmp_path)] == ["step-000003", "step-000007", "step-000020", "step-1000000"]
    assert saved.checkpoints(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "a.pt").write_bytes(b"x"), "a.pt has 1 bytes and should have 5"),
        (lambda folder: (folder / "a.pt").unlink(), "a.pt is not there"),
        (lambda folder: (folder / saved.STATE).unlink(), "state.json is not there"),
        (lambda folder: (folder / saved.STATE).write_text('{"step": 3, "fil'), "state.json cannot be read"),
        (lambda folder: (folder / saved.STATE).write_text("[]"), "state.json cannot be read"),
        (lambda folder: (folder / saved.STATE).write_text('{"step": 3}'), "state.json cannot be read"),
    ],
)
def test_damage_is_named_and_the_next_move_too(tmp_path, damage, words):
    write(tmp_path, 2)
    folder = write(tmp_path, 3)
    damage(folder)
    assert saved.damage(folder) == words
    for path in (folder, tmp_path):
        with pytest.raises(UserError) as refused:
            saved.find(path)
        assert f"{folder} is damaged: {words}" in str(refused.value)
        assert "step-000002" in str(refused.value)


def test_a_path_means_a_checkpoint_or_a_runs_newest(tmp_path):
    first, second = write(tmp_path, 2), write(tmp_path, 10)
    assert saved.find(first).step == 2
    assert saved.find(tmp_path).path == second
    assert saved.find(tmp_path / saved.FOLDER).path == second
    elsewhere = first.rename(tmp_path / "copied")
    assert saved.find(elsewhere).step == 2


def test_nothing_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        saved.find(tmp_path / "none")
    with pytest.raises(UserError, match="holds no checkpoint"):
        saved.find(tmp_path)
    write(tmp_path, 4)
    with pytest.raises(UserError, match="what is kept there: step-000004"):
        saved.find(tmp_path / saved.FOLDER / "step-000002")


def test_a_flipped_bit_is_found_by_its_checksum(tmp_path):
    file = tmp_path / "a.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data/0", b"weights" * 1000)
    assert saved.corruption(file) is None
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    assert "checksum of data/0" in saved.corruption(file)
    file.write_bytes(content[:100])
    assert "cannot be read" in saved.corruption(file)


def test_the_best_one_counts_while_it_is_whole(tmp_path):
    assert saved.best(tmp_path) is None
    folder = write(tmp_path, 4)
    content = {"tag": folder.name, "score": "loss", "value": 1.5, "step": 4}
    (tmp_path / saved.FOLDER / saved.BEST).write_text(json.dumps(content))
    assert saved.best(tmp_path) == content
    (folder / "a.pt").unlink()
    assert saved.best(tmp_path) is None
