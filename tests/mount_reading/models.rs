//! Model files and tables, read by the libraries that training reads them with: mapped, strided, at random, by column. What they find is
//! compared with the same file on the disk of this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use parking_lot::Mutex;

use crate::bytes::{MIB, asked_bytes, assert_each_byte_once, gets};
use crate::support::S3Server;
use crate::support::mounts::{Daemon, Mount, trial_unless};
use crate::support::python;

const MODULES: &str = "numpy, safetensors.numpy, pyarrow.parquet";

pub fn trials() -> Vec<Trial> {
    // One after the other: they share the files, and each counts what is fetched of them.
    let files: Arc<Mutex<Option<Files>>> = Arc::default();
    let trial = |name, test: fn(&Files)| {
        let files = Arc::clone(&files);
        trial_unless(|| python::lacks(MODULES), name, move || test(files.lock().get_or_insert_with(Files::new)))
    };
    vec![
        trial("safetensors_find_every_tensor_through_a_map", safetensors),
        trial("a_map_that_is_touched_in_order_fetches_the_file_once", touched_in_order),
        trial_unless(|| python::lacks("mmap"), "a_map_that_is_touched_here_and_there_fetches_little", touched_here_and_there),
        trial("numpy_maps_an_array_and_strides_and_jumps_in_it", numpy),
        trial("pyarrow_reads_columns_and_whole_tables", parquet),
    ]
}

/// Writes the three files into a directory.
const MAKE: &str = r#"
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from safetensors.numpy import save_file
directory, random = sys.argv[1], np.random.default_rng(1)
tensors = {f'layers.{n}.weight': random.standard_normal((1024, 1024), dtype=np.float32) for n in range(10)}
tensors |= {f'layers.{n}.bias': random.integers(-100, 100, 1000 + n).astype(np.int16) for n in range(10)}
tensors['embedding'] = random.standard_normal((3000, 777)).astype(np.float16)
save_file(tensors, f'{directory}/model.safetensors', metadata={'format': 'np'})
np.save(f'{directory}/array.npy', random.standard_normal((16 * 1024, 512), dtype=np.float32))
rows = 400_000
columns = {f'c{n}': pa.array(random.standard_normal(rows)) for n in range(8)}
columns['text'] = pa.array([f'row {n * 7919 % rows}' for n in range(rows)])
pq.write_table(pa.table(columns), f'{directory}/table.parquet', row_group_size=100_000, compression='none', use_dictionary=False)
"#;

/// How each is read: prints a digest of every part of what was found.
const READ: &str = r#"
import hashlib, sys
import numpy as np, pyarrow.parquet as pq
from safetensors import safe_open
from safetensors.numpy import load_file
how, path = sys.argv[1].split('/')[-1], sys.argv[2]

def digest(name, array):
    array = np.ascontiguousarray(array)
    print(name, array.dtype, array.shape, hashlib.sha256(array.tobytes()).hexdigest())

def tensors(found):
    for name in sorted(found):
        digest(name, found[name])

def table(found):
    for name in found.column_names:
        column = found.column(name)
        digest(name, np.array(column.to_pylist()) if name == 'text' else column.to_numpy())

if how == 'safe_open':
    with safe_open(path, framework='numpy') as file:
        tensors({name: file.get_tensor(name) for name in file.keys()})
        digest('slice', file.get_slice('embedding')[100:200, ::3])
elif how == 'load_file':
    tensors(load_file(path))
elif how == 'array':
    digest('whole', np.load(path, mmap_mode='r'))
elif how == 'strided':
    array = np.load(path, mmap_mode='r')
    digest('rows', array[::64])
    digest('columns', array[:, 7:500:100])
elif how == 'random':
    array = np.load(path, mmap_mode='r')
    digest('random', array[np.random.default_rng(2).integers(0, len(array), 300)])
elif how == 'columns' or how == 'columns_mapped':
    table(pq.read_table(path, columns=['c1', 'c6'], memory_map=how.endswith('mapped')))
elif how == 'table' or how == 'table_mapped':
    table(pq.read_table(path, memory_map=how.endswith('mapped')))
else:
    sys.exit(f'{how}?')
"#;

fn mount(server: &S3Server) -> Mount {
    // What is counted is what the window asks for: a late answer would be asked for twice.
    let mount = Daemon::new(server).flag("--hedge=false").start();
    server.reset_log();
    mount
}

