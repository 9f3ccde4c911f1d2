"""Write ``jupyter_dtrain/launch/start_options.py``: the start options with their types, for type checkers and editors.

python scripts/start_options.py            write it
python scripts/start_options.py --check    exit with 1 if it is not what the options say
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path

from jupyter_dtrain.launch.options import Option, options

FILE = Path(__file__).resolve().parent.parent / "jupyter_dtrain" / "launch" / "start_options.py"

HEAD = '''"""The options of ``Session.start`` with their types, for type checkers and editors.

Made by scripts/start_options.py from the options of worlds, launchers and frameworks: change those. At run time nothing
reads this module; an option of a plug-in that is not part of this package is checked only when a world starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict


class StartOptions(TypedDict, total=False):
    """What ``Session.start`` takes beside the number of ranks; None stands for the default."""
'''


def main() -> int:
    """Write the file, or compare it."""
    text = generated()
    if sys.argv[1:] == ["--check"]:
        same = FILE.exists() and FILE.read_text() == text
        if not same:
            print(f"{FILE.name} is not what the options say: python scripts/start_options.py")
        return int(not same)
    FILE.write_text(text)
    return 0


def generated() -> str:
    """The whole file; the number of ranks has a parameter of its own."""
    return HEAD + "".join(map(entry, (option for option in options() if option.name != "n")))


def entry(option: Option) -> str:
    """One option as a line, and its description below it."""
    words = f'"""{option.description[0].upper()}{option.description[1:]}."""'
    told = "\n".join(textwrap.wrap(words, 116, initial_indent="    ", subsequent_indent="    "))
    return f"\n    {option.name}: {written(option)} | None\n{told}\n"


def written(option: Option) -> str:
    """The type of the values that a caller may give."""
    text = inspect.formatannotation(option.accepted)
    return re.sub(r"(collections\.abc|typing)\.", "", text).replace("'", '"')


if __name__ == "__main__":
    sys.exit(main())
