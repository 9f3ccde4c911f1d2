"""What lives with each rank.

:mod:`.watch` is the rank's parent process. In the rank itself :mod:`.app` is the ipyparallel engine,
:mod:`.agent` answers on its control thread and runs cells, :mod:`.capture` catches what a cell says,
:mod:`.recorder` numbers it and :mod:`.spool` keeps it.
"""
