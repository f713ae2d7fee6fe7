//! What is behind `windlass bench`: each bench does one thing as often or as fast as it can and says what came of it. It knows no command
//! line and prints nothing. Invariant: every bench ends, and a number is counted or measured, never assumed.

mod away;
mod ceiling;
mod figures;
mod files;
mod fio;
mod gets;
mod jobs;
mod latency;
mod net;
mod plot;
mod process;
mod rate;
mod read;
mod report;
mod threads;
mod times;

pub use ceiling::{Ceiling, Ceilings, boot, state_file};
pub use figures::{TAIL, gbit, megabytes, milliseconds, percent, seconds, tail};
pub use files::{NewFiles, PREFIX, check_room, read as read_files, remove_tree};
pub use fio::{FioError, Ran, Steps, check as check_fio, run as run_fio};
pub use gets::{Gets, Targets, gets};
pub use jobs::{JOBS, Job, Limits};
pub use latency::{Latencies, latency};
pub use net::{MOST_STREAMS, Measured, NetError, measure, serve};
pub use plot::{Chart, Line, PlotError};
pub use process::Process;
pub use rate::{Rate, Speed};
pub use read::{Load, LoadError, Plan, read};
pub use report::{Cell, Name, Report};
pub use threads::{Check, Pass};
pub use times::Times;
