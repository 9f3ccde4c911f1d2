"""The parts that live in a rank.

:mod:`.app` is the ipyparallel engine, :mod:`.agent` runs cells and answers on the control thread, :mod:`.capture`
catches a cell's output, and :mod:`.recorder` numbers it and keeps it in a spool. :mod:`.plugins` calls the frameworks'
plug-ins. A few modules also serve the watch and the processes of frameworks' servers: :mod:`.slots`,
:mod:`.descriptors`, :mod:`.rank_directory` and :mod:`.tcp_guard`.

Under failure: every cell that a rank begins ends with one ``Finished`` event, whatever the cell, a plug-in or a device
does (:mod:`.cell_end`). Where the rank's process dies, its watch writes that event.
"""
