"""A database in a mount, by hand:

    sqlite.py create FILE                 a database of 2,000 rows, made with the default journal
    sqlite.py work FILE MODE alone|beside-reader
                                          twice, several transactions in that journal mode, then its own check; the reader is another
                                          connection that is open all the time (not with wal: a log without shared memory is for one)
    sqlite.py check FILE                  its own check, and the rows that `work` leaves
    sqlite.py kill FILE KILLS SEED        a writer that is killed again and again; the check and every acknowledged row after each
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys

TURNS = 3


def connect(path, mode):
    db = sqlite3.connect(path, timeout=5, isolation_level=None)
    if mode == "wal":
        # Without it the index of the log would be shared memory, which a mount does not have.
        db.execute("pragma locking_mode = exclusive")
    told = db.execute(f"pragma journal_mode = {mode}").fetchone()[0]
    assert told == mode, f"journal mode {mode}: it is {told}"
    return db


def integrity(db):
    lines = [row[0] for row in db.execute("pragma integrity_check")]
    assert lines == ["ok"], "integrity_check: " + "; ".join(lines[:5])


def create(path):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("create table if not exists old (n integer primary key, text text)")
    db.execute("begin")
    db.executemany("insert into old values (?, ?)", ((n, f"row {n} " * 12) for n in range(2000)))
    db.execute("commit")
    db.close()


def work(path, mode, company):
    db = connect(path, mode)
    db.execute("drop table if exists t")
    db.execute("create table t (n integer primary key, turn integer, text text)")
    reader = sqlite3.connect(path, timeout=5) if company == "beside-reader" else None
    for turn in range(TURNS):
        db.execute("begin immediate")
        db.executemany("insert into t (turn, text) values (?, ?)", ((turn, f"turn {turn} row {n} " * 20) for n in range(100)))
        db.execute("commit")
        db.execute("begin immediate")
        db.execute("delete from t where turn = ? and n % 3 = 0", (turn,))
        db.execute("update t set text = text || ' changed' where turn = ? and n % 3 = 1", (turn,))
        db.execute("commit")
        # Not needed, and lost again.
        if mode != "off":
            db.execute("begin immediate")
            db.execute("delete from t")
            db.execute("rollback")
        integrity(db)
        if reader:
            rows = reader.execute("select count(*) from t where turn = ?", (turn,)).fetchone()[0]
            assert rows in (66, 67), f"the reader sees {rows} rows of turn {turn}"
            integrity(reader)
    if reader:
        reader.close()
    db.close()
    check(path)


def check(path):
    db = sqlite3.connect(path, timeout=5)
    integrity(db)
    turns = db.execute("select turn, count(*), sum(text like '% changed') from t group by turn order by turn").fetchall()
    assert [turn for turn, _, _ in turns] == list(range(TURNS)), turns
    for turn, rows, changed in turns:
        assert rows in (66, 67) and changed in (33, 34), turns
    if db.execute("select count(*) from sqlite_master where name = 'old'").fetchone()[0]:
        for n, text in db.execute("select n, text from old"):
            assert text == f"row {n} " * 12, n
        assert db.execute("select count(*) from old").fetchone() == (2000,)
    db.close()


def write(path, mode, first):
    """Transaction after transaction until it is killed; each is acknowledged on stdout when it is committed."""
    db = connect(path, mode)
    db.execute("create table if not exists t (n integer, part integer, text text, primary key (n, part))")
    n = first
    while True:
        db.execute("begin immediate")
        db.executemany("insert into t values (?, ?, ?)", ((n, part, f"{n}.{part} " * 40) for part in range(n % 7 + 1)))
        db.execute("delete from t where n = ?", (n - 50,))
        db.execute("commit")
        os.write(1, b"%d\n" % n)
        n += 1


def kill(path, kills, seed):
    chance = random.Random(seed)
    modes = ["delete", "truncate", "persist", "wal"]
    last = -1
    for number in range(kills):
        mode = modes[number % len(modes)]
        where = f"kill {number} of a writer with journal mode {mode}, seed {seed}"
        writer = subprocess.Popen([sys.executable, __file__, "write", path, mode, str(last + 1)], stdout=subprocess.PIPE)
        # After so many transactions, and then a moment that may be anywhere in the next ones.
        enough = chance.randrange(1, 8)
        told = b""
        while told.count(b"\n") < enough:
            piece = os.read(writer.stdout.fileno(), 4096)
            assert piece, f"{where}: the writer ended with {writer.wait()}"
            told += piece
        try:
            writer.wait(chance.random() * 0.05)
        except subprocess.TimeoutExpired:
            pass
        writer.send_signal(signal.SIGKILL)
        while piece := os.read(writer.stdout.fileno(), 4096):
            told += piece
        assert writer.wait() == -signal.SIGKILL, f"{where}: the writer ended with {writer.returncode}"
        acknowledged = int(told.split(b"\n")[-2])
        try:
            last = after_kill(path, mode, acknowledged)
        except Exception as error:
            raise AssertionError(f"{where}, after transaction {acknowledged} was acknowledged: {error!r}") from error
    print(f"{kills} kills, {last + 1} transactions")


def after_kill(path, mode, acknowledged):
    db = sqlite3.connect(path, timeout=5, isolation_level=None)
    if mode == "wal":
        db.execute("pragma locking_mode = exclusive")
    integrity(db)
    rows = {}
    for n, part, text in db.execute("select n, part, text from t order by n, part"):
        assert text == f"{n}.{part} " * 40, (n, part)
        rows.setdefault(n, []).append(part)
    last = max(rows)
    # The one after was perhaps committed and the writer killed before it could say so.
    assert last in (acknowledged, acknowledged + 1), f"the last one is {last}"
    assert sorted(rows) == list(range(max(0, last - 49), last + 1)), sorted(rows)
    for n, parts in rows.items():
        assert parts == list(range(n % 7 + 1)), (n, parts)
    # Back to a journal that any mode can follow.
    db.execute("pragma journal_mode = delete")
    db.close()
    return last


def main(verb, path, *more):
    if verb == "create":
        create(path)
    elif verb == "work":
        for _ in range(2):
            work(path, more[0], more[1])
    elif verb == "check":
        check(path)
    elif verb == "write":
        write(path, more[0], int(more[1]))
    elif verb == "kill":
        kill(path, int(more[0]), int(more[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
