"""Code and data that go to the hosts of a world which do not share this machine's files.

:mod:`.sync` asks each host (:mod:`.receiver`) whether it shares the folder, and copies to those that do not;
:mod:`.rsync` runs one copy and explains its failure; :mod:`.transports` has the ways to hosts, ssh and srun. Copies
replace files that differ, and delete nothing.

Under failure: a host to which nothing could be copied is a row of the result with its reason and fix; the others get
their files. Every copy has a deadline, and none leaves a process here or there when it is interrupted.
"""
