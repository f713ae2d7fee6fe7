"""Maps a file and touches its pages when told to, to see which versions a mapping shows:

    map.py FILE           "map" (or "map LENGTH"), "touch FROM TO" and "end" on stdin; each is answered with a line: "mapped", or the
                          versions (the first eight bytes of each page) that were seen in all so far

A page that cannot be had ends it with SIGBUS.
"""

import mmap
import os
import sys

PAGE = 4096


def main(path):
    seen = set()
    mapping = None
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "map":
            fd = os.open(path, os.O_RDONLY)
            mapping = mmap.mmap(fd, int(numbers[0]) if numbers else 0, prot=mmap.PROT_READ)
            answer = "mapped"
        elif verb == "touch":
            start, end = map(int, numbers)
            for at in range(start, end, PAGE):
                seen.add(int.from_bytes(mapping[at : at + 8], "little"))
                page = mapping[at : at + PAGE]
                assert page[8:] == page[:-8], f"two versions in the page at {at}"
            answer = " ".join(map(str, sorted(seen)))
        else:
            return
        print(answer, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
