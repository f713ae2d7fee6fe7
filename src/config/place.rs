//! What commands that mount nothing need to know: a bucket, and the disk that mounts of it read from. Invariant: the same words mean the same as for
//! a mount.

use std::path::PathBuf;

use super::Error;
use super::gather::{Input, Values};
use super::source::Source;
use crate::reader::ReadMode;
use crate::spill::Bounds;
use crate::{budget, reader, store, vfs};

/// A bucket and how it is reached, for commands that mount nothing.
#[derive(Clone, Debug)]
pub struct Place {
    pub source: Source,
    pub store: store::Options,
    /// The directory for chunks and staged writes, where one was named.
    pub spill_dir: Option<PathBuf>,
}

impl Place {
    /// The place that a person named.
    ///
    /// # Errors
    /// The first thing in it that cannot be used.
    pub fn gather(input: &Input) -> Result<Self, Error> {
        let place = Self::gather_any(input)?;
        needs_bucket(&place.source)?;
        Ok(place)
    }

    /// The same; it may be an account, with all of its buckets.
    ///
    /// # Errors
    /// The first thing in it that cannot be used.
    pub fn gather_any(input: &Input) -> Result<Self, Error> {
        let mut values = Values::gather(input)?;
        let source = values.take_source(&input.environment)?;
        Ok(Self { store: values.store(&source)?, spill_dir: values.path("spill-dir"), source })
    }
}

fn needs_bucket(source: &Source) -> Result<(), Error> {
    match source.is_account() {
        true => Err(Error::Source { text: source.to_string(), reason: "names no bucket, which this needs: write s3://BUCKET".into() }),
        false => Ok(()),
    }
}

/// A bucket and the disk that mounts of it read from, for filling that without a mount.
#[derive(Clone, Debug)]
pub struct Preload {
    pub source: Source,
    pub store: store::Options,
    pub reader: reader::Options,
    pub budget: budget::Options,
    pub vfs: vfs::Options,
    /// The directory.
    pub directory: PathBuf,
    pub bounds: Bounds,
}

impl Preload {
    /// The bucket that a person named, and the disk.
    ///
    /// # Errors
    /// The first thing in it that cannot be used, or no disk.
    pub fn gather(input: &Input) -> Result<Self, Error> {
        let mut values = Values::gather(input)?;
        let source = values.take_source(&input.environment)?;
        needs_bucket(&source)?;
        let disk = values.writer().staging;
        let directory = disk.dir.ok_or_else(|| {
            Error::Conflict(
                "without a mount it has to be said which disk: add --spill-dir with the directory that mounts of the bucket read from"
                    .into(),
            )
        })?;
        Ok(Self {
            store: values.store(&source)?,
            reader: reader::Options { mode: ReadMode::Cached, ..values.reader() },
            budget: values.budget(),
            // What is asked for lies below the bucket, file or directory.
            vfs: vfs::Options { prefix: String::new(), ..values.vfs(&source) },
            directory,
            bounds: Bounds { max: disk.max, ensure_free: disk.ensure_free, free_ratio: disk.free_ratio },
            source,
        })
    }
}
