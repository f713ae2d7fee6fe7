//! What a mount does, each thing tried over each server that others wrote and over the OSS server of the tests. What works where is the table
//! of docs/servers.md: a thing that it says works has to, and one that it says does not must fail still.
//!
//! A server that cannot be found makes its trials ignored, with the reason; see [`third_party`](support::third_party).

#[path = "../support/mod.rs"]
mod support;

mod attributes;
mod aws_kinds;
mod buckets;
mod directory_bucket;
mod place;
mod things;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Completion, Failed, Trial};

use place::{Kind, Place};
use support::mounts::why_not;

/// The table, as it is published.
const TABLE: &str = include_str!("../../docs/servers.md");

/// Opened by the first trial of its server, gone with the last.
type Shared = Arc<OnceLock<Result<Place, String>>>;

fn main() -> ExitCode {
    let table = Table::read();
    let mut trials = vec![Trial::test("every_thing_and_server_is_in_the_table", move || {
        let things: Vec<_> = things::ALL.iter().map(|(name, _)| *name).collect();
        assert_eq!(table.things, things, "the rows of docs/servers.md");
        assert_eq!(table.servers, Kind::ALL.map(Kind::name), "its columns");
        Ok(())
    })];
    for (column, kind) in Kind::ALL.into_iter().enumerate() {
        let shared: Shared = Arc::default();
        for &(thing, test) in things::ALL {
            let (shared, works) = (Arc::clone(&shared), Table::read().works(thing, column));
            trials.push(Trial::ignorable_test(format!("{}::{thing}", kind.name()), move || tried(kind, &shared, thing, test, works)));
        }
    }
    for kind in attributes::SERVERS {
        trials.push(Trial::ignorable_test(format!("{}::attributes_of_objects_are_kept", kind.name()), move || {
            match why_not().or_else(|| kind.lacks()).or_else(attributes::lacks) {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    attributes::test(kind, TABLE);
                    Ok(Completion::Completed)
                }
            }
        }));
    }
    trials.push(Trial::ignorable_test("OSS::requests_of_changes_are_those_that_are_published", || match why_not() {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => {
            attributes::requests(&Place::open(Kind::Oss)?);
            Ok(Completion::Completed)
        }
    }));
    trials.extend(buckets::trials());
    trials.extend(directory_bucket::trials());
    trials.extend(aws_kinds::trials());
    support::mounts::run(trials)
}

fn tried(kind: Kind, shared: &Shared, thing: &'static str, test: things::Test, works: Option<bool>) -> Result<Completion, Failed> {
    if let Some(reason) = why_not().or_else(|| kind.lacks()) {
        return Ok(Completion::ignored_with(reason));
    }
    let place = shared.get_or_init(|| Place::open(kind)).as_ref()?;
    if let Some(reason) = things::lacks(thing) {
        return Ok(Completion::ignored_with(reason));
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(place)));
    match (outcome, works) {
        (Ok(()), Some(true)) | (Err(_), Some(false)) => Ok(Completion::Completed),
        (Err(panic), _) => std::panic::resume_unwind(panic),
        (Ok(()), Some(false)) => Err("it works: docs/servers.md says that it does not".into()),
        (Ok(()), None) => Err("docs/servers.md does not say whether it works".into()),
    }
}

/// Rows of `| thing | yes | no (1) | ...` under a head of `| | server | ...`.
struct Table {
    servers: Vec<String>,
    things: Vec<String>,
    cells: Vec<Vec<bool>>,
}

impl Table {
    fn read() -> Self {
        let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let is_row = |line: &&str| line.starts_with('|');
        let mut rows = TABLE.lines().skip_while(|line| !is_row(line)).take_while(is_row).map(cells);
        let servers = rows.next().expect("it has a head").split_off(1);
        let (mut things, mut all) = (Vec::new(), Vec::new());
        for mut row in rows.skip(1) {
            all.push(row.split_off(1).iter().map(|cell| cell.starts_with("yes")).collect());
            things.append(&mut row);
        }
        Self { servers, things, cells: all }
    }

    fn works(&self, thing: &str, column: usize) -> Option<bool> {
        let row = self.things.iter().position(|name| name == thing)?;
        self.cells[row].get(column).copied()
    }
}
