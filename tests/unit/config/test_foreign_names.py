"""Names of other frameworks: each is refused with a line of settings that exist, and that no near name gives."""

import pytest
from omegaconf import OmegaConf

from lockstep.config import overrides
from lockstep.config.composing.compose import DEFAULT, groups, plain_tree
from lockstep.config.errors import ConfigError
from lockstep.config.schema.legal_keys import FOREIGN_NAMES, meant_key
from lockstep.system import hardware
from lockstep.system.trees import leaves
from tests.support.composed import composed_once

GROUPS = groups(*DEFAULT.folders)


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "compose_config", composed_once)


@pytest.mark.parametrize("line", FOREIGN_NAMES)
def test_a_line_has_keys_and_groups_of_today(line: str) -> None:
    words = [word for word in line.split() if "=" in word]
    config = composed_once([word for word in words if "..." not in word], with_hydra=True)
    keys = dict(leaves(OmegaConf.to_container(config, resolve=False), ""))
    assert {word.partition("=")[0] for word in words} <= {*keys, *GROUPS}


@pytest.mark.parametrize(
    ("line", "name"), [(line, name) for line, names in FOREIGN_NAMES.items() for name in names.split()]
)
def test_a_name_is_refused_with_its_line_which_no_near_name_gives(
    monkeypatch: pytest.MonkeyPatch, line: str, name: str
) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 1)
    with pytest.raises(ConfigError) as caught:
        overrides.check([name if "=" in name else f"{name}=3" if "." in name else f"trainer.{name}=3"])
    assert str(caught.value).endswith((f": write {line}", f": write {line.replace('...', '3')}"))
    meant = meant_key(plain_tree(composed_once([]))[0], [name], GROUPS)
    assert [f"{key}=..." for key in meant] != [line]


@pytest.mark.parametrize("text", ["callbacks.early_stopping.monitor=x", "+callbacks.early_stopping.patience=3"])
def test_missing_section(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write callbacks=early_stopping$"):
        overrides.check([text])
