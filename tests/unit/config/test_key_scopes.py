"""Scopes of keys, and when keys may change."""

import pytest

from lockstep.config.schema import key_scopes
from lockstep.config.schema.configuration import Config, fields
from lockstep.config.schema.sections import Scope


@pytest.mark.parametrize(
    ("key", "scope"),
    [
        ("seed", Scope.NUMBERS),
        ("augment.mixup", Scope.NUMBERS),
        ("trainer.max_epochs", Scope.LENGTH),
        ("trainer.devices", Scope.PLACE),
        ("strategy.variables.NCCL_DEBUG", Scope.PLACE),
        ("data.memory", Scope.PLACE),
        ("logger.tensorboard.name", Scope.WATCHING),
        ("silent", Scope.OUTPUT),
        ("sweep.name", Scope.SWEEP),
        ("search.sampler.seed", Scope.SWEEP),
        ("cluster", Scope.SUBMISSION),
        ("no.such.key", Scope.NUMBERS),
    ],
)
def test_a_key_has_the_scope_of_its_annotation_or_its_section(key: str, scope: Scope) -> None:
    assert key_scopes.scope(key) is scope


def test_keys_of_a_target_count_for_that_target() -> None:
    folder = {"data": {"_target_": "lockstep.data.image_folder"}}
    assert key_scopes.scope("data.cache", folder) is Scope.PLACE
    assert key_scopes.scope("data.split_seed", folder) is Scope.NUMBERS
    mine = {"data": {"_target_": "mine.images"}}
    assert key_scopes.scope("data.cache", mine) is Scope.NUMBERS, "of the same name, and somebody's own"


def test_a_resumed_sweep_may_be_computed_elsewhere_but_not_otherwise_nor_longer() -> None:
    free = key_scopes.FREE_IN_A_RESUMED_SWEEP
    assert {key_scopes.scope(key) for key in ("trainer.devices", "strategy.name", "compile", "silent")} <= free
    assert not {key_scopes.scope(key) for key in ("trainer.precision", "trainer.max_epochs", "seed")} & free


def test_the_whole_command_has_its_keys_once() -> None:
    whole = key_scopes.names(*key_scopes.SAME_FOR_ALL_JOBS)
    assert whole == ["silent", "changed_data", "dry_run", "launcher", "sweep", "search", "cluster"]
    assert set(whole) <= set(fields(Config))
