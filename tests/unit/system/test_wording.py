"""Numbers in sentences."""

from lockstep.system.wording import plural


def test_a_count_has_the_noun_that_fits_it() -> None:
    assert [plural(count, "run") for count in (0, 1, 2, 1000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert [plural(count, "class", "classes") for count in (1, 2)] == ["1 class", "2 classes"]
