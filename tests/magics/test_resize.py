"""``%distributed resize``: its arguments in any order, its words, its help."""

from __future__ import annotations


def test_ranks_are_dropped_by_the_magic(ranks):
    """With the number of ranks or without it, beside names; the words stand below the cell, and labels are new."""
    ranks.ok("%%distributed\nimport os\nown = os.environ['RANK']")
    dropped = ranks.ok("%distributed resize --drop 0")
    said = ranks.ok("%%distributed\nprint('I was', own)")
    ranks.ok("%distributed resize 3 own")
    both = ranks.ok("%distributed resize --drop -1 2 --from 0 own")

    assert dropped.display_texts[0].startswith("The world has 2 ranks instead of 3 after")
    assert dropped.lines[0] == "Rank 1 is rank 0 now, rank 2 is rank 1."
    assert sorted(said.lines) == ["[0] I was 1", "[1] I was 2"]
    assert both.display_texts[0].startswith("The world has 2 ranks instead of 3 after")
    assert both.lines[0].startswith("Samplers")
    ranks.ok("%distributed resize 3 --from 0 own")
    assert ranks.ok("%%rank 2\nown").display_texts == ["[2] '1'"]


def test_a_line_that_asks_for_no_resize_says_what_it_lacks(ranks):
    for line, words in (
        ("", "Name the number of ranks that the world is to have, or the ranks to drop"),
        ("own", "Name the number of ranks"),
        ("3x", "'3x' is not a number of ranks"),
        ("--drop all", "These are all ranks of the world: %distributed stop ends it"),
        ("3 --drop 1", "Without rank 1 this world of 3 has 2 ranks, not 3: leave out 3"),
        ("--drop 7", "There is no rank 7: this world has ranks 0 to 2"),
    ):
        assert words in ranks.run(f"%distributed resize {line}").traceback


def test_its_help_and_completion_know_the_option(ranks):
    assert "--drop RANKS" in ranks.ok("%distributed resize -h").out
    assert "--drop" in ranks.complete("%distributed resize --")
    assert ranks.complete("%distributed resize --drop ") == ["-1", "0", "0-2", "1", "2", "all"]
