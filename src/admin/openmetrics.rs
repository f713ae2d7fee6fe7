//! What a mount counts and holds, and what the kernel tells of its process, in the two text forms that Prometheus reads: OpenMetrics 1.0 where it is
//! asked for, and the older form 0.0.4. The encoder is that of the project itself, and writes the first; this says what there is, and derives the
//! second. Invariant: every name of the table that a mount has a value for is in the text, with its help.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::process::Process;
use super::protocol::Stats;
use crate::metrics::{self, BOUNDS, PREFIX, Reading, Row, Spread, Type};

/// A form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    OpenMetrics,
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>
    Classic,
}

impl Form {
    /// The form that an `Accept` header prefers (RFC 9110, section 12.5.1); without a word for OpenMetrics it is the older one, which all programs read.
    pub fn accepted(header: &str) -> Self {
        let quality = |kind: &str| {
            let range = header.split(',').map(str::trim).find(|range| range.split(';').next().is_some_and(|name| name.trim() == kind))?;
            let weight = range.split(';').skip(1).find_map(|parameter| parameter.trim().strip_prefix("q="));
            weight.map_or(Some(1.0), |weight| weight.trim().parse::<f32>().ok())
        };
        let open = quality("application/openmetrics-text").unwrap_or(0.0);
        if open > 0.0 && open >= quality("text/plain").unwrap_or(0.0) { Self::OpenMetrics } else { Self::Classic }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// `text`, which is OpenMetrics, in this form.
    pub fn of(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Classic => classic(&text),
        }
    }
}

/// What ends a text of OpenMetrics.
const END: &str = "# EOF\n";

/// The older form: a family of counters has the name of its samples, there are no units and no end, and information is a gauge.
fn classic(text: &str) -> String {
    let about = |line: &str| line.strip_prefix("# ").map(|rest| rest.splitn(3, ' ').map(str::to_owned).collect::<Vec<_>>());
    let kinds: HashMap<String, String> = text
        .lines()
        .filter_map(about)
        .filter_map(|words| match &words[..] {
            [word, name, kind] if word == "TYPE" => Some((name.clone(), kind.clone())),
            _ => None,
        })
        .collect();
    let mut lines = String::new();
    for line in text.lines() {
        let words = about(line);
        let shown = match words.as_deref() {
            None => line.to_owned(),
            Some([word, name, rest]) if word == "HELP" || word == "TYPE" => {
                let (suffix, kind) = match kinds.get(name).map(String::as_str) {
                    Some("counter") => ("_total", "counter"),
                    Some("info") => ("_info", "gauge"),
                    Some(kind) => ("", kind),
                    None => ("", "untyped"),
                };
                format!("# {word} {name}{suffix} {}", if word == "TYPE" { kind } else { rest })
            }
            Some(_) => continue,
        };
        lines.push_str(&shown);
        lines.push('\n');
    }
    lines
}

/// Bounds that are told: of six a decade these, so that a histogram takes half of the lines.
const TOLD: [u64; 3] = [10, 20, 50];

/// The text of a mount and its process, in OpenMetrics.
pub(super) fn text(stats: Stats, process: Process) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    let about = [("version", &stats.windlass), ("source", &stats.source), ("mountpoint", &stats.mountpoint)];
    let about = about.map(|(label, value)| (label.to_owned(), value.clone())).to_vec();
    registry.register("mount", "What is mounted where, and by which version", Info::new(about));
    registry.register_collector(Box::new(Look(stats)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    text.truncate(text.trim_end_matches(END).len());
    Ok(text + &of_process(process)?)
}

/// The text of a process alone, in OpenMetrics.
pub(super) fn of_process(process: Process) -> Result<String, fmt::Error> {
    // Without a prefix: these are the names that every program has.
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (seconds, bytes) = (Some(Unit::Seconds), Some(Unit::Bytes));
        let exemplar = None::<&Exemplar<NoLabelSet, f64>>;
        if let Some(value) = self.cpu_seconds {
            let help = "User and system CPU time of the process";
            encoder.encode_descriptor("process_cpu", help, seconds.as_ref(), MetricType::Counter)?.encode_counter(&value, exemplar)?;
        }
        if let Some(value) = self.start_time_seconds {
            let help = "When the process started, since 1970";
            encoder.encode_descriptor("process_start_time", help, seconds.as_ref(), MetricType::Gauge)?.encode_gauge(&value)?;
        }
        for (name, help, unit, value) in [
            ("process_resident_memory", "Resident memory of the process", &bytes, self.resident_bytes),
            ("process_virtual_memory", "Virtual memory of the process", &bytes, self.virtual_bytes),
            ("process_open_fds", "Open file descriptors of the process", &None, self.open_fds),
            ("process_max_fds", "File descriptors that the process may open", &None, self.max_fds),
        ] {
            if let Some(value) = value {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (header, form) in [
            ("", Form::Classic),
            ("*/*", Form::Classic),
            ("text/html, */*;q=0.1", Form::Classic),
            ("text/plain;version=0.0.4", Form::Classic),
            (prometheus, Form::OpenMetrics),
            ("application/openmetrics-text", Form::OpenMetrics),
            ("application/openmetrics-text; q=0", Form::Classic),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.9", Form::Classic),
        ] {
            assert_eq!(Form::accepted(header), form, "{header}");
        }
    }

    #[test]
    fn the_older_form_names_families_by_their_samples() {
        let open = "# HELP a_bytes Help.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"# b\"} 7\n\
                    # HELP m What.\n# TYPE m info\nm_info{v=\"1\"} 1\n# TYPE g gauge\ng 1\n# EOF\n";
        let expected = "# HELP a_bytes_total Help.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"# b\"} 7\n\
                        # HELP m_info What.\n# TYPE m_info gauge\nm_info{v=\"1\"} 1\n# TYPE g gauge\ng 1\n";
        assert_eq!(Form::Classic.of(open.to_owned()), expected);
        assert_eq!(Form::OpenMetrics.of(open.to_owned()), open);
    }

    #[test]
    fn a_process_has_the_names_that_all_programs_have() {
        let process =
            Process { cpu_seconds: Some(1.5), start_time_seconds: Some(1_700_000_000.5), open_fds: Some(9), ..Process::default() };
        let text = Form::Classic.of(of_process(process).unwrap());
        for line in ["# TYPE process_cpu_seconds_total counter", "process_cpu_seconds_total 1.5", "process_open_fds 9"] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.contains("process_start_time_seconds 1700000000.5") && !text.contains("process_max_fds"), "{text}");
    }
}
