//! Answers of ListObjectsV2 as pages, for both dialects. Pure: events of the XML reader go straight into the page, with no
//! document in between. Invariant: what is not a whole listing is an error and never a shorter page.

use std::borrow::Cow;
use std::time::SystemTime;

use percent_encoding::percent_decode_str;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::reader::Reader;
use reqsign_core::time::Timestamp;

use super::{ETag, Key, ListPage, ObjectMeta, Polynomial, SYMLINK_SIZE};

/// What stores give at most; more only makes the page grow as it is read.
const PAGE_KEYS: usize = 1000;

/// Why a body is no page.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    #[error("the answer cannot be read: {0}")]
    Xml(#[from] quick_xml::Error),
    #[error("the answer cannot be read: it ends too early")]
    Short,
    #[error("the answer cannot be read: it begins with <{0}>")]
    Other(String),
    /// The control characters that XML 1.0 has no way to write: a page in URL encoding can say them.
    #[error("the answer cannot be read: a key holds what XML cannot say")]
    Unsayable,
    #[error("the answer cannot be read: it names an entity &{0};")]
    Entity(String),
    #[error("an entry of the listing has no key or no size")]
    Incomplete,
    #[error("the listing says \"{0}\" where a date belongs")]
    Date(String),
    #[error("the listing is not complete and does not say how to go on")]
    NoToken,
}

impl ListingError {
    /// Whether the bytes were no listing in XML, rather than one that contradicts itself.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Xml(_) | Self::Short | Self::Other(_) | Self::Unsayable | Self::Entity(_))
    }
}

/// What the dialects write differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// As they are to be sent back (S3).
    Plain,
    /// In URL encoding when the keys are (OSS).
    Encoded,
}

/// The page that `body` is.
///
/// # Errors
/// Why it is none.
pub fn parse(body: &[u8], tokens: Tokens) -> Result<ListPage, ListingError> {
    let mut parser = Parser::new(body);
    parser.open()?;
    loop {
        match parser.step()? {
            Step::Field => {}
            Step::Object => parser.object()?,
            Step::Prefix => parser.prefix()?,
            Step::Closed => return parser.into_page(tokens),
        }
    }
}

/// How the page after this one is asked for, if its beginning tells already. Stores write that before the entries.
pub fn early_token(beginning: &[u8], tokens: Tokens) -> Option<String> {
    let mut parser = Parser::new(beginning);
    parser.open().ok()?;
    while parser.step().ok()? == Step::Field {}
    parser.head.next(tokens).ok()?
}

/// What was read last of the listing's children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// All of a fact about the page.
    Field,
    /// The tag that an object begins with.
    Object,
    /// The tag that a common prefix begins with.
    Prefix,
    Closed,
}

/// The facts about a page that stand outside its entries.
#[derive(Debug, Default)]
struct Head {
    encoded: bool,
    truncated: bool,
    token: Option<String>,
}

impl Head {
    fn next(&self, tokens: Tokens) -> Result<Option<String>, ListingError> {
        match self.token.as_deref().filter(|token| self.truncated && !token.is_empty()) {
            Some(token) if self.encoded && tokens == Tokens::Encoded => {
                Ok(Some(percent_decode_str(token).decode_utf8_lossy().into_owned()))
            }
            None if self.truncated => Err(ListingError::NoToken),
            token => Ok(token.map(str::to_owned)),
        }
    }
}

struct Parser<'a> {
    reader: Reader<&'a [u8]>,
    head: Head,
    objects: Vec<Entry<'a>>,
    prefixes: Vec<Cow<'a, str>>,
    dates: Dates,
}

/// An object, before it is known how its key is written.
struct Entry<'a> {
    key: Cow<'a, str>,
    size: u64,
    etag: ETag,
    modified: SystemTime,
    /// The store says that it keeps the sum that we know.
    is_summed: bool,
}

