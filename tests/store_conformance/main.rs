//! What every store promises the code above it, one function a promise, run over each store that we can have: in memory,
//! s3s-fs, our own S3 and OSS servers, and moto, which others wrote. Stores deviate (s3s-fs serves GETs without looking at
//! If-Match); our client keeps the promise all the same.
//!
//! moto runs as a child process: `pip install 'moto[server]'`, with `moto_server` on PATH or named by MOTO_SERVER.
//! Without it its trials are reported as ignored; one that is named and does not start fails them.

mod faults;
mod moto;
mod promises;
mod read_endpoint;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod write_faults;

use std::process::ExitCode;
use std::sync::Arc;

use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use moto::Moto;
use stores::Kind;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let moto = Arc::new(Moto::find());
    if moto.is_absent() && !args.list {
        eprintln!("store_conformance: the trials over moto are ignored: {}", moto::ABSENT);
    }
    let mut trials: Vec<Trial> = promises::ALL.iter().flat_map(|promise| over_every_store(promise, &moto)).collect();
    trials.extend(faults::ALL.iter().chain(write_faults::ALL).chain(read_endpoint::ALL).map(|(name, test)| {
        Trial::test(format!("faults::{name}"), || {
            run(test());
            Ok(())
        })
    }));
    let conclusion = libtest_mimic::run(&args, trials);
    // Trials that panicked were caught; `exit` would leave the child behind.
    moto.stop();
    conclusion.exit_code()
}

/// The trials of one promise.
fn over_every_store<'a>(promise: &'a promises::Promise, moto: &'a Arc<Moto>) -> impl Iterator<Item = Trial> + 'a {
    Kind::ALL.into_iter().filter(|&kind| (promise.concerns)(kind)).map(move |kind| {
        let (moto, test) = (moto.clone(), promise.test);
        Trial::ignorable_test(format!("{}::{}", kind.name(), promise.name), move || over(kind, &moto, test))
    })
}

fn over(kind: Kind, moto: &Moto, test: promises::Test) -> Result<Completion, Failed> {
    if kind == Kind::Moto
        && let Err(reason) = moto.endpoint()
    {
        // Who names a program wants it to work; one that is just there may be anything, such as a shim of another Python.
        return if moto.is_named() { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) };
    }
    run(Box::pin(async move { test(stores::Bucket::new(kind, moto).await).await }));
    Ok(Completion::Completed)
}

/// Each trial has a runtime of its own, so that a connection left open by one cannot serve another.
fn run(test: LocalBoxFuture<'_, ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(test);
}
