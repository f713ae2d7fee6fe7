//! What every store promises the code above it, one function a promise, run over each store that we can have: in memory,
//! s3s-fs, our own S3 and OSS servers, and moto, versitygw and MinIO, which others wrote. Stores deviate (s3s-fs serves GETs without looking at
//! If-Match); our client keeps the promise all the same.
//!
//! moto, versitygw and MinIO run as child processes: see [`third_party`](support::third_party) for how each is found.
//! Without one its trials are reported as ignored; one that is named and does not start fails them.

/// One test after the other, with its name.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), || Box::pin($name()))),*]
    };
}

mod faults;
mod promises;
mod read_endpoint;
mod redirects;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod write_faults;

use std::process::ExitCode;
use std::sync::Arc;

use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use stores::{Kind, ThirdParties};

/// A test of one store that it opens itself.
type Test = fn() -> LocalBoxFuture<'static, ()>;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let others = Arc::new(ThirdParties::find());
    for absent in others.absent().filter(|_| !args.list) {
        eprintln!("store_conformance: trials are ignored: {absent}");
    }
    let mut trials: Vec<Trial> = promises::ALL.iter().flat_map(|promise| over_every_store(promise, &others)).collect();
    trials.extend(faults::ALL.iter().chain(write_faults::ALL).chain(read_endpoint::ALL).chain(redirects::ALL).map(|(name, test)| {
        Trial::test(format!("faults::{name}"), || {
            run(test());
            Ok(())
        })
    }));
    let conclusion = libtest_mimic::run(&args, trials);
    // Trials that panicked were caught; `exit` would leave the children behind.
    others.stop();
    conclusion.exit_code()
}

/// The trials of one promise.
fn over_every_store<'a>(promise: &'a promises::Promise, others: &'a Arc<ThirdParties>) -> impl Iterator<Item = Trial> + 'a {
    Kind::ALL.into_iter().filter(|&kind| (promise.concerns)(kind)).map(move |kind| {
        let (others, test) = (others.clone(), promise.test);
        Trial::ignorable_test(format!("{}::{}", kind.name(), promise.name), move || over(kind, &others, test))
    })
}

fn over(kind: Kind, others: &ThirdParties, test: promises::Test) -> Result<Completion, Failed> {
    if let Some(other) = others.of(kind)
        && let Err(reason) = other.endpoint()
    {
        // Who names a program wants it to work; one that is just there may be anything, such as a shim of another Python.
        return if other.is_named() { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) };
    }
    run(Box::pin(async move { test(stores::Bucket::new(kind, others).await).await }));
    Ok(Completion::Completed)
}

/// Each trial has a runtime of its own, so that a connection left open by one cannot serve another.
fn run(test: LocalBoxFuture<'_, ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(test);
}
