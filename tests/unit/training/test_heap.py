import gc

from lockstep.training.train import _frozen_heap


def test_the_heap_is_frozen_during_a_fit_and_in_a_fork_that_shares_it_longer() -> None:
    gc.unfreeze()
    with _frozen_heap():
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as the fork server does
    with _frozen_heap():
        pass
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
