"""Writers in processes of their own that append lines to one file at the same time:

    append.py FILE WRITERS LINES          every line is written and synced by itself, through handles that stay open
"""

import multiprocessing
import os
import sys


def write(path, writer, lines, barrier):
    # Half of them read it, too, which is another kind of handle: its writes go through the kernel's pages.
    fd = os.open(path, os.O_APPEND | (os.O_WRONLY if writer % 2 else os.O_RDWR))
    if writer % 2 == 0:
        os.pread(fd, 100, 0)
    barrier.wait(60)
    for number in range(lines):
        line = b"writer %d line %d %s\n" % (writer, number, b"x" * (number * 7 % 50))
        written = os.write(fd, line)
        assert written == len(line), (writer, number, written)
        os.fsync(fd)
    os.close(fd)


def main(path, writers, lines):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(writers)
    children = [context.Process(target=write, args=(path, writer, lines, barrier)) for writer in range(writers)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert all(child.exitcode == 0 for child in children), [child.exitcode for child in children]


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
