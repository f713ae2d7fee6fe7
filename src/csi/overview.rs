//! What the daemons of a pod show, on pages of the pod: ready when all are, and the metrics of all with the name of the volume beside each value. It
//! asks the daemons each time and keeps nothing. Invariant: of one that does not answer the others are shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use http::StatusCode;

use super::sidecar::{PAGES, directories};
use crate::admin::{Alone, Shown, Stage, WAITS, look};
use crate::handover::Place;

/// How long a daemon may take for a page: probes wait a second or so.
const PATIENCE: Duration = Duration::from_millis(800);

/// See the module.
#[derive(Debug)]
pub struct Overview {
    /// The pod's emptyDir.
    pub directory: PathBuf,
}

impl Overview {
    /// A page of every volume's daemon.
    async fn ask(&self, page: &str) -> Vec<(String, Option<(StatusCode, String)>)> {
        let asking = directories(&self.directory).into_iter().map(async |directory| {
            let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, page_of(&directory, page).await)
        });
        join_all(asking).await
    }
}

async fn page_of(directory: &Path, page: &str) -> Option<(StatusCode, String)> {
    let stream = Place::of(&directory.join(PAGES)).and_then(|place| place.connect()).ok()?;
    look(stream, page, PATIENCE).await.inspect_err(|error| tracing::debug!(page, %error, "a daemon does not answer")).ok()
}

impl Shown for Overview {
    /// A pod whose volumes are not there yet is not ready: kubelet publishes them before it starts anything.
    async fn stage(&self) -> Stage {
        let answers = self.ask("/readyz").await;
        let is_ready = |answer: &Option<(StatusCode, String)>| answer.as_ref().is_some_and(|(status, _)| *status == StatusCode::OK);
        let waits = |answer: &Option<(StatusCode, String)>| answer.as_ref().is_some_and(|(_, text)| text == WAITS);
        if answers.is_empty() || answers.iter().any(|(_, answer)| waits(answer)) {
            Stage::Waiting
        } else if answers.iter().all(|(_, answer)| is_ready(answer)) {
            Stage::Ready
        } else {
            Stage::Beginning
        }
    }

    async fn metrics(&self) -> Option<Result<String, fmt::Error>> {
        let answers = self.ask("/metrics").await.into_iter();
        let of_volumes =
            answers.filter_map(|(name, answer)| answer.filter(|(status, _)| *status == StatusCode::OK).map(|(_, text)| (Some(name), text)));
        let own = match Alone.metrics().await? {
            Ok(own) => own,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(merge(&of_volumes.chain([(None, own)]).collect::<Vec<_>>())))
    }
}

/// One page of OpenMetrics out of those of volumes and that of this process. All samples of a family stand together there.
fn merge(pages: &[(Option<String>, String)]) -> String {
    let mut families: Vec<Family> = Vec::new();
    for (volume, text) in pages {
        let mut at = 0;
        for line in text.lines().filter(|line| *line != "# EOF" && !line.is_empty()) {
            match line.strip_prefix("# ").and_then(|rest| rest.split(' ').nth(1).map(|name| (rest, name))) {
                Some((_, name)) => {
                    at = families.iter().position(|family| family.name == name).unwrap_or(families.len());
                    if at == families.len() {
                        families.push(Family { name: name.to_owned(), ..Family::default() });
                    }
                    let family = &mut families[at];
                    if !family.about.iter().any(|known| known == line) {
                        family.about.push(line.to_owned());
                    }
                }
                None => {
                    if let Some(family) = families.get_mut(at) {
                        family.samples.push(volume.as_ref().map_or_else(|| line.to_owned(), |volume| labelled(line, volume)));
                    }
                }
            }
        }
    }
    let lines = families.into_iter().flat_map(|family| family.about.into_iter().chain(family.samples));
    lines.chain(["# EOF".to_owned()]).map(|line| line + "\n").collect()
}

/// A metric with its lines.
#[derive(Debug, Default)]
struct Family {
    name: String,
    /// HELP, TYPE and UNIT.
    about: Vec<String>,
    samples: Vec<String>,
}

/// A value with the volume among its labels.
fn labelled(sample: &str, volume: &str) -> String {
    let volume = volume.replace('\\', "\\\\").replace('"', "\\\"");
    let end = sample.find(['{', ' ']).unwrap_or(sample.len());
    let (name, rest) = sample.split_at(end);
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with('}') => format!("{name}{{volume=\"{volume}\"{labels}"),
        Some(labels) => format!("{name}{{volume=\"{volume}\",{labels}"),
        None => format!("{name}{{volume=\"{volume}\"}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stand_together_and_values_say_whose_they_are() {
        let page =
            |value: u32| format!("# HELP a Help.\n# TYPE a counter\na_total {value}\n# TYPE b gauge\nb{{op=\"x y\"}} {value}\n# EOF\n");
        let own = "# TYPE b gauge\nb 3\n# EOF\n".to_owned();
        let merged = merge(&[(Some("one".into()), page(1)), (Some("t\"o".into()), page(2)), (None, own)]);
        let expected = "# HELP a Help.\n# TYPE a counter\na_total{volume=\"one\"} 1\na_total{volume=\"t\\\"o\"} 2\n\
                        # TYPE b gauge\nb{volume=\"one\",op=\"x y\"} 1\nb{volume=\"t\\\"o\",op=\"x y\"} 2\nb 3\n# EOF\n";
        assert_eq!(merged, expected);
        assert_eq!(labelled("c{} 1", "v"), "c{volume=\"v\"} 1");
    }
}
