"""What plug-ins for frameworks, and everything else that changes another library, stand on.

:mod:`.framework` is the contract of plug-ins, and :mod:`.patches` the one guard around every part of another library
that this package replaces.
"""
