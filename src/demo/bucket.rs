//! Buckets as directories, by s3s-fs, with what a mount needs of a store and s3s-fs leaves out: If-Match on GET, ETags
//! in listings, `encoding-type=url`, no object where there is a directory, and GET bodies read in pieces of 1 MiB (its own are 4 KiB,
//! one hop to the blocking pool each). Putting, deleting and listing stay its work.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::task::spawn_blocking;

/// Bytes read from a file and handed to the connection at once.
const PIECE: u64 = 1 << 20;

/// Pieces read ahead of the connection: one leaves while the next is read.
const PIECES_AHEAD: usize = 2;

/// What S3 leaves as it is in keys of a listing with `encoding-type=url`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'*');

/// All buckets below one directory. Clones are the same buckets.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    files: Arc<FileSystem>,
    root: PathBuf,
    etags: Arc<Mutex<ETags>>,
}

/// Of every object put since the start, by bucket and key, so that a listing does not read a file for each.
type ETags = HashMap<(String, String), ETag>;

impl Buckets {
    pub fn new(root: &Path) -> Result<Self, s3s_fs::Error> {
        Ok(Self { files: Arc::new(FileSystem::new(root)?), root: root.to_owned(), etags: Arc::default() })
    }

    /// The file behind an object. A directory is none, and neither is a path that leaves its bucket.
    async fn open(&self, bucket: &str, key: &str) -> S3Result<(File, Metadata)> {
        let relative = PathBuf::from(format!("{bucket}/{key}"));
        if key.ends_with('/') || !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(s3_error!(NoSuchKey));
        }
        let path = self.root.join(relative);
        let opened = spawn_blocking(move || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            Ok::<_, io::Error>((file, metadata))
        });
        match opened.await.map_err(|_| s3_error!(InternalError))? {
            Ok((file, metadata)) if metadata.is_file() => Ok((file, metadata)),
            Ok(_) => Err(s3_error!(NoSuchKey)),
            // Below a file there is nothing, and a name that is too long is nobody's.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename) => {
                Err(s3_error!(NoSuchKey))
            }
            Err(e) => Err(s3_error!(e, InternalError)),
        }
    }

    async fn etag(&self, bucket: &str, key: &str) -> S3Result<ETag> {
        let name = (bucket.to_owned(), key.to_owned());
        if let Some(etag) = self.etags.lock().get(&name) {
            return Ok(etag.clone());
        }
        let input = HeadObjectInput::builder().bucket(name.0.clone()).key(name.1.clone()).build().map_err(|_| s3_error!(InternalError))?;
        let etag = self.files.head_object(request(input)).await?.output.e_tag.ok_or_else(|| s3_error!(InternalError))?;
        self.etags.lock().insert(name, etag.clone());
        Ok(etag)
    }
}

#[async_trait::async_trait]
impl S3 for Buckets {
    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        let (file, metadata) = self.open(&input.bucket, &input.key).await?;
        let etag = self.etag(&input.bucket, &input.key).await?;
        if let Some(ETagCondition::ETag(wanted)) = &input.if_match
            && !etag.strong_cmp(wanted)
        {
            return Err(s3_error!(PreconditionFailed));
        }
        let size = metadata.len();
        let range = input.range.map_or(Ok(0..size), |range| range.check(size))?;
        let output = GetObjectOutput {
            content_length: i64::try_from(range.end - range.start).ok(),
            content_range: input.range.map(|_| format!("bytes {}-{}/{size}", range.start, range.end - 1)),
            last_modified: metadata.modified().ok().map(Timestamp::from),
            accept_ranges: Some("bytes".into()),
            e_tag: Some(etag),
            body: Some(StreamingBlob::wrap(pieces(file, range))),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        let (_, metadata) = self.open(&input.bucket, &input.key).await?;
        let output = HeadObjectOutput {
            content_length: i64::try_from(metadata.len()).ok(),
            last_modified: metadata.modified().ok().map(Timestamp::from),
            accept_ranges: Some("bytes".into()),
            e_tag: Some(self.etag(&input.bucket, &input.key).await?),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        let (bucket, encoded) = (req.input.bucket.clone(), req.input.encoding_type.is_some());
        let mut answer = self.files.list_objects_v2(req).await?;
        for object in answer.output.contents.iter_mut().flatten() {
            if let Some(key) = &object.key {
                object.e_tag = Some(self.etag(&bucket, key).await?);
            }
            object.key = object.key.take().map(|key| if encoded { encode(&key) } else { key });
        }
        if encoded {
            for prefix in answer.output.common_prefixes.iter_mut().flatten() {
                prefix.prefix = prefix.prefix.as_deref().map(encode);
            }
            answer.output.prefix = answer.output.prefix.as_deref().map(encode);
        }
        Ok(answer)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let name = (req.input.bucket.clone(), req.input.key.clone());
        let answer = self.files.put_object(req).await?;
        if let Some(etag) = &answer.output.e_tag {
            self.etags.lock().insert(name, etag.clone());
        }
        Ok(answer)
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.etags.lock().remove(&(req.input.bucket.clone(), req.input.key.clone()));
        self.files.delete_object(req).await
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> S3Result<S3Response<DeleteObjectsOutput>> {
        for object in &req.input.delete.objects {
            self.etags.lock().remove(&(req.input.bucket.clone(), object.key.clone()));
        }
        self.files.delete_objects(req).await
    }

    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        self.files.create_bucket(req).await
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.files.head_bucket(req).await
    }
}

/// A request that comes from within the process.
pub(super) fn request<T>(input: T) -> S3Request<T> {
    S3Request {
        input,
        method: http::Method::GET,
        uri: http::Uri::default(),
        headers: http::HeaderMap::default(),
        extensions: http::Extensions::default(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    }
}

/// The bytes of a range, read ahead by a little.
fn pieces(file: File, range: Range<u64>) -> impl Stream<Item = io::Result<Bytes>> + Send + Sync {
    let file = Arc::new(file);
    let starts = (range.start..range.end).step_by(PIECE as usize);
    stream::iter(starts)
        .map(move |start| {
            let (file, end) = (file.clone(), range.end.min(start + PIECE));
            spawn_blocking(move || {
                let mut piece = vec![0; (end - start) as usize];
                file.read_exact_at(&mut piece, start).map(|()| Bytes::from(piece))
            })
        })
        .buffered(PIECES_AHEAD)
        .map(|read| read.unwrap_or_else(|e| Err(io::Error::other(e))))
}

fn encode(key: impl AsRef<str>) -> String {
    utf8_percent_encode(key.as_ref(), ESCAPED).to_string()
}
