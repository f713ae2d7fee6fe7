//! deploy/ is held true: its manifests against the schemas of Kubernetes, against each other and against the program, its Dockerfile against
//! the checkout. It needs no cluster and starts none. Invariant: what cannot be checked here is named.

#[path = "support/python.rs"]
mod python;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Completion, Trial};
use serde::Deserialize;
use serde_json::Value;
use windlass::config::find;

/// Our image, whatever its version.
const IMAGE: &str = "windlass:";

/// Reads YAML as Kubernetes does, and judges every document by the schemas of every version from 1.30 on: a line for each that is wrong, and
/// one for each kind that no version knows.
const VALIDATE: &str = r#"
import sys, yaml, kubernetes_validate as kv
from kubernetes_validate.utils import all_versions
versions = sorted({v for v in all_versions() if tuple(map(int, v.split("."))) >= (1, 30, 0)}, key=lambda v: tuple(map(int, v.split("."))))
assert versions[0].startswith("1.30"), versions
for path in sys.argv[1:]:
    for document in yaml.safe_load_all(open(path)):
        for version in versions:
            try:
                kv.validate(document, version, strict=True)
            except kv.ValidationError as error:
                print("wrong", document["kind"], version, ".".join(map(str, error.path)), error.message.splitlines()[0])
            except kv.SchemaNotFoundError:
                print("unknown", document["apiVersion"], document["kind"], version)
print("versions", len(versions))
"#;

fn main() {
    let trials = vec![
        with_schemas("kubernetes_takes_every_manifest", every_manifest_is_valid),
        with_schemas("a_misspelt_field_is_noticed", a_misspelt_field_is_noticed),
        always("every_argument_line_is_understood", every_argument_line_is_understood),
        always("the_driver_has_one_name", the_driver_has_one_name),
        always("a_pod_with_a_volume_has_its_sidecar_without_privilege", pods_have_their_sidecar),
        always("the_driver_has_no_rights_at_the_api_server", the_driver_has_no_rights),
        always("attributes_of_volumes_are_options", attributes_are_options),
        always("the_pod_monitor_finds_the_sidecars", the_pod_monitor_finds_the_sidecars),
        always("the_image_is_made_of_what_is_there", the_image_is_made_of_what_is_there),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn always(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

fn with_schemas(name: &str, test: fn()) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = python::lacks("kubernetes_validate") {
            return Ok(Completion::ignored_with(reason));
        }
        test();
        Ok(Completion::Completed)
    })
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn manifests() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).expect("deploy/ is part of the sources").map(|entry| entry.expect("it can be listed").path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    files.sort();
    assert!(files.len() >= 8, "{files:?}");
    files
}

fn documents() -> Vec<Value> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("it was listed");
        let documents = serde_yaml_ng::Deserializer::from_str(&text).map(Value::deserialize).collect::<Result<Vec<_>, _>>();
        documents.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    manifests().into_iter().flat_map(read).collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    let found: Vec<_> = documents().into_iter().filter(|document| document["kind"] == kind).collect();
    assert!(!found.is_empty(), "there is no {kind}");
    found
}

/// The pod of a document, or of its template.
fn pod_of(document: &Value) -> Option<&Value> {
    match document["kind"].as_str() {
        Some("Pod") => Some(document),
        Some("DaemonSet" | "Deployment") => Some(&document["spec"]["template"]),
        _ => None,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn named<'a>(values: &'a Value, name: &str) -> &'a Value {
    list(values).iter().find(|value| value["name"] == name).unwrap_or(&Value::Null)
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["spec"]["initContainers"]).iter().chain(list(&pod["spec"]["containers"]))
}

fn arguments(container: &Value) -> Vec<&str> {
    list(&container["args"]).iter().map(text).collect()
}

/// The value behind a flag.
fn after<'a>(arguments: &[&'a str], flag: &str) -> &'a str {
    let at = arguments.iter().position(|word| *word == flag).unwrap_or_else(|| panic!("{arguments:?} has no {flag}"));
    arguments[at + 1]
}

fn driver() -> String {
    text(&of_kind("CSIDriver")[0]["metadata"]["name"]).to_owned()
}

