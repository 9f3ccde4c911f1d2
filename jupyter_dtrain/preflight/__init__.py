"""The things to know before ranks start: facts about each machine, and findings with their fixes.

:mod:`.doctor` asks this machine and the hosts of a world, each of which runs :mod:`.probe` and :mod:`.tcp_check` from
its own copy of the package. Facts and findings (:mod:`.findings`) stay apart: what runs on hosts judges nothing, and
the functions that judge ask nothing.

Under failure: a host that cannot be examined is a finding, not an exception, and every question has a deadline.
"""
