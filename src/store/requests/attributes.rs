//! What only requests of their own tell of an object: its tags and its access list. A write has to say both again, and a copy the second. They are
//! asked for beside the HEAD, so that a change waits no longer for them. Invariant: what the store refuses to tell is logged and holds no change up; a
//! store that has told it once is not taken for one that cannot.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{ObjectOwnership, OwnershipControls, Tag};
use futures::future::{join3, try_join};
use http::{HeaderMap, Method};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::adapt::Feature;
use super::headers::{ACL, GRANT, TAGGING};
use super::sdk_client::{PLACEHOLDER, without_blanks};
use super::{Call, Requests};
use crate::store::{Details, Dialect, Error, ErrorKind, Key, Op, Quirks, Result, Support};

/// What has been found out about the bucket.
#[derive(Debug, Default)]
pub(super) struct Telling {
    tags: Feature,
    acls: Feature,
    /// A HEAD has told how many tags there are: one that does not is of an object without.
    counts_tags: AtomicBool,
    /// Whether access lists mean something in the bucket.
    has_acls: OnceCell<bool>,
}

impl Telling {
    /// What a store is known not to have is not asked for.
    pub fn new(quirks: &Quirks) -> Self {
        let known = |has: bool| Feature::new(if has { Support::Learned } else { Support::No });
        Self { tags: known(quirks.object_tags), acls: known(quirks.object_acls), ..Self::default() }
    }