fn every_manifest_is_valid() {
    let files = manifests();
    let said = python::run(VALIDATE, &files.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    let wrong: Vec<_> = said.lines().filter(|line| line.starts_with("wrong")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Its schema belongs to the Prometheus operator and not to Kubernetes: all that is known of it is checked below.
    let unknown: BTreeSet<_> =
        said.lines().filter_map(|line| line.strip_prefix("unknown ")?.rsplit_once(' ')).map(|(kind, _)| kind).collect();
    assert_eq!(unknown, ["monitoring.coreos.com/v1 PodMonitor"].into());
    let versions = said.lines().last().and_then(|line| line.strip_prefix("versions ")?.parse::<u32>().ok());
    assert!(versions.is_some_and(|count| count >= 4), "{said}");
}

fn a_misspelt_field_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    for (name, right, misspelt) in [
        ("driver.yaml", "requiresRepublish:", "requireRepublish:"),
        ("driver.yaml", "mountPropagation:", "mountPropogation:"),
        ("pod-inline.yaml", "allowPrivilegeEscalation:", "allowPriviledgeEscalation:"),
        ("static-volume.yaml", "nodePublishSecretRef:", "nodePublishSecretsRef:"),
        ("storageclass.yaml", "reclaimPolicy:", "reclaimPolice:"),
    ] {
        let good = fs::read_to_string(folder().join(name)).unwrap();
        assert!(good.contains(right), "{name}: {right}");
        let bad = dir.path().join(name);
        fs::write(&bad, good.replacen(right, misspelt, 1)).unwrap();
        let said = python::run(VALIDATE, &[&bad]);
        assert!(said.contains("wrong") && said.contains(misspelt.trim_end_matches(':')), "{misspelt}: {said}");
    }
}

fn every_argument_line_is_understood() {
    let documents = documents();
    let ours = documents.iter().filter_map(pod_of).flat_map(containers).filter(|container| text(&container["image"]).starts_with(IMAGE));
    let mut seen = BTreeSet::new();
    for container in ours {
        let words: Vec<_> = arguments(container).iter().map(|word| word.replace("$(NODE)", "node-1")).collect();
        seen.insert(words[0].clone());
        let parsed = windlass::cli::command().try_get_matches_from(["windlass".to_owned()].into_iter().chain(words.clone()));
        assert!(parsed.is_ok(), "windlass {}: {}", words.join(" "), parsed.unwrap_err());
        for variable in list(&container["env"]).iter().map(|variable| text(&variable["name"])) {
            let option = variable.strip_prefix("WINDLASS_").map(str::to_ascii_lowercase);
            assert!(option.is_none_or(|option| find(&option).is_some()), "{variable} names no option");
        }
    }
    assert_eq!(seen, ["csi".to_owned(), "sidecar".to_owned()].into());
}

fn the_driver_has_one_name() {
    let driver = driver();
    let documents = documents();
    let volumes = documents.iter().filter_map(pod_of).flat_map(|pod| list(&pod["spec"]["volumes"]));
    let inline = volumes.filter_map(|volume| volume["csi"]["driver"].as_str());
    let persistent = documents.iter().filter_map(|document| document["spec"]["csi"]["driver"].as_str());
    let classes = documents.iter().filter_map(|document| document["provisioner"].as_str());
    let names: Vec<_> = inline.chain(persistent).chain(classes).collect();
    assert!(names.len() >= 3 && names.iter().all(|name| *name == driver), "{names:?}");
    // Where the kubelet looks for it.
    let node = &of_kind("DaemonSet")[0];
    let words = arguments(&node["spec"]["template"]["spec"]["containers"][0]);
    assert_eq!(after(&words, "--endpoint"), format!("unix://{}/plugins/{driver}/csi.sock", after(&words, "--kubelet-dir")));
    let mounts = &node["spec"]["template"]["spec"]["containers"][0]["volumeMounts"];
    assert_eq!(named(mounts, "kubelet")["mountPath"], after(&words, "--kubelet-dir"));
    assert_eq!(named(mounts, "kubelet")["mountPropagation"], "Bidirectional");
}

fn pods_have_their_sidecar() {
    let pods = of_kind("Pod");
    assert!(pods.len() >= 2);
    for pod in &pods {
        let sidecar = named(&pod["spec"]["initContainers"], "windlass");
        assert_eq!(sidecar["restartPolicy"], "Always", "a native sidecar");
        let context = &sidecar["securityContext"];
        assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
        assert_eq!((&context["runAsNonRoot"], &context["runAsUser"]), (&true.into(), &65534.into()));
        assert_eq!((&context["readOnlyRootFilesystem"], &context["allowPrivilegeEscalation"]), (&true.into(), &false.into()));
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
        assert!(context["privileged"].is_null() && context["capabilities"]["add"].is_null());
        // The driver looks for the socket in the emptyDir of this name.
        let words = arguments(sidecar);
        assert!(named(&pod["spec"]["volumes"], "windlass")["emptyDir"].is_object());
        assert_eq!(named(&sidecar["volumeMounts"], "windlass")["mountPath"], after(&words, "--dir"));
        let port = after(&words, "--listen").trim_start_matches(':');
        assert_eq!(sidecar["ports"][0]["containerPort"].to_string(), port);
        assert_eq!(sidecar["startupProbe"]["httpGet"]["path"], "/readyz");
        assert_eq!(sidecar["startupProbe"]["httpGet"]["port"], sidecar["ports"][0]["name"]);
        assert!(sidecar["resources"]["limits"]["memory"].is_string(), "its buffers are a fraction of this");
        let app = named(&pod["spec"]["containers"], "app");
        assert_eq!(named(&app["volumeMounts"], "data")["mountPath"], "/mnt/oss");
    }
}

fn the_driver_has_no_rights() {
    let node = &of_kind("DaemonSet")[0]["spec"]["template"]["spec"];
    assert_eq!(node["automountServiceAccountToken"], false);
    assert_eq!(named(&node["containers"], "driver")["securityContext"]["readOnlyRootFilesystem"], true);
    let account = &node["serviceAccountName"];
    for document in documents() {
        let subjects = list(&document["subjects"]);
        assert!(subjects.iter().all(|subject| subject["name"] != *account), "{document}");
    }
    let driver = &of_kind("CSIDriver")[0]["spec"];
    assert_eq!(
        (&driver["attachRequired"], &driver["podInfoOnMount"], &driver["requiresRepublish"]),
        (&false.into(), &true.into(), &true.into())
    );
    let audiences: Vec<_> = list(&driver["tokenRequests"]).iter().map(|request| text(&request["audience"])).collect();
    assert_eq!(audiences, ["sts.aliyuncs.com", "sts.amazonaws.com", "pods.eks.amazonaws.com"]);
    assert_eq!(driver["volumeLifecycleModes"], serde_json::json!(["Persistent", "Ephemeral"]));
}

fn attributes_are_options() {
    let documents = documents();
    let inline =
        documents.iter().filter_map(pod_of).flat_map(|pod| list(&pod["spec"]["volumes"])).map(|volume| &volume["csi"]["volumeAttributes"]);
    let persistent = documents.iter().map(|document| &document["spec"]["csi"]["volumeAttributes"]);
    let classes = documents.iter().map(|document| &document["parameters"]);
    let attributes = inline.chain(persistent).chain(classes).filter_map(Value::as_object).flat_map(|attributes| attributes.iter());
    let mut seen = 0;
    for (name, value) in attributes.filter(|(name, _)| !name.starts_with("csi.storage.k8s.io/")) {
        let (spec, _) = find(name).unwrap_or_else(|| panic!("{name} is no option"));
        assert!(spec.kind.parse(text(value)).is_ok(), "{name}={value}");
        seen += 1;
    }
    assert!(seen >= 9, "{seen}");
}

fn the_pod_monitor_finds_the_sidecars() {
    let monitor = &of_kind("PodMonitor")[0]["spec"];
    let wanted = monitor["selector"]["matchLabels"].as_object().expect("it selects by labels");
    for pod in of_kind("Pod") {
        for (label, value) in wanted {
            assert_eq!(pod["metadata"]["labels"][label], *value, "{label}");
        }
        let ports: Vec<_> = containers(&pod).flat_map(|container| list(&container["ports"])).map(|port| &port["name"]).collect();
        for endpoint in list(&monitor["podMetricsEndpoints"]) {
            assert!(ports.contains(&&endpoint["port"]), "{endpoint}");
            assert_eq!(endpoint["path"], "/metrics");
        }
    }
}

fn the_image_is_made_of_what_is_there() {
    let dockerfile = fs::read_to_string(folder().join("Dockerfile")).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copies = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--from"));
    let sources: Vec<_> = copies.flat_map(|line| line.split(' ').rev().skip(1).collect::<Vec<_>>()).collect();
    let sent = fs::read_to_string(folder().join("Dockerfile.dockerignore")).unwrap();
    let sent: Vec<_> = sent.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for source in sources.iter().map(|source| source.trim_start_matches("./")) {
        assert!(root.join(source).exists(), "{source}");
        assert!(sent.contains(&source), "{source} is not sent to the builder");
    }
    assert!(sources.len() >= 5, "{sources:?}");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"')).unwrap();
    assert!(dockerfile.contains(&format!("rust:{version}-")), "the compiler of the image is not Rust {version}");
    // What every image is by default, and the one that has to mount.
    let users: Vec<_> = dockerfile.lines().filter_map(|line| line.strip_prefix("USER ")).collect();
    assert_eq!(users, ["0:0", "65534:65534"]);
    let documents = documents();
    let ours = documents.iter().filter_map(pod_of).flat_map(containers).map(|container| text(&container["image"]));
    let package = env!("CARGO_PKG_VERSION");
    assert!(ours.filter(|image| image.starts_with(IMAGE)).all(|image| image == format!("{IMAGE}{package}")));
}
