"""Everything at once in one directory of a mount, by processes of several threads each, with two busy loops beside them:

    stress.py DIRECTORY SECONDS THREADS SEED RESULT

Every thread has files of its own, of which it knows what each may hold: one content, or several after an operation that has failed. What it
reads, sees and lists must be that, at once. The names that all of them rename over must hold one whole content. At the end all of it is read
again, and RESULT (JSON) says what may be stored: {"own": {path: [[size, sha256] or null, ...]}, "shared": [path, ...], "counts": {...}}.
"""

import collections
import errno
import hashlib
import json
import multiprocessing
import os
import random
import sys
import threading
import time
import traceback

THREADS_OF_A_PROCESS = 4
OWN = 6
SHARED = 20


class Wrong(Exception):
    """What must never be."""


def digest(content):
    return None if content is None else [len(content), hashlib.sha256(content).hexdigest()]


def stamped(worker, number, length):
    """A content that says whose it is, and whether it is whole."""
    body = random.Random(worker * 1000003 + number).randbytes(length)
    return b"%d %d %d %s\n" % (worker, number, length, hashlib.sha256(body).hexdigest().encode()) + body


def check_stamp(content, where):
    head, _, body = content.partition(b"\n")
    words = head.split(b" ")
    if len(words) != 4 or int(words[2]) != len(body) or hashlib.sha256(body).hexdigest().encode() != words[3]:
        raise Wrong(f"{where}: no whole content: {len(content)} bytes that begin with {content[:40]!r}")


def write_all(fd, content):
    while content:
        content = content[os.write(fd, content):]


def read_all(fd, piece=65536):
    pieces = []
    while got := os.read(fd, piece):
        pieces.append(got)
    return b"".join(pieces)


