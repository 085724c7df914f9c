"""A saved config.yaml in a glmexp that has changed since."""

from pathlib import Path

import pytest
import yaml

from glmexp.config import UserError, compose, load, save


def written_without(path: Path, group: str, field: str) -> Path:
    save(compose(["method=lora"]).config, path)
    content = yaml.safe_load(path.read_text())
    del content[group][field]
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("group", "field"), [("data", "revision"), ("data", "turns"), ("method", "quant_type"), ("comm", "sequence_parallel_size")]
)
def test_a_field_that_came_later_has_its_default(group: str, field: str, tmp_path: Path) -> None:
    assert load(written_without(tmp_path / "config.yaml", group, field)) == compose(["method=lora"]).config


def test_a_field_that_has_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        load(written_without(tmp_path / "config.yaml", "train", "seed"))
    assert all(word in str(raised.value) for word in ("config.yaml lacks train.seed", "another version"))
    assert "~" not in str(raised.value)
