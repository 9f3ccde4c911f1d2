"""The things to know before ranks start: facts about each machine, and findings with their cures.

:mod:`.doctor` asks this machine and the hosts of a world over ssh, and :mod:`.findings` judges the answers. Facts and
findings stay apart: :mod:`.probe` and :mod:`.meeting` run on the hosts, need nothing but Python and judge nothing; the
functions that judge ask nothing.

Under failure: a host that cannot be examined is a finding, not an exception, and every question has a deadline.
"""