class Worker:
    def __init__(self, top, number, seed):
        self.top, self.number = top, number
        self.random = random.Random(seed * 1000 + number)
        self.own = f"{top}/own-{number}"
        # Of each name of its own the contents that it may have; None: there is no such file. One of them: it is known.
        self.files = {}
        self.directories = {}
        self.sequence = 0
        self.counts = collections.Counter()
        self.last = []

    # What it does. Each takes the contents that the file may have and returns those it has when all goes well.

    def replace(self, name, _):
        self.sequence += 1
        content = stamped(self.number, self.sequence, self.length())
        temporary = f"{self.own}/temporary"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(fd, content)
            if self.random.random() < 0.3:
                os.fsync(fd)
        finally:
            os.close(fd)
        self.files[name] = [*self.files[name], content]
        os.rename(temporary, f"{self.own}/{name}")
        return content

    def append(self, name, now):
        line = b"line %d of %d\n" % (self.sequence, self.number)
        self.sequence += 1
        after = (now or b"") + line
        self.files[name] = [now, after] if now is not None else [now, b"", after]
        fd = os.open(f"{self.own}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            write_all(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
        return after

    def rewrite(self, name, now):
        """Through one handle that stays open over fsync."""
        if now is None:
            return now
        fd = os.open(f"{self.own}/{name}", os.O_RDWR)
        try:
            for _ in range(self.random.randrange(1, 4)):
                at, piece = self.random.randrange(len(now) + 100), self.random.randbytes(self.random.randrange(1, 5000))
                after = bytearray(now.ljust(at, b"\0"))
                after[at : at + len(piece)] = piece
                self.files[name] = [*self.files[name], bytes(after)]
                written = os.pwrite(fd, piece, at)
                if written != len(piece):
                    raise Wrong(f"{name}: {written} of {len(piece)} bytes written")
                now = bytes(after)
                if self.random.random() < 0.5:
                    size = self.random.randrange(len(now) + 200)
                    after = now[:size].ljust(size, b"\0")
                    self.files[name] = [*self.files[name], after]
                    os.ftruncate(fd, size)
                    now = after
                if self.random.random() < 0.5:
                    os.fsync(fd)
                    self.files[name] = [now]
                self.same(len(now), os.fstat(fd).st_size, name, "fstat of the open handle")
                self.same(digest(now), digest(os.pread(fd, len(now) + 10, 0)), name, "pread of the open handle")
        finally:
            os.close(fd)
        return now

    def truncate(self, name, now):
        if now is None:
            return now
        size = self.random.choice([0, 0, self.random.randrange(len(now) + 1000)])
        after = now[:size].ljust(size, b"\0")
        self.files[name] = [now, after]
        os.truncate(f"{self.own}/{name}", size)
        return after

    def empty(self, name, now):
        self.files[name] = [now, b""]
        os.close(os.open(f"{self.own}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        return b""

    def unlink(self, name, now):
        if now is None:
            return now
        self.files[name] = [now, None]
        os.unlink(f"{self.own}/{name}")
        return None

    def change(self, verb):
        name = f"file-{self.random.randrange(OWN)}"
        known = self.files.setdefault(name, [None])
        if len(known) > 1:
            self.settle(name)
            known = self.files[name]
        self.last = [*self.last[-5:], f"{verb.__name__} {name}"]
        try:
            self.files[name] = [verb(name, known[0])]
        except OSError as error:
            # May have either state from now on, and the mount says which.
            self.allow(error, verb.__name__)
            return
        self.counts[verb.__name__] += 1
        self.look(name)

    def allow(self, error, verb):
        """An error that the store has caused is no failure of the test; one that a healthy file system never gives is."""
        if error.errno not in (errno.EIO, errno.EAGAIN):
            raise Wrong(f"{verb}: {error!r}")
        self.counts[f"{verb} failed"] += 1

    def same(self, expected, seen, name, how):
        if expected != seen:
            raise Wrong(f"{self.own}/{name}: {how} shows {seen}, {expected} was acknowledged")

    def content(self, name):
        try:
            fd = os.open(f"{self.own}/{name}", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return read_all(fd)
        finally:
            os.close(fd)

    def settle(self, name):
        """After an operation that has failed: it is one of the contents that it may have."""
        seen = self.content(name)
        if seen not in self.files[name]:
            may = [digest(content) for content in self.files[name]]
            raise Wrong(f"{self.own}/{name}: after a failure it has {digest(seen)}, which is none of {may}")
        self.files[name] = [seen]

    def look(self, name):
        known = self.files[name]
        if len(known) > 1:
            return
        [now] = known
        try:
            if self.random.random() < 0.7:
                try:
                    size = os.stat(f"{self.own}/{name}").st_size
                except FileNotFoundError:
                    size = None
                self.same(None if now is None else len(now), size, name, "stat")
            self.same(digest(now), digest(self.content(name)), name, "a new open")
            self.counts["look"] += 1
        except OSError as error:
            self.allow(error, "look")

    def tree(self):
        name = f"{self.own}/directory-{self.random.randrange(3)}"
        is_there = self.directories.get(name, False)
        try:
            if is_there is None:
                is_there = os.path.isdir(name)
            self.directories[name] = None
            (os.rmdir if is_there else os.mkdir)(name)
            self.directories[name] = not is_there
            self.same(not is_there, os.path.isdir(name), name, "isdir")
            self.counts["tree"] += 1
        except OSError as error:
            self.allow(error, "tree")

    def names(self):
        """What is known to be there is listed, and what is known not to be there is not."""
        try:
            listed = set(os.listdir(self.own))
        except OSError as error:
            self.allow(error, "names")
            return
        for name, known in self.files.items():
            if len(known) == 1 and (known[0] is not None) != (name in listed):
                raise Wrong(f"{self.own}/{name} is {'not ' * (name not in listed)}listed: {sorted(listed)}")
        for name, is_there in self.directories.items():
            if is_there is not None and is_there != (os.path.basename(name) in listed):
                raise Wrong(f"{name} is {'not ' * (not is_there)}there: {sorted(listed)}")
        self.counts["names"] += 1

    def share(self):
        self.sequence += 1
        path = f"{self.top}/shared/name-{self.random.randrange(SHARED)}"
        temporary = f"{self.top}/shared/temporary-{self.number}"
        what = self.random.random()
        # What others have taken away meanwhile is no failure; its own temporary file nobody takes.
        allowed = () if what < 0.5 else (errno.ENOENT, errno.ESTALE)
        try:
            if what < 0.5:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                try:
                    write_all(fd, stamped(self.number, self.sequence, self.length()))
                finally:
                    os.close(fd)
                os.rename(temporary, path)
            elif what < 0.6:
                os.unlink(path)
            elif what < 0.7:
                for name in os.listdir(f"{self.top}/shared"):
                    if not name.startswith(("name-", "temporary-")):
                        raise Wrong(f"a name that was never made: {name}")
            else:
                fd = os.open(path, os.O_RDONLY)
                try:
                    content = read_all(fd)
                finally:
                    os.close(fd)
                check_stamp(content, path)
            self.counts["share"] += 1
        except OSError as error:
            if error.errno not in allowed:
                self.allow(error, "share")

    def length(self):
        return self.random.randrange(200_000) if self.random.random() < 0.1 else self.random.randrange(4000)

    def step(self):
        what = self.random.randrange(100)
        verbs = [self.replace] * 3 + [self.append] * 2 + [self.rewrite] * 2 + [self.truncate, self.empty, self.unlink]
        if what < 60:
            self.change(self.random.choice(verbs))
        elif what < 68:
            self.tree()
        elif what < 76:
            self.names()
        else:
            self.share()

    def run(self, end, is_over):
        os.mkdir(self.own)
        while time.monotonic() < end and not is_over.is_set():
            self.step()


def process(top, numbers, seed, end, is_over, answers):
    workers, wrong = [Worker(top, number, seed) for number in numbers], []

    def run(worker):
        try:
            worker.run(end, is_over)
        except BaseException as error:
            is_over.set()
            how = "" if isinstance(error, Wrong) else traceback.format_exc()
            wrong.append(f"worker {worker.number} after {sum(worker.counts.values())} operations ({', '.join(worker.last)}): {error!r}{how}")

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = {f"{worker.own}/{name}": list(map(digest, known)) for worker in workers for name, known in worker.files.items()}
    counts = sum((worker.counts for worker in workers), collections.Counter())
    answers.put({"wrong": wrong, "files": files, "counts": dict(counts)})


def spin(parent):
    while os.getppid() == parent:
        sum(range(100000))


def seen(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def main(top, seconds, threads, seed, result):
    os.mkdir(f"{top}/shared")
    context = multiprocessing.get_context("fork")
    is_over, answers, end = context.Event(), context.Queue(), time.monotonic() + seconds
    busy = [context.Process(target=spin, args=(os.getpid(),), daemon=True) for _ in range(2)]
    groups = [range(first, min(first + THREADS_OF_A_PROCESS, threads)) for first in range(0, threads, THREADS_OF_A_PROCESS)]
    workers = [context.Process(target=process, args=(top, group, seed, end, is_over, answers), daemon=True) for group in groups]
    for child in busy + workers:
        child.start()
    all_answers = [answers.get(timeout=seconds + 120) for _ in workers]
    for child in workers:
        child.join()
    for child in busy:
        child.kill()
    counts = sum((collections.Counter(answer["counts"]) for answer in all_answers), collections.Counter())
    print(dict(counts))
    wrong = [line for answer in all_answers for line in answer["wrong"]]
    own = {path: known for answer in all_answers for path, known in answer["files"].items()}
    if not wrong:
        # Once more, now that nothing goes on, and each settled: what is seen now is what must be stored.
        for path, known in own.items():
            now = digest(seen(path))
            if now not in known:
                wrong.append(f"at last {path} has {now}, which is none of {known}")
            own[path] = [now]
        shared = [f"{top}/shared/{name}" for name in os.listdir(f"{top}/shared") if name.startswith("name-")]
        for path in shared:
            try:
                check_stamp(seen(path), path)
            except Wrong as error:
                wrong.append(str(error))
    if wrong:
        sys.exit(f"seed {seed}: " + "\n".join(wrong[:10]))
    relative = len(top) + 1
    with open(result, "w") as file:
        json.dump({"own": {path[relative:]: known for path, known in own.items()}, "shared": [p[relative:] for p in shared], "counts": counts}, file)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(sys.argv[1].rstrip("/"), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
