# a loop with another compiler
import re


def find(patterns, lines):
    for index, pattern in enumerate(patterns):
        compiled = re.compile(pattern)
        for line in lines:
            if compiled.search(line):
                yield index, line