impl<'a> Parser<'a> {
    fn new(body: &'a [u8]) -> Self {
        let mut reader = Reader::from_reader(body);
        // Stores that write `<Key/>` mean an empty one.
        reader.config_mut().expand_empty_elements = true;
        Self { reader, head: Head::default(), objects: Vec::new(), prefixes: Vec::new(), dates: Dates::default() }
    }

    /// Reads up to the children of the listing.
    fn open(&mut self) -> Result<(), ListingError> {
        match self.tag()? {
            Some(tag) if local(&tag) == "ListBucketResult" => Ok(()),
            Some(tag) => Err(ListingError::Other(local(&tag).to_owned())),
            None => Err(ListingError::Short),
        }
    }

    /// Reads one child of the listing, or the beginning of an entry.
    fn step(&mut self) -> Result<Step, ListingError> {
        let Some(tag) = self.tag()? else { return Ok(Step::Closed) };
        match local(&tag) {
            "Contents" => return Ok(Step::Object),
            "CommonPrefixes" => return Ok(Step::Prefix),
            "IsTruncated" => self.head.truncated = self.text()?.trim() == "true",
            // As it is: there are servers whose token is a key, which may begin or end with a blank (versitygw).
            "NextContinuationToken" => self.head.token = Some(self.text()?.into_owned()),
            "EncodingType" => self.head.encoded = self.text()?.trim().eq_ignore_ascii_case("url"),
            _ => self.skip()?,
        }
        Ok(Step::Field)
    }

    fn object(&mut self) -> Result<(), ListingError> {
        let (mut key, mut size, mut etag, mut modified) = (None, None, None, SystemTime::UNIX_EPOCH);
        let (mut is_link, mut is_summed) = (false, false);
        while let Some(tag) = self.tag()? {
            match local(&tag) {
                "Key" => key = Some(self.text()?),
                "Size" => size = self.text()?.trim().parse().ok(),
                "ChecksumAlgorithm" => is_summed |= self.text()?.trim() == "CRC64NVME",
                "Type" => is_link = self.text()?.trim() == "Symlink",
                "ETag" => etag = Some(ETag::quoted(self.text()?.trim())),
                "LastModified" => {
                    let text = self.text()?;
                    modified = self.dates.parse(text.trim())?;
                }
                _ => self.skip()?,
            }
        }
        let (Some(key), Some(size)) = (key, size) else { return Err(ListingError::Incomplete) };
        // OSS lists a link with whatever size; above, the size says that it may be one.
        let size = if is_link { SYMLINK_SIZE } else { size };
        if self.objects.is_empty() {
            self.objects.reserve(PAGE_KEYS);
        }
        // An empty tag stands for one that the listing does not tell; the range path knows it.
        self.objects.push(Entry { key, size, etag: etag.unwrap_or_else(|| ETag::from("")), modified, is_summed });
        Ok(())
    }

    fn prefix(&mut self) -> Result<(), ListingError> {
        while let Some(tag) = self.tag()? {
            match local(&tag) {
                "Prefix" => {
                    let text = self.text()?;
                    self.prefixes.push(text);
                }
                _ => self.skip()?,
            }
        }
        Ok(())
    }

