//! Where a volume appears, and where the pod's own directory for it is: both are told by the path that the kubelet mounts at. Touches no
//! disk. Invariant: every part taken from a path is one plain name.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

/// The emptyDir over which driver and sidecar of a pod meet.
pub const MEETING: &str = "windlass";

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Which pod.
    pub pod: String,
    /// The volume's name in the pod, or that of the persistent volume.
    pub name: String,
}

impl Target {
    /// That of `path`, which a kubelet whose directory is `kubelet` makes
    /// `pods/POD/volumes/kubernetes.io~csi/NAME/mount`. `told` is the pod that the request names besides (podInfoOnMount).
    ///
    /// # Errors
    /// Why it cannot be one, in words for people.
    pub fn parse(path: &str, kubelet: &Path, told: Option<&str>) -> Result<Self, String> {
        let path = Path::new(path);
        if !path.is_absolute() || !path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_))) {
            return Err(format!("target path {}: must be absolute and without \"..\"", path.display()));
        }
        let name = path.parent().and_then(Path::file_name).and_then(OsStr::to_str).map(str::to_owned);
        let found = pod_of(path, kubelet);
        let pod = match (found, told) {
            (Some(found), Some(told)) if found != told => {
                return Err(format!("target path {} is of pod {found}, and the request is for pod {told}", path.display()));
            }
            (Some(pod), _) => pod,
            (None, Some(told)) if is_name(told) => told.to_owned(),
            (None, _) => {
                let kubelet = kubelet.display();
                return Err(format!(
                    "target path {} is of no pod: it does not lie in {kubelet}/pods (is --kubelet-dir right?), and the request names none \
                     (does the CSIDriver have podInfoOnMount: true?)",
                    path.display()
                ));
            }
        };
        let name = name.filter(|name| is_name(name)).ok_or_else(|| format!("target path {} names no volume", path.display()))?;
        Ok(Self { path: path.to_owned(), pod, name })
    }

    /// The pod's meeting place, below the directory of the kubelet.
    pub fn meeting(&self) -> PathBuf {
        [OsStr::new("pods"), OsStr::new(&self.pod), OsStr::new("volumes/kubernetes.io~empty-dir"), OsStr::new(MEETING)].iter().collect()
    }
}

/// The pod whose directory a path lies in.
fn pod_of(path: &Path, kubelet: &Path) -> Option<String> {
    let mut parts = path.strip_prefix(kubelet.join("pods")).ok()?.iter().map(OsStr::to_owned);
    let pod = parts.next()?.into_string().ok()?;
    let rest: Vec<OsString> = parts.take(2).collect();
    (rest == ["volumes", "kubernetes.io~csi"]).then_some(pod)
}

/// Whether it can be the name of a file.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 255 && !text.contains(['/', '\0']) && text != "." && text != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: &str = "/var/lib/kubelet";

    fn parse(path: &str, told: Option<&str>) -> Result<Target, String> {
        Target::parse(path, Path::new(KUBELET), told)
    }

    #[test]
    fn the_path_tells_pod_and_volume() {
        let path = "/var/lib/kubelet/pods/0-1-2/volumes/kubernetes.io~csi/data/mount";
        let target = parse(path, None).unwrap();
        assert_eq!((target.pod.as_str(), target.name.as_str(), target.path.as_path()), ("0-1-2", "data", Path::new(path)));
        assert_eq!(target.meeting(), Path::new("pods/0-1-2/volumes/kubernetes.io~empty-dir/windlass"));
        assert_eq!(parse(path, Some("0-1-2")), Ok(target));
        assert!(parse(path, Some("other")).unwrap_err().contains("other"));
    }

    #[test]
    fn a_path_elsewhere_is_of_the_pod_that_the_request_names() {
        let target = parse("/data/kubelet/pods/7/volumes/kubernetes.io~csi/data/mount", Some("7")).unwrap();
        assert_eq!((target.pod.as_str(), target.name.as_str()), ("7", "data"));
        assert!(parse("/data/mount", None).unwrap_err().contains("podInfoOnMount"));
    }

    #[test]
    fn no_path_leads_out() {
        for path in ["data/mount", "/var/lib/kubelet/pods/../x/mount", "/", "/mount"] {
            assert!(parse(path, Some("7")).is_err(), "{path}");
        }
        for pod in ["..", "a/b", ""] {
            assert!(parse("/data/x/mount", Some(pod)).is_err(), "{pod}");
        }
    }
}
