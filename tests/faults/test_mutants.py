"""The mutants of ``make mutants`` change the code that is there now."""

from __future__ import annotations

import pytest

from tests.faults.draws import draw
from tests.faults.mutants import DRAWS, MUTANTS, CodeGone, mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_is_a_program_that_differs(mutant):
    """Whoever moves the code that one changes moves the mutant along."""
    compile(mutated(mutant), mutant.file, "exec")
    assert mutant.before != mutant.after


def test_a_mutant_whose_code_is_gone_says_so():
    with pytest.raises(CodeGone, match=r"release-late: jupyter_dtrain/steward/release\.py has 0 times"):
        mutated(MUTANTS[0]._replace(before="what nobody has written"))


def test_a_draw_is_the_same_each_time():
    assert [str(draw(1, number)) for number in range(DRAWS)] == [str(draw(1, number)) for number in range(DRAWS)]
