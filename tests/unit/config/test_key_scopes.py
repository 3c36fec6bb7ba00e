"""Scopes of keys, and when keys may change."""

import pytest

from lockstep.config.schema import key_scopes
from lockstep.config.schema.sections import Scope

FOLDER = {"data": {"_target_": "lockstep.data.image_folder"}}


@pytest.mark.parametrize(
    ("key", "tree", "scope"),
    [
        ("seed", None, Scope.NUMBERS),
        ("augment.mixup", None, Scope.NUMBERS),
        ("trainer.max_epochs", None, Scope.LENGTH),
        ("trainer.devices", None, Scope.PLACE),
        ("strategy.variables.NCCL_DEBUG", None, Scope.PLACE),
        ("data.memory", None, Scope.PLACE),
        ("data.cache", FOLDER, Scope.PLACE),
        ("data.split_seed", FOLDER, Scope.NUMBERS),
        # of a custom source, whose key has the same name
        ("data.cache", {"data": {"_target_": "mine.images"}}, Scope.NUMBERS),
        ("logger.tensorboard.name", None, Scope.WATCHING),
        ("silent", None, Scope.OUTPUT),
        ("sweep.name", None, Scope.SWEEP),
        ("search.sampler.seed", None, Scope.SWEEP),
        ("cluster", None, Scope.SUBMISSION),
        ("no.such.key", None, Scope.NUMBERS),
    ],
)
def test_scope(key: str, tree: dict[str, object] | None, scope: Scope) -> None:
    assert key_scopes.scope(key, tree) is scope


def test_resumed_sweep_free_keys() -> None:
    """A resumed sweep may be computed elsewhere, but not otherwise nor longer."""
    free = key_scopes.FREE_IN_A_RESUMED_SWEEP
    assert {
        key_scopes.scope(key) for key in ("trainer.devices", "strategy.name", "compile", "silent")
    } <= free
    assert (
        not {key_scopes.scope(key) for key in ("trainer.precision", "trainer.max_epochs", "seed")}
        & free
    )
