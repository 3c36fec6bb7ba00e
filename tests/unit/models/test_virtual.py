"""The copies of a module that the virtual shards of a process train."""

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.models.virtual import VirtualClassifier
from tests.support import modules


def virtual(num_parts: int) -> VirtualClassifier:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 4))
    shards = VirtualShards(num_parts, [1], 1)
    module = cast(VirtualClassifier, modules.classifier(net, kind=partial(VirtualClassifier, shards=shards)))
    module.trainer = cast(Any, SimpleNamespace(loggers=[]))
    module.on_fit_start()
    return module


def test_parts_share_weights_and_nothing_else() -> None:
    module = virtual(5)
    assert module.parts[0] is module
    for part in module.parts[1:]:
        for own, shared in zip(part.parameters(), module.parameters(), strict=True):
            assert own is not shared
            assert own.data_ptr() == shared.data_ptr()
        assert {each.data_ptr() for each in part.buffers()}.isdisjoint(each.data_ptr() for each in module.buffers())
        assert part.dropouts[0] is not module.dropouts[0]
        assert part.counts is not module.counts
        assert part.parts == []  # else each copy would have copies of those before it


def test_a_change_of_weights_buffers_and_modes_reaches_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = virtual(3)
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            value.fill_(2)
    next(module.parameters()).requires_grad_(False)
    module.eval()
    batch = SimpleNamespace(indices=torch.empty(0))
    monkeypatch.setattr(module.shards, "cut", lambda whole: [batch] * 3)
    for part in module._each_part(lambda part, _: part, cast(Any, batch)):
        assert all(value.eq(2).all() for value in (*part.parameters(), *part.buffers()))
        assert [each.requires_grad for each in part.parameters()] == [False, True, True, True, True, True]
        assert not any(each.training for each in part.modules())
