//! `windlass get --recursive`: what lies below a name into a directory. It only says what came of each. Invariant: what was refused is
//! named, and the exit code says so.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::{Args, asked};
use crate::budget::{self, Budget};
use crate::cli::Failure;
use crate::cli::progress::{Progress, Unit};
use crate::cli::remote::{Remote, line_of, to_json};
use crate::store::ObjectMeta;
use crate::transfer::{Asked, Getting, Outcome, Pick, Plan, Tree};
use crate::units::ByteSize;

/// What came of all.
#[derive(Debug, Default)]
struct Tally {
    files: u64,
    bytes: u64,
    skipped: u64,
    refused: u64,
    said: Option<Failure>,
}

/// Fetches all of it.
pub async fn fetch(args: &Args, remote: &Remote) -> Result<(), Failure> {
    let is_other = args.dest.exists() && !args.dest.is_dir();
    if args.dest == Path::new("-") || is_other {
        return Err(Failure::usage(format!("{}: --recursive needs a directory to write to", args.dest.display())));
    }
    let asked = asked(args);
    let plan = Plan::at_offsets(&asked, LARGE).map_err(|error| Failure::usage(error.to_string()))?;
    let pick = Pick::new(&args.include, &args.exclude).map_err(|error| Failure::usage(format!("--include, --exclude: {error}")))?;
    eprintln!("windlass: {}", words(&plan, &asked, args.transfers));
    let (began, progress) = (Instant::now(), Progress::growing("fetching", Unit::Bytes));
    let told = progress.clone();
    let getting = Getting {
        store: Arc::clone(&remote.store),
        budget: Budget::new(&budget::Options { memory_limit: Some(args.max_memory) }),
        plan,
        parallel: args.parallel,
        location: remote.location(),
        checkpoints: args.checkpoint_dir.clone(),
        on_bytes: Arc::new(move |n| told.add(n)),
    };
    let tree = Tree { getting, asked, pick, update: args.update, transfers: args.transfers.into(), dry_run: args.dry_run };
    let mut tally = Tally::default();
    let done = tree.get(&remote.key, &args.dest, |outcome| tally.add(args, &progress, outcome)).await;
    progress.clear();
    done.map_err(|error| remote.ended(error))?;
    tally.finish(args, remote, began).await
}

/// Some object that is large enough for everything that one may have.
const LARGE: u64 = 5 << 40;

impl Tally {
    fn add(&mut self, args: &Args, progress: &Progress, outcome: Outcome) {
        match outcome {
            Outcome::Got { meta, path, got } => {
                progress.grow(meta.size);
                self.show(args, &meta, &path, "", json!({"resumed_bytes": got.resumed_bytes, "is_checked": got.is_checked}));
            }
            Outcome::Would { meta, path } => self.show(args, &meta, &path, "would write ", json!({})),
            Outcome::Skipped => self.skipped += 1,
            Outcome::Refused { key, why } => {
                self.refused += 1;
                eprintln!("windlass: \"{}\" is not written: the name {why}", line_of(key.as_bytes()));
            }
        }
    }

    fn show(&mut self, args: &Args, meta: &ObjectMeta, path: &Path, word: &str, more: Value) {
        self.files += 1;
        self.bytes += meta.size;
        let name = line_of(path.as_os_str().as_encoded_bytes());
        let text = if args.json {
            let mut json = to_json(meta);
            json["target"] = json!(name);
            if let (Value::Object(json), Value::Object(more)) = (&mut json, more) {
                json.extend(more);
            }
            json.to_string()
        } else {
            format!("{word}{name}: {}", HumanBytes(meta.size))
        };
        if self.said.is_none() {
            self.said = crate::cli::print(format!("{text}\n").as_bytes()).err();
        }
    }

    async fn finish(self, args: &Args, remote: &Remote, began: Instant) -> Result<(), Failure> {
        if self.files + self.skipped + self.refused == 0 && !remote.is_directory().await? {
            return Err(remote.missing());
        }
        let word = if args.dry_run { "would be written" } else { "written" };
        let (files, bytes, seconds) = (self.files, HumanBytes(self.bytes), began.elapsed().as_secs_f64());
        let skipped = if args.update { format!(", {} were there", self.skipped) } else { String::new() };
        eprintln!("windlass: {files} files with {bytes} {word} in {seconds:.1} s{skipped}");
        match (self.said, self.refused) {
            (Some(failure), _) => Err(failure),
            (None, 0) => Ok(()),
            (None, refused) => {
                Err(Failure::internal(format!("{refused} names cannot be files here: rename the objects, or --exclude them")))
            }
        }
    }
}

/// Concurrency x buffer x transfers, and what bounds that.
fn words(plan: &Plan, asked: &Asked, transfers: u16) -> String {
    let product = plan.memory_bytes().saturating_mul(transfers.into());
    let buffer = HumanBytes(plan.buffer_bytes);
    let bounded = HumanBytes(product.min(ByteSize::bytes(asked.max_memory_bytes).as_u64()));
    format!("plan: up to {transfers} files x {} requests x {buffer} = {}, held to {bounded} of memory", plan.requests, HumanBytes(product))
}
