//! Which files are transferred, when there are many, and what came of them. It moves nothing. Invariant: what was left out although it was
//! named is said, and the exit code says so too.

use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use serde_json::json;

use super::Failure;
use super::progress::Progress;
use super::remote::{line_of, to_json};
use crate::transfer::{Asked, Event, Item, Many, Moved, Pick};

/// Which.
#[derive(Debug, clap::Args)]
pub struct Picking {
    /// Everything below what is named.
    #[arg(short, long)]
    pub recursive: bool,
    /// With --recursive: only names that match, relative to what is named: *.bin, logs/**; may be given several times.
    #[arg(long, value_name = "PATTERN", requires = "recursive")]
    include: Vec<String>,
    /// With --recursive: not these, whatever --include says.
    #[arg(long, value_name = "PATTERN", requires = "recursive")]
    exclude: Vec<String>,
    /// Files at a time, when there are many.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub transfers: u16,
    /// Leave out what is there with the same size and is not older.
    #[arg(short, long)]
    pub update: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// What came of each file as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

impl Picking {
    /// The patterns.
    pub fn pick(&self) -> Result<Pick, Failure> {
        Pick::new(&self.include, &self.exclude).map_err(|error| Failure::usage(format!("--include, --exclude: {error}")))
    }

    /// How those that match are moved.
    pub fn many(&self, asked: Asked, pick: Pick, progress: &Progress) -> Many {
        let Self { update, transfers, dry_run, .. } = *self;
        Many { asked, pick, update, transfers: transfers.into(), dry_run, on_file: progress.on_file() }
    }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Fetched,
    Stored,
}

/// What came of all.
#[derive(Debug)]
pub struct Report<'a> {
    picking: &'a Picking,
    way: Way,
    began: Instant,
    files: u64,
    bytes: u64,
    skipped: u64,
    refused: u64,
    unsaid: Option<Failure>,
}

impl<'a> Report<'a> {
    pub fn new(picking: &'a Picking, way: Way) -> Self {
        Self { picking, way, began: Instant::now(), files: 0, bytes: 0, skipped: 0, refused: 0, unsaid: None }
    }

    /// What came of one, said.
    pub fn add(&mut self, event: Event, progress: &Progress) {
        let mut line = |text: String| {
            let printed = progress.aside(|| crate::cli::print(format!("{text}\n").as_bytes()));
            if self.unsaid.is_none() {
                self.unsaid = printed.err();
            }
        };
        match event {
            Event::Found(bytes) => progress.grow(bytes),
            Event::Moved(item, moved) => {
                self.files += 1;
                self.bytes += moved.bytes;
                line(text(self.picking.json, self.way, &item, Some(&moved)));
            }
            Event::Would(item) => {
                self.files += 1;
                self.bytes += item.bytes;
                line(text(self.picking.json, self.way, &item, None));
            }
            Event::Skipped(bytes) => {
                self.skipped += 1;
                progress.add(bytes);
            }
            Event::Refused { name, why } => {
                self.refused += 1;
                progress.aside(|| eprintln!("windlass: \"{}\" is left out: {why}", line_of(&name)));
            }
        }
    }

    /// Says what all came to.
    pub fn finish(self) -> Result<(), Failure> {
        let word = match (self.way, self.picking.dry_run) {
            (_, true) => "would be moved",
            (Way::Fetched, false) => "fetched",
            (Way::Stored, false) => "stored",
        };
        let (files, bytes, seconds) = (self.files, HumanBytes(self.bytes), self.began.elapsed().as_secs_f64());
        let skipped = if self.picking.update { format!(", {} were there", self.skipped) } else { String::new() };
        eprintln!("windlass: {files} files with {bytes} {word} in {seconds:.1} s{skipped}");
        match (self.unsaid, self.refused) {
            (Some(failure), _) => Err(failure),
            (None, 0) => Ok(()),
            (None, refused) => Err(Failure::internal(format!("{refused} names are left out: rename them, or --exclude them"))),
        }
    }
}

/// What came of one file, on a line: without `moved` what would have.
pub fn text(as_json: bool, way: Way, item: &Item, moved: Option<&Moved>) -> String {
    let path = line_of(item.path.as_os_str().as_encoded_bytes());
    let name = if way == Way::Fetched { path.clone() } else { line_of(item.key.as_bytes()) };
    if !as_json {
        let Some(moved) = moved else {
            let word = if way == Way::Fetched { "write" } else { "store" };
            return format!("would {word} {name}: {}", HumanBytes(item.bytes));
        };
        let resumed = match moved.resumed_bytes {
            0 => String::new(),
            bytes => format!(", of which {} were there", HumanBytes(bytes)),
        };
        let checked = if moved.is_checked { ", checked" } else { "" };
        return format!("{name}: {} in {:.1} s{resumed}{checked}", HumanBytes(moved.bytes), seconds(moved.took));
    }
    let key = String::from_utf8_lossy(item.key.as_bytes());
    let mut json = item.meta.as_ref().map_or_else(|| json!({ "key": key }), to_json);
    json[if way == Way::Fetched { "target" } else { "source" }] = json!(path);
    json["bytes"] = json!(item.bytes);
    if let Some(moved) = moved {
        json["bytes"] = json!(moved.bytes);
        json["resumed_bytes"] = json!(moved.resumed_bytes);
        json["seconds"] = json!(seconds(moved.took));
        match way {
            Way::Fetched => json["is_checked"] = json!(moved.is_checked),
            Way::Stored => json["parts"] = json!(moved.parts),
        }
    }
    json.to_string()
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
