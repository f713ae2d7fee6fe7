//! The promises of [`ObjectStore`]. Each function is one, and gets an empty bucket.

mod attributes;
mod copies;
mod listings;
mod objects;
mod ranges;
mod uploads;
mod writes;

use futures::future::LocalBoxFuture;
use windlass::store::{Error, ErrorKind, ObjectMeta, ObjectStore, RangeRequest, RangeSink};

use crate::stores::{Bucket, Kind, key};

pub type Test = fn(Bucket) -> LocalBoxFuture<'static, ()>;

/// A test and the stores that can be held to it.
pub struct Promise {
    pub name: &'static str,
    pub test: Test,
    pub concerns: fn(Kind) -> bool,
}

macro_rules! promise {
    ($module:ident::$name:ident) => {
        promise!($module::$name, |_| true)
    };
    ($module:ident::$name:ident, $concerns:expr) => {
        Promise { name: stringify!($name), test: |bucket| Box::pin($module::$name(bucket)), concerns: $concerns }
    };
}

pub const ALL: &[Promise] = &[
    promise!(objects::head_tells_size_version_and_date),
    promise!(objects::an_empty_object_is_an_object),
    promise!(objects::what_is_not_there_is_not_found),
    promise!(objects::a_name_above_objects_is_no_object, |kind| !kind.is_directory_tree()),
    promise!(objects::odd_keys_are_listed_and_read_as_they_are),
    promise!(objects::keys_that_are_no_paths_are_listed_and_read_as_they_are, |kind| !kind.is_directory_tree()),
    promise!(objects::a_bucket_that_is_not_there_is_told_as_such, Kind::is_remote),
    promise!(objects::requests_and_bytes_are_counted),
    promise!(listings::pages_of_any_size_hold_every_key_once_and_in_order),
    promise!(listings::a_prefix_may_end_inside_a_name),
    promise!(listings::nothing_below_a_prefix_is_an_empty_page),
    promise!(listings::a_listing_begins_behind_any_key),
    promise!(listings::a_listing_agrees_with_head),
    promise!(ranges::ranges_are_exact),
    promise!(ranges::ranges_at_once_do_not_disturb_each_other),
    promise!(ranges::another_version_is_refused_before_any_byte),
    promise!(ranges::an_object_replaced_between_two_ranges_is_never_mixed),
    promise!(ranges::an_object_replaced_by_a_shorter_one_gives_no_byte),
    promise!(ranges::a_deleted_object_is_not_found),
    promise!(writes::a_put_is_read_back_with_its_headers),
    promise!(writes::odd_keys_are_written_as_they_are, |kind| !kind.is_directory_tree()),
    promise!(writes::a_put_replaces_only_what_its_condition_allows, Kind::is_conditional),
    promise!(writes::what_is_deleted_is_gone_and_may_be_deleted_again),
    promise!(writes::a_version_is_deleted_and_no_other, Kind::compares_deletes),
    promise!(writes::many_objects_are_deleted_at_once),
    promise!(writes::headers_for_other_clients_stay_with_their_object),
    promise!(writes::links_lead_where_they_were_written_to),
    promise!(writes::links_of_other_programs_are_recognised),
    promise!(copies::a_copy_has_content_and_headers_of_its_source),
    promise!(attributes::class_tags_and_acl_stay_with_their_object),
    promise!(attributes::own_attributes_win_over_options, |kind| matches!(kind, Kind::Moto | Kind::OssV4)),
    promise!(copies::a_copy_of_a_link_is_a_link),
    promise!(copies::a_copy_of_another_version_is_refused, Kind::checks_sources),
    promise!(copies::a_copy_replaces_only_what_its_condition_allows),
    promise!(uploads::parts_become_one_object_in_their_order),
    promise!(uploads::upload_with_a_flipped_bit_is_never_a_success, Kind::is_remote),
    promise!(uploads::every_checksum_that_may_be_chosen_is_taken, Kind::is_remote),
    promise!(uploads::a_part_that_is_sent_again_replaces_the_one_before),
    promise!(uploads::parts_may_be_copied_from_objects),
    promise!(uploads::an_upload_replaces_only_what_its_condition_allows, Kind::is_conditional),
    promise!(uploads::an_aborted_upload_leaves_nothing),
    // s3s-fs leaves their tags and their order out.
    promise!(uploads::the_parts_of_an_upload_are_listed, |kind| kind != Kind::S3sFs),
    promise!(uploads::unfinished_uploads_are_listed, Kind::lists_uploads),
    promise!(ranges::whole_read_with_a_flipped_bit_is_read_again, Kind::is_remote),
    promise!(ranges::a_dropped_request_frees_its_connection, |kind| matches!(kind, Kind::Memory | Kind::S3 | Kind::OssV4 | Kind::OssV1)),
];

/// A range being filled, in pieces that fit no boundary. A byte too many is a panic.
pub struct Sink {
    bytes: Vec<u8>,
    filled: usize,
}

impl Sink {
    pub fn new(length: u64) -> Self {
        Self { bytes: vec![0; usize::try_from(length).expect("ranges of tests fit in memory")], filled: 0 }
    }

    /// What arrived.
    pub fn received(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl RangeSink for Sink {
    fn spare(&mut self) -> &mut [u8] {
        let end = self.bytes.len().min(self.filled + 7919);
        &mut self.bytes[self.filled..end]
    }

    fn advance(&mut self, n: usize) {
        assert!(n <= self.spare().len(), "more than there was room for");
        self.filled += n;
    }
}

/// A range of the version that `meta` describes: what arrived, and how it ended.
pub async fn fetch(store: &dyn ObjectStore, meta: &ObjectMeta, range: std::ops::Range<u64>) -> (Vec<u8>, Result<(), Error>) {
    let mut sink = Sink::new(range.end - range.start);
    let request = RangeRequest { key: meta.key.clone(), range, etag: meta.etag.clone() };
    let result = store.get_range(&request, &mut sink).await;
    (sink.received().to_vec(), result)
}

/// A range that must arrive whole.
pub async fn whole(store: &dyn ObjectStore, meta: &ObjectMeta, range: std::ops::Range<u64>) -> Vec<u8> {
    let (received, result) = fetch(store, meta, range.clone()).await;
    result.unwrap_or_else(|error| panic!("{range:?}: {error}"));
    assert_eq!(received.len() as u64, range.end - range.start, "a range without an error is complete");
    received
}

/// A range that must be refused with one of `kinds`, before any byte.
async fn refused(store: &dyn ObjectStore, meta: &ObjectMeta, range: std::ops::Range<u64>, kinds: &[ErrorKind]) {
    let (received, result) = fetch(store, meta, range).await;
    let error = result.expect_err("the range must be refused");
    assert!(kinds.contains(&error.kind), "{:?}: {error}", error.kind);
    assert!(received.is_empty(), "{} bytes of another version", received.len());
    assert_eq!(error.key, meta.key);
}

/// Bytes that repeat at no power of two, and differ between seeds at every place.
pub fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| ((i % 251) as u8).wrapping_mul(3).wrapping_add((i / 65_521) as u8).wrapping_add(seed)).collect()
}

async fn head(bucket: &Bucket, name: &str) -> ObjectMeta {
    bucket.store.head(&key(name)).await.unwrap_or_else(|error| panic!("{error}"))
}