    /// The next tag on this level; none where the element around it ends.
    fn tag(&mut self) -> Result<Option<BytesStart<'a>>, ListingError> {
        loop {
            match self.reader.read_event()? {
                Event::Start(tag) => return Ok(Some(tag)),
                Event::End(_) => return Ok(None),
                Event::Eof => return Err(ListingError::Short),
                _ => {}
            }
        }
    }

    /// The text of the element that was just begun, up to its end. Copied only when it is more than one piece.
    fn text(&mut self) -> Result<Cow<'a, str>, ListingError> {
        let mut text = Cow::Borrowed("");
        loop {
            let piece = match self.reader.read_event()? {
                Event::Text(piece) => piece.into_inner(),
                Event::CData(piece) => piece.into_inner(),
                Event::GeneralRef(reference) => reference_text(&reference)?,
                Event::End(_) => return Ok(text),
                Event::Eof => return Err(ListingError::Short),
                Event::Start(_) => {
                    self.skip()?;
                    continue;
                }
                _ => continue,
            };
            match &mut text {
                Cow::Borrowed("") => text = piece,
                Cow::Owned(text) => text.push_str(&piece),
                // Most that comes in pieces is an ETag between references to its quotes.
                Cow::Borrowed(first) => {
                    let mut joined = String::with_capacity(first.len() + piece.len() + 16);
                    joined.push_str(first);
                    joined.push_str(&piece);
                    text = Cow::Owned(joined);
                }
            }
        }
    }

    /// Passes over what is inside the element that was just begun.
    fn skip(&mut self) -> Result<(), ListingError> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.reader.read_event()? {
                Event::Start(_) => depth += 1,
                Event::End(_) => depth -= 1,
                Event::Eof => return Err(ListingError::Short),
                _ => {}
            }
        }
        Ok(())
    }

    fn into_page(self, tokens: Tokens) -> Result<ListPage, ListingError> {
        let next = self.head.next(tokens)?;
        let key = |text: &str| if self.head.encoded { Ok(decoded(text)) } else { plain(text) };
        let mut objects = Vec::with_capacity(self.objects.len());
        let sum = |is_summed: bool| match tokens {
            Tokens::Plain => is_summed.then_some(Polynomial::Nvme),
            // OSS keeps one of every object.
            Tokens::Encoded => Some(Polynomial::Ecma),
        };
        let mut sums = Vec::with_capacity(self.objects.len());
        for Entry { key: name, size, etag, modified, is_summed } in self.objects {
            objects.push(ObjectMeta { key: key(&name)?, size, etag, modified });
            sums.push(sum(is_summed));
        }
        let prefixes = self.prefixes.iter().map(|prefix| key(prefix)).collect::<Result<_, _>>()?;
        Ok(ListPage { objects, prefixes, next, sums, asked: None })
    }
}

fn local<'t>(tag: &'t BytesStart<'_>) -> &'t str {
    let name = tag.name().into_inner();
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// Dates of a page; files that were written together have the same.
#[derive(Debug, Default)]
struct Dates {
    last: String,
    time: Option<SystemTime>,
}

impl Dates {
    fn parse(&mut self, text: &str) -> Result<SystemTime, ListingError> {
        match self.time {
            Some(time) if self.last == text => Ok(time),
            _ => {
                let parsed = text.parse::<Timestamp>().map_err(|_| ListingError::Date(text.to_owned()))?;
                let time = parsed.as_system_time();
                self.last.clear();
                self.last.push_str(text);
                self.time = Some(time);
                Ok(time)
            }
        }
    }
}

/// The character that `&amp;` or `&#38;` stands for. The five names are all that XML knows without a DTD.
fn reference_text<'a>(reference: &BytesRef<'_>) -> Result<Cow<'a, str>, ListingError> {
    if let Some(character) = reference.resolve_char_ref()? {
        return Ok(Cow::Owned(character.to_string()));
    }
    resolve_xml_entity(reference).map(Cow::Borrowed).ok_or_else(|| ListingError::Entity(reference.to_string()))
}

/// A key in URL encoding, where a literal plus comes as `%2B` and a space as `+` or `%20`: so the vendors' SDKs read it.
fn decoded(text: &str) -> Key {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Key::from(text);
    }
    let spaced = text.replace('+', " ");
    Key::from(percent_decode_str(&spaced).collect::<Vec<u8>>())
}

/// A key as XML says it.
fn plain(text: &str) -> Result<Key, ListingError> {
    let unsayable = |byte: u8| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    if text.bytes().any(unsayable) { Err(ListingError::Unsayable) } else { Ok(Key::from(text)) }
}

#[cfg(test)]
mod tests;
