"""The verbs that look at variables across ranks, and that cut them into parts and put them together."""

from __future__ import annotations

from typing import Any

from IPython.core import display_functions
from IPython.core.getipython import get_ipython

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.session import current

from .cells import ranks_argument
from .offers import notebook_names, rank_names
from .parsing import MagicParser, Parsed, seconds, variable


def vars_arguments(parser: MagicParser) -> None:
    """Arguments of ``vars``."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="variables, or paths such as model.fc.weight (default: all variables)",
        completer=rank_names,
    )
    ranks_argument(parser, "ranks to ask")
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, default=30.0, help="seconds in which ranks read values (default: 30)"
    )


def show_vars(args: Parsed) -> None:
    """``%distributed vars [NAME …]``: works also while a cell runs."""
    _publish(current().vars(args.names, args.ranks, args.timeout))


def diff_arguments(parser: MagicParser) -> None:
    """Arguments of ``diff``."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="variable, such as a model, or a path such as model.fc.weight",
        completer=rank_names,
    )
    parser.add_argument(
        "--states",
        action="store_true",
        help="of a model, compare random states, too, and the step counters of optimizers, samplers and loaders",
    )


def diff(args: Parsed) -> None:
    """``%distributed diff NAME``."""
    _publish(current().diff(args.name, states=args.states))


def scatter_arguments(parser: MagicParser) -> None:
    """Arguments of ``scatter``."""
    parser.add_argument(
        "name", metavar="NAME", type=variable, help="variable of the notebook to cut", completer=notebook_names
    )
    ranks_argument(parser, "ranks that get parts")


def scatter(args: Parsed) -> None:
    """``%distributed scatter NAME``: the ranks get their parts under the same name."""
    shell = get_ipython()
    if shell is None or args.name not in shell.user_ns:
        raise BadRequest(f"The notebook has no variable {args.name!r}.")
    session, data = current(), shell.user_ns[args.name]
    session.scatter(args.name, data, args.ranks)
    print(f"{len(data)} items of {args.name} are on the ranks now, in consecutive parts.")


def gather_arguments(parser: MagicParser) -> None:
    """Arguments of ``gather``."""
    parser.add_argument("name", metavar="NAME", type=variable, help="variable of the ranks", completer=rank_names)
    ranks_argument(parser, "ranks to ask")
    parser.add_argument(
        "-o",
        "--output",
        metavar="NAME",
        type=variable,
        help="variable of the notebook that gets it (default: the same)",
    )


def gather(args: Parsed) -> None:
    """``%distributed gather NAME``: the parts become the notebook's variable."""
    shell, name = get_ipython(), args.output or args.name
    found = current().gather(args.name, args.ranks)
    if shell is not None:
        shell.user_ns[name] = found
    size = f" with {len(found)} items" if hasattr(found, "__len__") else ""
    print(f"{name} is a {type(found).__name__}{size} in the notebook now.")


def _publish(found: Any) -> None:
    publish: Any = display_functions.publish_display_data
    publish(found._repr_mimebundle_())
