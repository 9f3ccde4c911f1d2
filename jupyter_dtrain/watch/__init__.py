"""The parent process of the ranks of one host: it forks them, knows how they end, and dies with its lease.

:mod:`.watch` is its loop, and :mod:`.rank_process` one rank as the loop sees it.

Under failure: a rank that dies is reported with its true exit status and its last output, and what it leaves behind is
killed (:mod:`.orphans`). A watch that is killed takes its ranks along.
"""
