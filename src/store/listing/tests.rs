use std::time::{Duration, UNIX_EPOCH};

use super::*;

const PAGE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult>
  <Name>data</Name><Prefix>d%2F</Prefix><MaxKeys>2</MaxKeys><Delimiter>%2F</Delimiter><EncodingType>url</EncodingType>
  <IsTruncated>true</IsTruncated><NextContinuationToken>CgJiYw--</NextContinuationToken>
  <Contents><Key>d%2Fa%20b%2Bc%FF%25</Key><LastModified>2012-02-24T08:43:07.000Z</LastModified>
    <ETag>"5B3C1A2E053D763E1B002CC607C5A0FE"</ETag><Type>Normal</Type><Size>344606</Size><StorageClass>Standard</StorageClass>
    <Owner><ID>1</ID><DisplayName>u</DisplayName></Owner></Contents>
  <CommonPrefixes><Prefix>d%2Fsub+dir%2F</Prefix></CommonPrefixes>
  <Contents><Key>d%2Fz</Key><LastModified>2012-02-24T08:43:07.000Z</LastModified><ETag>&quot;E&quot;</ETag><Size>0</Size></Contents>
  <KeyCount>3</KeyCount>
</ListBucketResult>"#;

fn contents(inside: &str) -> String {
    format!("<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{inside}</Contents></ListBucketResult>")
}

fn keys(body: &str, tokens: Tokens) -> Vec<Key> {
    parse(body.as_bytes(), tokens).unwrap().objects.into_iter().map(|object| object.key).collect()
}

#[test]
fn a_page_is_read_with_its_odd_keys() {
    let page = parse(PAGE.as_bytes(), Tokens::Encoded).unwrap();
    assert_eq!(page.next.as_deref(), Some("CgJiYw--"));
    assert_eq!(page.prefixes, [Key::from("d/sub dir/")]);
    assert_eq!(page.objects.len(), 2);
    assert_eq!(page.objects[0].key, Key::from(&b"d/a b+c\xff%"[..]));
    assert_eq!(page.objects[0].etag.as_str(), "\"5B3C1A2E053D763E1B002CC607C5A0FE\"");
    assert_eq!(page.objects[0].size, 344_606);
    assert_eq!(page.objects[0].modified, UNIX_EPOCH + Duration::from_secs(1_330_072_987));
    assert_eq!(page.objects[1].etag.as_str(), "\"E\"");
}

#[test]
fn keys_are_as_they_are_unless_they_are_encoded() {
    let body = contents("<Key> a+b%41 &amp;&#233;<![CDATA[<&>]]>\n</Key><Size> 3 </Size>");
    assert_eq!(keys(&body, Tokens::Plain), [Key::from(" a+b%41 &é<&>\n")]);
    let encoded = body.replace("<Contents>", "<EncodingType>url</EncodingType><Contents>");
    assert_eq!(keys(&encoded, Tokens::Plain), [Key::from(" a bA &é<&>\n")]);
    // Where the encoding is named does not matter.
    let after = body.replace("</Contents>", "</Contents><EncodingType>URL</EncodingType>");
    assert_eq!(keys(&after, Tokens::Plain), keys(&encoded, Tokens::Plain));
    assert_eq!(decoded("x%01%FF%2B"), Key::from(&b"x\x01\xff+"[..]));
}

#[test]
fn what_a_store_leaves_out_is_unknown_and_not_wrong() {
    let page = parse(contents("<Key>k</Key><Size>1</Size>").as_bytes(), Tokens::Plain).unwrap();
    assert_eq!((page.objects[0].etag.as_str(), page.objects[0].modified), ("", UNIX_EPOCH));
    let page = parse(contents("<Key>k</Key><Size>1</Size><ETag>abc</ETag>").as_bytes(), Tokens::Plain).unwrap();
    assert_eq!(page.objects[0].etag.as_str(), "\"abc\"");
    let nested = contents("<Owner><ID>1</ID><Key>other</Key></Owner><Key>k</Key><Size>1</Size><Key2/>");
    assert_eq!(keys(&nested, Tokens::Plain), [Key::from("k")]);
    let spaced = "<s:ListBucketResult xmlns:s=\"u\"><s:Contents><s:Key>k</s:Key><s:Size>1</s:Size></s:Contents></s:ListBucketResult>";
    assert_eq!(keys(spaced, Tokens::Plain), [Key::from("k")]);
}

