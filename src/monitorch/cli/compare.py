"""Show where, when and by how much two runs differ; the exit code is 0 if they are the same and 1 if not.

Training losses are compared at every step, other numbers at the steps of their ticks. If these are mostly different
steps, each tick is compared with the nearest one of the other run, and the output says how far apart they are.
"""

import argparse

from .arguments import add_filters, add_json, add_run, tolerance


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser, "a", "b")
    add_filters(parser)
    text = "relative difference that counts as equal (%(default)s); 0 compares exactly"
    parser.add_argument("--tolerance", type=tolerance, default=1e-4, metavar="SHARE", help=text)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Compare and print."""
    from ..diagnosis import findings_of, verdict
    from .reading import find_run
    from .run_difference import compare_runs

    with find_run(options, options.a) as a, find_run(options, options.b) as b:
        difference = compare_runs(a, b, options)
        verdicts = {f"verdict_{name}": verdict(findings_of(one.meta), one.status) for name, one in (("a", a), ("b", b))}
        names = (a.name, b.name) if a.name != b.name else (str(a.path.parent), str(b.path.parent))
    if options.json:
        from .strict_json import print_answer

        print_answer(a=names[0], b=names[1], **verdicts, same=difference.same, **difference._asdict())
    else:
        from .difference_sheet import print_difference

        print_difference(difference, *names, options.tolerance)
    return 0 if difference.same else 1
