//! Ranges: exactly the bytes that were asked for, of one version.

use std::time::Duration;

use futures::future::join_all;
use windlass::store::memory::Outcome;
use windlass::store::{ETag, ErrorKind, ObjectStore, RangeRequest, RangeSink};

use super::{content, head, refused, whole};
use crate::stores::{Bucket, Server, key};
use crate::support::flipping::MARK;

const SIZE: u64 = 300_007;

pub async fn ranges_are_exact(bucket: Bucket) {
    let bytes = content(1, SIZE as usize);
    bucket.put("dir/object", bytes.clone()).await;
    let meta = head(&bucket, "dir/object").await;
    assert_eq!(meta.size, SIZE);
    // The whole, its first and last byte, its tail, and pieces that begin and end anywhere.
    for range in [0..SIZE, 0..1, SIZE - 1..SIZE, SIZE - 1000..SIZE, 1..2, 4095..4097, 65_536..131_072, 1..SIZE - 1] {
        let expected = &bytes[range.start as usize..range.end as usize];
        assert!(whole(&*bucket.store, &meta, range.clone()).await == expected, "{range:?}");
    }
}

pub async fn ranges_at_once_do_not_disturb_each_other(bucket: Bucket) {
    let bytes = content(2, SIZE as usize);
    bucket.put("object", bytes.clone()).await;
    let meta = head(&bucket, "object").await;
    let starts = (0..SIZE).step_by(20_011);
    let pieces = join_all(starts.map(|start| whole(&*bucket.store, &meta, start..(start + 20_011).min(SIZE)))).await;
    assert!(pieces.concat() == bytes);
}

pub async fn another_version_is_refused_before_any_byte(bucket: Bucket) {
    bucket.put("object", content(3, 10_000)).await;
    let mut meta = head(&bucket, "object").await;
    // A tag that never was, and none at all, as some listings give.
    for tag in ["\"0123456789abcdef0123456789abcdef\"", ""] {
        meta.etag = ETag::from(tag);
        refused(&*bucket.store, &meta, 0..10_000, &[ErrorKind::Replaced]).await;
    }
    assert_eq!(bucket.metrics.retries.get(), 0, "asking again does not help");
}

pub async fn an_object_replaced_between_two_ranges_is_never_mixed(bucket: Bucket) {
    let (old, new) = (content(4, 10_000), content(5, 10_000));
    bucket.put("object", old.clone()).await;
    let meta = head(&bucket, "object").await;
    assert!(whole(&*bucket.store, &meta, 0..5000).await == old[..5000]);
    bucket.put("object", new.clone()).await;
    refused(&*bucket.store, &meta, 5000..10_000, &[ErrorKind::Replaced]).await;
    let fresh = head(&bucket, "object").await;
    assert!(whole(&*bucket.store, &fresh, 0..10_000).await == new);
}

pub async fn an_object_replaced_by_a_shorter_one_gives_no_byte(bucket: Bucket) {
    bucket.put("object", content(6, 10_000)).await;
    let meta = head(&bucket, "object").await;
    bucket.put("object", content(7, 100)).await;
    // A store that looks at the range before the version answers 416 and may leave open why; both end as ESTALE.
    let kinds: &[ErrorKind] = match bucket.server {
        Server::S3sFs(..) | Server::ThirdParty(_) => &[ErrorKind::Replaced, ErrorKind::RangeNotSatisfiable],
        _ => &[ErrorKind::Replaced],
    };
    refused(&*bucket.store, &meta, 5000..10_000, kinds).await;
    // Across the new end too: a part of the range exists.
    // What else would be wrong with such an answer is worth a retry, which a replaced object is not.
    refused(&*bucket.store, &meta, 50..150, &[ErrorKind::Replaced]).await;
}

pub async fn a_deleted_object_is_not_found(bucket: Bucket) {
    bucket.put("object", content(8, 1000)).await;
    let meta = head(&bucket, "object").await;
    bucket.delete("object").await;
    refused(&*bucket.store, &meta, 0..1000, &[ErrorKind::NotFound]).await;
    assert_eq!(bucket.store.head(&key("object")).await.unwrap_err().kind, ErrorKind::NotFound);
}

/// Says when its first bytes are there.
struct Watched {
    room: Vec<u8>,
    first: Option<tokio::sync::oneshot::Sender<()>>,
}

impl RangeSink for Watched {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.room
    }

    fn advance(&mut self, _: usize) {
        if let Some(first) = self.first.take() {
            let _ = first.send(()); // a test that failed already does not listen
        }
    }
}

pub async fn a_dropped_request_frees_its_connection(bucket: Bucket) {
    const LENGTH: u64 = 32 << 20; // more than the buffers of two sockets
    bucket.put("object", vec![b'x'; LENGTH as usize]).await;
    let meta = head(&bucket, "object").await;
    let (first, arrived) = tokio::sync::oneshot::channel();
    let request = RangeRequest { key: meta.key.clone(), range: 0..LENGTH, etag: meta.etag.clone() };
    let mut sink = Watched { room: vec![0; 4096], first: Some(first) };
    let mut get = bucket.store.get_range(&request, &mut sink);
    tokio::select! {
        biased;
        _ = arrived => {}
        result = &mut get => panic!("it cannot be done: {result:?}"),
    }
    match &bucket.server {
        Server::Memory(memory) => {
            assert_eq!(memory.in_flight(), 1);
            drop(get);
            assert_eq!((memory.in_flight(), memory.requests().pop().map(|r| r.outcome)), (0, Some(Outcome::Cancelled)));
        }
        Server::Ours(_, server) => {
            assert!(!server.requests().pop().unwrap().aborted);
            drop(get);
            assert!(server.until(|requests| requests.last().is_some_and(|request| request.aborted)).await);
            let cut = server.requests().pop().unwrap();
            assert!(cut.bytes_sent < LENGTH);
            assert_eq!(whole(&*bucket.store, &meta, 5..10).await, b"xxxxx");
            assert_ne!(server.requests().pop().unwrap().remote_port, cut.remote_port, "the connection is not used again");
        }
        Server::Oss(server) => {
            // That of the HEAD before may be idle beside it.
            let open = server.connections();
            drop(get);
            let closed = async {
                while server.connections() >= open {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(120), closed).await.expect("the connection is closed");
            assert_eq!(whole(&*bucket.store, &meta, 5..10).await, b"xxxxx");
        }
        Server::S3sFs(..) | Server::ThirdParty(_) => unreachable!("they do not tell"),
    }
}

pub async fn whole_read_with_a_flipped_bit_is_read_again(bucket: Bucket) {
    let mut body = content(1, 100_000);
    body[50_000..50_000 + MARK.len()].copy_from_slice(MARK);
    bucket.put("a", body.clone()).await;
    let meta = head(&bucket, "a").await;
    let (proxy, store) = bucket.through_flips().await;
    let request = RangeRequest { key: key("a"), range: 0..meta.size, etag: meta.etag };
    let read = async || {
        let mut room = vec![0; body.len()];
        windlass::store::get_checked(&*store, &request, &mut room, |_| {}).await.map(|()| room)
    };
    proxy.flip_answers(1);
    assert!(read().await.unwrap() == body, "it is read again");
    assert_eq!(proxy.flipped(), 1);
    // By now the tags of the bucket are known where there is no better sum.
    proxy.flip_answers(usize::MAX);
    let error = read().await.unwrap_err();
    assert_eq!((error.kind, proxy.flipped()), (ErrorKind::Corrupt, 3), "{error}");
    proxy.flip_answers(0);
    assert!(read().await.unwrap() == body);
}