#[test]
fn an_empty_page_is_a_page() {
    for body in ["<ListBucketResult><IsTruncated>false</IsTruncated><NextContinuationToken/></ListBucketResult>", "<ListBucketResult/>"] {
        let page = parse(body.as_bytes(), Tokens::Encoded).unwrap();
        assert!(page.objects.is_empty() && page.prefixes.is_empty() && page.next.is_none());
    }
}

#[test]
fn what_is_no_listing_is_an_error_and_never_an_empty_directory() {
    for (body, words) in [
        ("", "cannot be read"),
        ("<html>", "cannot be read"),
        ("<Error><Code>InternalError</Code></Error>", "cannot be read"),
        ("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "how to go on"),
        ("<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken/></ListBucketResult>", "how to go on"),
        (&PAGE.replace("2012-02-24T08", "yesterday"), "date"),
        (&PAGE.replace("<Size>0</Size>", ""), "no key or no size"),
        (&PAGE.replace("<Size>0</Size>", "<Size>-1</Size>"), "no key or no size"),
        (&PAGE.replace("&quot;E", "&other;E"), "cannot be read"),
        (&contents("<Key>a\u{1}b</Key><Size>1</Size>"), "XML cannot say"),
        (&contents("<Key>a&#1;b</Key><Size>1</Size>"), "XML cannot say"),
        (&PAGE.replace("</Size><StorageClass>", "</Sise><StorageClass>"), "cannot be read"),
    ] {
        let error = parse(body.as_bytes(), Tokens::Encoded).unwrap_err();
        assert!(error.to_string().contains(words), "{error}: {body}");
        assert_eq!(error.is_unreadable(), words == "cannot be read" || words == "XML cannot say", "{body}");
    }
    assert!(parse(&[contents("<Key>a").as_bytes(), b"\xff</Key>"].concat(), Tokens::Plain).is_err_and(|error| error.is_unreadable()));
}

#[test]
fn a_page_that_is_cut_anywhere_is_an_error() {
    let end = PAGE.rfind("</ListBucketResult>").unwrap() + "</ListBucketResult>".len();
    for cut in 0..end {
        assert!(parse(&PAGE.as_bytes()[..cut], Tokens::Encoded).is_err(), "{}", &PAGE[..cut]);
    }
    assert!(parse(&PAGE.as_bytes()[..end], Tokens::Encoded).is_ok());
}

#[test]
fn the_token_is_known_before_the_entries_and_never_in_part() {
    let told: Vec<usize> = (0..PAGE.len()).filter(|&cut| early_token(&PAGE.as_bytes()[..cut], Tokens::Encoded).is_some()).collect();
    let first = PAGE.find("<Contents>").unwrap() + "<Contents>".len();
    assert_eq!(told, (first..PAGE.len()).collect::<Vec<_>>());
    for cut in told {
        assert_eq!(early_token(&PAGE.as_bytes()[..cut], Tokens::Encoded).as_deref(), Some("CgJiYw--"));
    }
    let last = PAGE.replace("<IsTruncated>true", "<IsTruncated>false");
    assert_eq!(early_token(last.as_bytes(), Tokens::Encoded), None);
    assert_eq!(parse(last.as_bytes(), Tokens::Encoded).unwrap().next, None);
}

#[test]
fn tokens_are_decoded_where_the_dialect_encodes_them() {
    let body = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
                <NextContinuationToken>a%2Bb+c</NextContinuationToken></ListBucketResult>";
    assert_eq!(parse(body.as_bytes(), Tokens::Plain).unwrap().next.as_deref(), Some("a%2Bb+c"));
    assert_eq!(parse(body.as_bytes(), Tokens::Encoded).unwrap().next.as_deref(), Some("a+b+c"));
}

#[test]
fn a_link_of_the_store_has_the_size_of_links() {
    let link = contents("<Key>l</Key><ETag>\"E\"</ETag><Type>Symlink</Type><Size>0</Size>");
    let same = contents("<Key>l</Key><ETag>\"E\"</ETag><Type>Normal</Type><Size>7</Size>");
    let size = |body: &str| parse(body.as_bytes(), Tokens::Encoded).unwrap().objects[0].size;
    assert_eq!((size(&link), size(&same)), (SYMLINK_SIZE, 7));
}
