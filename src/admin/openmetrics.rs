//! What a mount counts and holds in the text form of Prometheus (OpenMetrics 1.0). The encoder is that of the project itself; this only says
//! what there is. Invariant: every name of the table that a mount has a value for is in the text, with its unit and its help.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::protocol::Stats;
use crate::metrics::{self, BOUNDS, PREFIX, Reading, Row, Spread, Type};

/// What it is to those who ask for it.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bounds that are told: of six a decade these, so that a histogram takes half of the lines.
const TOLD: [u64; 3] = [10, 20, 50];

/// The text.
pub(super) fn text(stats: Stats) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    let about = [("version", &stats.windlass), ("source", &stats.source), ("mountpoint", &stats.mountpoint)];
    let about = about.map(|(label, value)| (label.to_owned(), value.clone())).to_vec();
    registry.register("mount", "What is mounted where, and by which version", Info::new(about));
    registry.register_collector(Box::new(Look(stats)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Look(Stats);

impl Collector for Look {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, reading) in [&self.0.counters, &self.0.gauges, &self.0.histograms].into_iter().flatten() {
            let Some(row) = metrics::row(name) else { continue };
            family(&mut encoder, row, reading)?;
        }
        Ok(())
    }
}

fn family(encoder: &mut DescriptorEncoder<'_>, row: &Row, reading: &Reading) -> fmt::Result {
    let (kind, unit) = match row.kind {
        Type::Counter => (MetricType::Counter, row.unit()),
        Type::Gauge => (MetricType::Gauge, row.unit()),
        Type::Histogram => (MetricType::Histogram, row.unit()),
    };
    // The encoder puts the unit behind the name itself.
    let name = unit.map_or(row.name, |unit| row.name.trim_end_matches(unit).trim_end_matches('_'));
    let unit = unit.map(|unit| Unit::Other(unit.to_owned()));
    let mut metric = encoder.encode_descriptor(name, row.help, unit.as_ref(), kind)?;
    for (values, reading) in reading.flat() {
        if row.labels.is_empty() {
            sample(&mut metric, row.kind, reading)?;
        } else {
            let labels: Vec<(&str, &str)> = row.labels.iter().copied().zip(values).collect();
            sample(&mut metric.encode_family(&labels)?, row.kind, reading)?;
        }
    }
    Ok(())
}

fn sample(metric: &mut MetricEncoder<'_>, kind: Type, reading: &Reading) -> fmt::Result {
    match (kind, reading) {
        (Type::Histogram, reading) => histogram(metric, &reading.spread()),
        (Type::Counter, reading) => metric.encode_counter(&reading.number(), None::<&Exemplar<NoLabelSet, f64>>),
        // No gauge of ours comes near the bound of what the encoder takes.
        (Type::Gauge, reading) => metric.encode_gauge(&i64::try_from(reading.number()).unwrap_or(i64::MAX)),
    }
}

/// The encoder wants what lies in each bucket, and adds it up itself.
fn histogram(metric: &mut MetricEncoder<'_>, spread: &Spread) -> fmt::Result {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut rest = spread.bucket_nanoseconds.iter().peekable();
    for bound in BOUNDS.iter().copied().filter(|&bound| is_told(bound)) {
        let mut count = 0;
        while let Some((_, more)) = rest.next_if(|(known, _)| *known <= bound) {
            count += more;
        }
        buckets.push((bound as f64 / 1e9, count));
    }
    buckets.push((f64::INFINITY, rest.map(|(_, count)| count).sum()));
    metric.encode_histogram(spread.sum_seconds, spread.count, &buckets, None::<&HashMap<usize, Exemplar<NoLabelSet, f64>>>)
}

fn is_told(bound: u64) -> bool {
    let mut digits = bound;
    while digits >= 100 {
        digits /= 10;
    }
    TOLD.contains(&digits)
}
