"""``python -m togi.journal rescue DAMAGED NEW``: save what a damaged journal still holds."""

from __future__ import annotations

import argparse
import sys

from togi.core.errors import TogiError
from togi.core.printable import printable
from togi.journal.rescue import rescue


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m togi.journal", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("rescue", help="copy every readable record of a damaged journal into a new one")
    command.add_argument("damaged")
    command.add_argument("new")
    arguments = parser.parse_args()
    try:
        saved = rescue(arguments.damaged, arguments.new)
    except TogiError as error:
        print(printable(str(error)), file=sys.stderr)
        return error.exit_code
    print(f"{arguments.new}: {saved.trials} trials of {saved.studies} studies saved, {saved.lost} unreadable places")
    return 0


if __name__ == "__main__":
    sys.exit(main())
