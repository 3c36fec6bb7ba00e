"""What the check makes of overrides is what Hydra makes of them: it puts values in itself, for a sweep has many."""

import copy
import functools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from lockstep.config import compose, overrides
from lockstep.config.compose import composed
from lockstep.config.options import REFUSALS, groups, parsed

GROUPS = groups(compose.CONF)
TEXTS = (
    *("seed=1", "+seed=1", "++seed=1", "~seed", "~seed=0", "~seed=1", "~name", "name=x", "+name=x", "++name=x"),
    *("sed=1", "+sed=1", "++sed=1", "~sed", "sed.a=1", "+sed.a=1", "seed.a=1"),
    *("optimizer.lr=1", "optimizer.lrr=1", "+optimizer.lrr=1", "~optimizer.lr", "+optimizer.lr=1", "optimizer.x.y=1"),
    *("callbacks.timer=null", "~callbacks.timer", "callbacks.timer={a:1}", "+callbacks.timer={a:1}"),
    *("+callbacks.mine={a:1}", "callbacks.mine.a=2", "callbacks.mine={a:3}", "++callbacks.mine={b:3}"),
    *(
        "callbacks.timer._target_=x",
        "trainer.loads=[1,2]",
        "+trainer.loads=[1]",
        "trainer.loads=null",
        "~trainer.loads",
    ),
    *("notify={url:x}", "notify={url:x,other:1}", "+notify={other:1}", "data={_target_:x}", "resume=null", "~resume"),
)


@functools.cache
def of_hydra(texts: tuple[str, ...]) -> Any:
    """The values of a configuration as Hydra composes it, None where it refuses an override."""
    try:
        return OmegaConf.to_container(composed(texts), resolve=False)
    except REFUSALS:
        return None


@functools.cache
def defaults() -> DictConfig:
    return composed([])


def of_ours(texts: tuple[str, ...]) -> Any:
    cfg = copy.deepcopy(defaults())
    faults = overrides._put_in(cfg, [parsed(text) for text in texts], GROUPS)
    return None if faults else OmegaConf.to_container(cfg, resolve=False)


def test_each_override_has_the_result_that_hydra_gives_it() -> None:
    assert [text for text in TEXTS if of_ours((text,)) != of_hydra((text,))] == []


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(TEXTS), min_size=2, max_size=4).map(tuple))
def test_several_have_it_too(texts: tuple[str, ...]) -> None:
    assert of_ours(texts) == of_hydra(texts)
