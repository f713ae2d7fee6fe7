"""Gives objects attributes, and says afterwards which of them they still have.

    attributes.py set ENDPOINT BUCKET SIZE KEY...    makes the bucket and the objects; prints the attributes that the server has
    attributes.py look ENDPOINT BUCKET KEY...        prints, for each key, each attribute that is as it was set
"""

import datetime
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

UNTIL = datetime.datetime(2099, 1, 1, tzinfo=datetime.timezone.utc)
OTHER = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
EVERYBODY = "http://acs.amazonaws.com/groups/global/AllUsers"

# What is given to PutObject, and what of the answers to HEAD, GetObjectTagging and GetObjectAcl shows it.
ATTRIBUTES = {
    "Content-Type": ({"ContentType": "model/gguf"}, lambda head, tags, acl: head["ContentType"] == "model/gguf"),
    "Cache-Control": ({"CacheControl": "no-store"}, lambda head, tags, acl: head["CacheControl"] == "no-store"),
    "Content-Disposition": ({"ContentDisposition": "inline"}, lambda head, tags, acl: head["ContentDisposition"] == "inline"),
    "Content-Encoding": ({"ContentEncoding": "zstd"}, lambda head, tags, acl: head["ContentEncoding"] == "zstd"),
    "Content-Language": ({"ContentLanguage": "de"}, lambda head, tags, acl: head["ContentLanguage"] == "de"),
    "Expires": ({"Expires": UNTIL}, lambda head, tags, acl: "2099" in head["ResponseMetadata"]["HTTPHeaders"]["expires"]),
    "user metadata": ({"Metadata": {"owner": "me"}}, lambda head, tags, acl: head["Metadata"]["owner"] == "me"),
    "tags": ({"Tagging": "team=a%20b&x=1"}, lambda head, tags, acl: tags() == {"team": "a b", "x": "1"}),
    "storage class": ({"StorageClass": "REDUCED_REDUNDANCY"}, lambda head, tags, acl: head["StorageClass"] == "REDUCED_REDUNDANCY"),
    "encryption": ({"ServerSideEncryption": "aws:kms"}, lambda head, tags, acl: head["ServerSideEncryption"] == "aws:kms"),
    "its key": (
        {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "kept-key"},
        lambda head, tags, acl: head["SSEKMSKeyId"].endswith("kept-key"),
    ),
    "access list in one word": ({"ACL": "public-read"}, lambda head, tags, acl: acl()[EVERYBODY] == {"READ"}),
    "access list by rights": (
        {"GrantRead": f"id={OTHER}", "GrantReadACP": f"id={OTHER}"},
        lambda head, tags, acl: acl()[OTHER] == {"READ", "READ_ACP"},
    ),
    "lock: mode and date": (
        {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": UNTIL, "ChecksumAlgorithm": "CRC32"},
        lambda head, tags, acl: (head["ObjectLockMode"], head["ObjectLockRetainUntilDate"].year) == ("GOVERNANCE", 2099),
    ),
    "lock: legal hold": (
        {"ObjectLockLegalHoldStatus": "ON", "ChecksumAlgorithm": "CRC32"},
        lambda head, tags, acl: head["ObjectLockLegalHoldStatus"] == "ON",
    ),
    "website redirect": ({"WebsiteRedirectLocation": "/else"}, lambda head, tags, acl: head["WebsiteRedirectLocation"] == "/else"),
}


def client(endpoint):
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required", retries={"max_attempts": 1})
    return boto3.client("s3", endpoint_url=endpoint, config=config)


def shown(s3, bucket, key):
    """The attributes that the object has."""
    where = {"Bucket": bucket, "Key": key}
    head = s3.head_object(**where)

    def tags():
        return {tag["Key"]: tag["Value"] for tag in s3.get_object_tagging(**where)["TagSet"]}

    def acl():
        rights = {}
        for grant in s3.get_object_acl(**where)["Grants"]:
            who = grant["Grantee"].get("URI") or grant["Grantee"].get("ID")
            rights.setdefault(who, set()).add(grant["Permission"])
        return rights

    for name, (_, shows) in ATTRIBUTES.items():
        try:
            if shows(head, tags, acl):
                yield name
        except (KeyError, ClientError):
            pass


def has(s3, bucket, name):
    """Whether the server has such an attribute."""
    try:
        s3.put_object(Bucket=bucket, Key="tried", Body=b"x", **ATTRIBUTES[name][0])
    except ClientError:
        return False
    return name in shown(s3, bucket, "tried")


def main():
    command, endpoint, bucket = sys.argv[1:4]
    s3 = client(endpoint)
    if command == "look":
        for key in sys.argv[4:]:
            for name in shown(s3, bucket, key):
                print(f"{key}\t{name}")
        return
    try:
        s3.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True, ObjectOwnership="ObjectWriter")
    except s3.exceptions.BucketAlreadyOwnedByYou:
        pass
    known = [name for name in ATTRIBUTES if has(s3, bucket, name)]
    for key in sys.argv[5:]:
        # An object has its rights in one word or one by one.
        other = "access list in one word" if key.endswith("rights") else "access list by rights"
        given = {}
        for name in known:
            if name != other:
                given.update(ATTRIBUTES[name][0])
        s3.put_object(Bucket=bucket, Key=key, Body=b"0123456789abcdef" * (int(sys.argv[4]) // 16), **given)
    print("\n".join(known))


main()