    pub fn on_count(&self) {
        self.counts_tags.store(true, Relaxed);
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Policy {
    #[serde(default)]
    owner: Owner,
    access_control_list: List,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Owner {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct List {
    grant: Vec<Grant>,
}

/// S3 says who has which right; OSS has one word for all of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Grant {
    #[serde(rename = "$text")]
    word: Option<String>,
    grantee: Option<Grantee>,
    permission: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Grantee {
    #[serde(rename = "ID")]
    id: Option<String>,
    #[serde(rename = "URI")]
    uri: Option<String>,
    #[serde(rename = "EmailAddress")]
    email: Option<String>,
}

/// What an access list is carried as: names and values of headers without the vendor's prefix. None: the owner alone has all rights.
type Rights = Vec<(String, String)>;

const FULL_CONTROL: &str = "FULL_CONTROL";

/// Groups of Amazon that have rights by the words `public-read`, `public-read-write` and `authenticated-read`.
const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const AUTHENTICATED: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";

impl Requests {
    pub async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        let counts = self.telling.counts_tags.load(Relaxed);
        let early = async { if counts { Ok(None) } else { self.tags_of(key).await } };
        let (told, tags, rights) = join3(self.details_with_count(key), early, self.rights_of(key)).await;
        let (mut details, count) = told?;
        let tags = match count {
            Some(count) if counts && count > 0 => self.tags_of(key).await?,
            _ => tags?,
        };
        details.headers.carried.extend(tags.map(|tags| (TAGGING.to_owned(), tags)));
        self.carry_rights(&mut details, rights?);
        Ok(details)
    }

    /// As [`details_to_keep`](Self::details_to_keep) without the tags, which a copy takes along.
    pub(super) async fn details_to_copy(&self, key: &Key) -> Result<Details> {
        let (mut details, rights) = try_join(self.details(key), self.rights_of(key)).await?;
        self.carry_rights(&mut details, rights);
        Ok(details)
    }

    fn carry_rights(&self, details: &mut Details, rights: Option<Rights>) {
        let carried = &mut details.headers.carried;
        match rights {
            Some(rights) if rights.is_empty() && self.names.gives_acl() => {
                drop(carried.insert(ACL.to_owned(), self.without_rights().to_owned()))
            }
            Some(rights) => carried.extend(rights),
            None => {}
        }
    }

    /// The word for no rights of an object's own.
    fn without_rights(&self) -> &'static str {
        match self.dialect {
            Dialect::S3 => "private",
            Dialect::Oss => "default",
        }
    }

    /// Pairs as a URL has them. None: there are none, or they are not told.
    async fn tags_of(&self, key: &Key) -> Result<Option<String>> {
        let told = || async {
            let get = |client: &Client| client.get_object_tagging().bucket(PLACEHOLDER).key(PLACEHOLDER).send();
            let (tagging, _) = self.sdk.send(Op::Head, key, HeaderMap::new(), get).await?;
            Ok(tags(tagging.tag_set()))
        };
        let tags = self
            .unless_refused(
                told,
                &self.telling.tags,
                "the store does not tell tags of objects: those of an object that is changed are lost",
            )
            .await?;
        Ok(tags.filter(|tags| !tags.is_empty()))
    }

    /// None: not told, or without a meaning. Formed and read here: the SDK has no place for the word that OSS tells instead of grants.
    async fn rights_of(&self, key: &Key) -> Result<Option<Rights>> {
        if !self.telling.acls.is_taken() || !*self.telling.has_acls.get_or_init(|| self.look_for_acls()).await {
            return Ok(None);
        }
        let told = || async {
            let reply = self.exchange.send(&Call::new(Op::Head, Method::GET, key).with([("acl", String::new())])).await?;
            let unread = || Error::new(ErrorKind::Malformed, Op::Head, key, "the answer to ?acl is no such document");
            rights(without_blanks(&reply.body)).ok_or_else(unread)
        };
        self.unless_refused(
            told,
            &self.telling.acls,
            "the store does not tell access lists of objects: those of an object that is changed are lost",
        )
        .await
    }

    /// Buckets of S3 can do without access lists, and new ones do: one request for all objects instead of one for each. A store that does not say
    /// so may have some.
    async fn look_for_acls(&self) -> bool {
        if self.dialect == Dialect::Oss {
            return true;
        }
        let get = |client: &Client| client.get_bucket_ownership_controls().bucket(PLACEHOLDER).send();
        let told = self.sdk.send(Op::Head, &Key::root(), HeaderMap::new(), get).await;
        !told.is_ok_and(|(output, _)| output.ownership_controls.is_some_and(|controls| are_acls_off(&controls)))
    }

    /// What `told` asks of an object. None where the store refuses to tell, or has none of it.
    async fn unless_refused<T, F>(&self, told: impl Fn() -> F, feature: &Feature, lost: &'static str) -> Result<Option<T>>
    where
        F: Future<Output = Result<T>>,
    {
        if !feature.is_taken() {
            return Ok(None);
        }
        let mut answer = told().await;
        // A store that does not know the question may answer with the object, or with an error of its own. So does a proxy that is in trouble, and what
        // is not told is lost with the next change: one such answer is not believed.
        if answer.as_ref().is_err_and(is_no_answer) {
            answer = told().await;
        }
        match answer {
            Ok(told) => {
                feature.on_worked();
                Ok(Some(told))
            }
            // Some stores say so of an object that has none.
            Err(error) if error.kind == ErrorKind::NotFound && error.code.is_some() => Ok(None),
            // A policy may be about some objects only.
            Err(error) if error.kind == ErrorKind::AccessDenied && feature.has_worked() => {
                tracing::warn!(%error, "{lost}");
                Ok(None)
            }
            // After an answer of the store it is another one that says otherwise.
            Err(error) if feature.has_worked() && is_no_answer(&error) => Err(Error { kind: ErrorKind::Malformed, ..error }),
            Err(error) if feature.has_worked() => Err(error),
            Err(error) if error.kind == ErrorKind::AccessDenied || lacks_feature(&error) || is_no_answer(&error) => {
                self.without(feature, &error, lost);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether the store says that it has no such thing.
fn lacks_feature(error: &Error) -> bool {
    matches!(error.status, Some(405 | 501)) || matches!(error.code.as_deref(), Some("NotImplemented" | "MethodNotAllowed"))
}

/// Whether the answer is neither what was asked for nor a refusal.
fn is_no_answer(error: &Error) -> bool {
    let is_odd = matches!(error.kind, ErrorKind::Invalid | ErrorKind::Malformed | ErrorKind::Corrupt);
    (is_odd || error.kind == ErrorKind::NotFound && error.code.is_none()) && !lacks_feature(error)
}

/// Pairs as a URL has them.
fn tags(tags: &[Tag]) -> String {
    let said = |text: &str| percent_encode(text.as_bytes(), NON_ALPHANUMERIC).to_string();
    tags.iter().map(|tag| format!("{}={}", said(tag.key()), said(tag.value()))).collect::<Vec<_>>().join("&")
}

fn are_acls_off(controls: &OwnershipControls) -> bool {
    controls.rules().iter().any(|rule| rule.object_ownership == ObjectOwnership::BucketOwnerEnforced)
}

fn rights(document: &[u8]) -> Option<Rights> {
    let policy: Policy = quick_xml::de::from_reader(document).ok()?;
    let (owner, grants) = (policy.owner.id, policy.access_control_list.grant);
    if let [Grant { word: Some(word), grantee: None, .. }] = &grants[..] {
        // What OSS calls the default follows the bucket; `private` does not.
        let own = word.trim();
        return Some(if own == "default" { Vec::new() } else { vec![(ACL.to_owned(), own.to_owned())] });
    }
    let grants: Option<Vec<(&Grantee, &str)>> =
        grants.iter().map(|grant| Some((grant.grantee.as_ref()?, grant.permission.as_str()))).collect();
    let grants = grants?;
    let (of_owner, of_others): (Vec<_>, Vec<_>) =
        grants.iter().partition(|(grantee, permission)| grantee.is(&owner) && *permission == FULL_CONTROL);
    let mut groups: Vec<(Option<&str>, &str)> =
        of_others.iter().map(|(grantee, permission)| (grantee.uri.as_deref(), *permission)).collect();
    groups.sort_unstable();
    let word = match &groups[..] {
        _ if of_owner.is_empty() => None,
        [] => return Some(Vec::new()),
        [(Some(ALL_USERS), "READ")] => Some("public-read"),
        [(Some(ALL_USERS), "READ"), (Some(ALL_USERS), "WRITE")] => Some("public-read-write"),
        [(Some(AUTHENTICATED), "READ")] => Some("authenticated-read"),
        _ => None,
    };
    Some(match word {
        Some(word) => vec![(ACL.to_owned(), word.to_owned())],
        None => one_by_one(&grants),
    })
}

/// A header for each right, with all that have it.
fn one_by_one(grants: &[(&Grantee, &str)]) -> Rights {
    let mut rights = BTreeMap::<String, Vec<String>>::new();
    for (grantee, permission) in grants {
        let header = format!("{GRANT}{}", permission.to_ascii_lowercase().replace('_', "-"));
        rights.entry(header).or_default().extend(grantee.named());
    }
    rights.into_iter().map(|(header, names)| (header, names.join(", "))).collect()
}

impl Grantee {
    /// MinIO names nobody where S3 names the owner.
    fn is(&self, owner: &str) -> bool {
        let is_user = self.uri.is_none() && self.email.is_none();
        is_user && self.id.as_deref().is_none_or(|id| id.is_empty() || id == owner)
    }

    /// As a header names it.
    fn named(&self) -> Option<String> {
        match self {
            Self { uri: Some(uri), .. } => Some(format!("uri=\"{uri}\"")),
            Self { email: Some(email), .. } => Some(format!("emailAddress=\"{email}\"")),
            Self { id: Some(id), .. } => Some(format!("id=\"{id}\"")),
            Self { id: None, .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(grants: &[(&str, &str)]) -> String {
        let grant = |&(who, permission): &(&str, &str)| {
            let (kind, name) = if who.starts_with("http") { ("Group", "URI") } else { ("CanonicalUser", "ID") };
            format!(
                "<Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"{kind}\"><{name}>{who}</{name}></Grantee>\
                 <Permission>{permission}</Permission></Grant>"
            )
        };
        format!(
            "<?xml version=\"1.0\"?><AccessControlPolicy xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Owner><ID>me</ID></Owner>\
             <AccessControlList>{}</AccessControlList></AccessControlPolicy>",
            grants.iter().map(grant).collect::<String>()
        )
    }

    #[test]
    fn access_lists_become_the_word_that_makes_them_or_every_right_by_itself() {
        let me = ("me", FULL_CONTROL);
        for (grants, expected) in [
            (&[me][..], &[][..]),
            (&[("", FULL_CONTROL)], &[]),
            (&[me, (ALL_USERS, "READ")], &[("acl", "public-read")]),
            (&[(ALL_USERS, "WRITE"), me, (ALL_USERS, "READ")], &[("acl", "public-read-write")]),
            (&[me, (AUTHENTICATED, "READ")], &[("acl", "authenticated-read")]),
            (
                &[me, ("you", "READ"), (ALL_USERS, "READ"), ("you", "READ_ACP")],
                &[
                    ("grant-full-control", "id=\"me\""),
                    ("grant-read", "id=\"you\", uri=\"http://acs.amazonaws.com/groups/global/AllUsers\""),
                    ("grant-read-acp", "id=\"you\""),
                ],
            ),
            (&[("you", FULL_CONTROL)], &[("grant-full-control", "id=\"you\"")]),
        ] {
            let expected: Rights = expected.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            assert_eq!(rights(policy(grants).as_bytes()), Some(expected), "{grants:?}");
        }
        let oss = |word: &str| {
            let text = format!(
                "<AccessControlPolicy><Owner><ID>0</ID><DisplayName>0</DisplayName></Owner><AccessControlList><Grant>{word}</Grant></AccessControlList></AccessControlPolicy>"
            );
            rights(text.as_bytes()).unwrap()
        };
        assert_eq!((oss("default"), oss("private")), (vec![], vec![("acl".into(), "private".into())]));
        assert_eq!(rights(b"the object itself"), None);
        assert_eq!(rights(b"<ListBucketResult><Name>b</Name></ListBucketResult>"), None);
    }

    #[test]
    fn tags_become_pairs_of_a_url() {
        let tag = |key: &str, value: &str| Tag::builder().key(key).value(value).build().unwrap();
        assert_eq!(tags(&[tag("a b", "1&2=3"), tag("ä", "")]), "a%20b=1%262%3D3&%C3%A4=");
        assert_eq!(tags(&[]), "");
    }
}
