"""The parts that live in a rank.

:mod:`.app` is the ipyparallel engine, :mod:`.agent` runs cells and answers on the control thread, :mod:`.capture`
catches a cell's output, and :mod:`.recorder` numbers it and keeps it in a spool. :mod:`.plugins` calls the frameworks'
plug-ins.
"""