/// The files on this machine and in a bucket.
struct Files {
    server: S3Server,
    local: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let (server, local) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
        python::run(MAKE, &[local.path()]);
        for entry in std::fs::read_dir(local.path()).expect("it was just filled") {
            let name = entry.expect("an entry").file_name().into_string().expect("text");
            server.put(&name, std::fs::read(local.path().join(&name)).expect("it can be read"));
        }
        Self { server, local }
    }

    fn len(&self, name: &str) -> u64 {
        std::fs::metadata(self.local.path().join(name)).expect("it is there").len()
    }

    /// Reads `name` through a fresh mount and from the disk, which must be the same. Returns the bytes that were fetched for it.
    #[track_caller]
    fn read(&self, script: &str, how: &str, name: &str) -> u64 {
        let mount = mount(&self.server);
        let read = |path: PathBuf| python::run(script, &[Path::new(how), &path]);
        let found = read(mount.join(name));
        let fetched = asked_bytes(&gets(&self.server, name));
        assert!(!found.is_empty());
        assert_eq!(found, read(self.local.path().join(name)), "{how}");
        fetched
    }

    /// [`read`](Self::read) that needs all of the file, and has not fetched much more.
    #[track_caller]
    fn read_whole(&self, script: &str, how: &str, name: &str) {
        let (fetched, len) = (self.read(script, how, name), self.len(name));
        assert!(fetched <= len + len / 20, "{how}: {fetched} bytes fetched of {len}");
    }
}

fn safetensors(files: &Files) {
    files.read_whole(READ, "load_file", "model.safetensors");
    // In the order of their names: how much is in flight when it jumps, and is fetched again, depends on the machine.
    files.read(READ, "safe_open", "model.safetensors");
}

/// Touches a byte of every page, under the advice that is given.
const TOUCH: &str = r#"
import hashlib, mmap, sys
how, path = sys.argv[1].split('/')[-1], sys.argv[2]
with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    mapped.madvise({'random': mmap.MADV_RANDOM, 'normal': mmap.MADV_NORMAL, 'sequential': mmap.MADV_SEQUENTIAL}[how])
    print(hashlib.sha256(bytes(mapped[at] for at in range(0, len(mapped), 4096))).hexdigest())
"#;

fn touched_in_order(files: &Files) {
    // Faults come as READs of 1 MiB, or of a page where the kernel was told not to read ahead: the window runs before both.
    for advice in ["normal", "sequential", "random"] {
        files.read_whole(TOUCH, advice, "model.safetensors");
        let (gets, len) = (gets(&files.server, "model.safetensors"), files.len("model.safetensors"));
        assert_each_byte_once(&gets, 0..len);
        assert_eq!(gets.len() as u64, len.div_ceil(4 * MIB), "{advice}");
    }
}

/// Prints a byte of some pages of a large file, far from each other and in no order.
const FAR: &str = r#"
import mmap, sys
how, path = sys.argv[1].split('/')[-1], sys.argv[2]
with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    mapped.madvise({'random': mmap.MADV_RANDOM, 'normal': mmap.MADV_NORMAL}[how])
    print(*(mapped[n * 377_001_003 % len(mapped)] for n in range(1, 41)))
"#;

fn touched_here_and_there() {
    let server = S3Server::start();
    let size = 1 << 30;
    let content = server.put_synthetic("large", size);
    // A fault brings what the kernel reads around it (1 MiB), unless it was told not to.
    for (advice, most) in [("random", 256 << 10), ("normal", MIB + (256 << 10))] {
        let mount = mount(&server);
        let found = python::run(FAR, &[Path::new(advice), &mount.join("large")]);
        let expected: Vec<String> = (1..=40u64)
            .map(|n| {
                let mut byte = [0];
                content.fill(n * 377_001_003 % size, &mut byte);
                byte[0].to_string()
            })
            .collect();
        assert_eq!(found, expected.join(" "));
        let fetched = asked_bytes(&gets(&server, "large"));
        assert!(fetched <= 40 * most, "{advice}: {fetched} bytes fetched for 40 pages");
    }
}

fn numpy(files: &Files) {
    files.read_whole(READ, "array", "array.npy");
    files.read(READ, "strided", "array.npy");
    files.read(READ, "random", "array.npy");
}

fn parquet(files: &Files) {
    files.read_whole(READ, "table", "table.parquet");
    // Its threads fault at several places of the map at once: how much is in flight when they meet, and is fetched again, depends on the machine.
    let (fetched, len) = (files.read(READ, "table_mapped", "table.parquet"), files.len("table.parquet"));
    assert!(fetched <= len + len / 2, "table_mapped: {fetched} bytes fetched of {len}");
    for how in ["columns", "columns_mapped"] {
        // Two of eight columns, and what lies around their parts.
        let (fetched, len) = (files.read(READ, how, "table.parquet"), files.len("table.parquet"));
        assert!(fetched <= len / 2, "{how}: {fetched} bytes fetched of {len}");
    }
}
