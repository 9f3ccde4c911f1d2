"""The parts that live with each rank.

:mod:`.watch` is the rank's parent process. In the rank itself :mod:`.app` is the ipyparallel engine, :mod:`.agent` runs
cells and answers on the control thread, :mod:`.capture` catches a cell's output, and :mod:`.recorder` numbers it and
keeps it in a spool. :mod:`.framework` is the contract of the frameworks' plug-ins; :mod:`.plugins` calls them.
"""
