//! The mistakes that users of ossfs, s3fs, rclone, s5cmd, mountpoint-s3 and Kubernetes make, as a table: what is typed, the exit code and what is
//! printed on stderr, word for word. Invariant: a message has at most two lines, holds no secret and no name of a type, and a refused mount
//! leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;

use super::place::{Place, Said, run, soon};
use super::support::mounts::{lacks, trial_unless};
use super::support::{ACCESS_KEY, BUCKET, Effect, Fault, Kind, REGION, S3Server, SECRET_KEY};
use super::users::program_for_all;
use super::wrong_server::WrongServer;

const TABLE: &str = include_str!("../data/mistakes.tsv");

/// A mistake and the answer to it.
#[derive(Clone, Copy)]
struct Mistake {
    name: &'static str,
    /// What is there before the command runs, see [`World::prepare`].
    given: &'static str,
    command: &'static str,
    code: i32,
    /// The lines on stderr.
    answer: &'static str,
}

pub fn trials() -> Vec<Trial> {
    mistakes()
        .map(|mistake| trial_unless(move || mistake.lacks(), &format!("mistake_{}", mistake.name), move || answered(&mistake)))
        .collect()
}

fn mistakes() -> impl Iterator<Item = Mistake> {
    TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, given, command, code, answer] = fields[..] else { panic!("not five fields: {line}") };
        Mistake { name, given, command, code: code.parse().expect("an exit code"), answer }
    })
}

impl Mistake {
    /// The programs and the privilege without which the row cannot be shown.
    fn lacks(&self) -> Option<String> {
        let needs = |word: &str| self.given.split("; ").any(|step| step.starts_with(word));
        let no_root =
            || (!rustix::process::geteuid().is_root()).then(|| "only root can make a namespace or become another user".to_owned());
        if needs("without") || needs("disk") || needs("user") || needs("owner") {
            return no_root().or_else(|| ["unshare", "setpriv"].into_iter().find_map(lacks));
        }
        if needs("tls") { lacks("openssl") } else { None }
    }
}

/// Everything around one command.
struct World {
    place: Place,
    server: S3Server,
    environment: Vec<(String, String)>,
    /// What the command is run by, such as `unshare --net`.
    wrapper: Vec<String>,
    /// An open file of the mount.
    open: Option<fs::File>,
    tls: Option<TlsServer>,
    answering: Option<WrongServer>,
    is_mounted_before: bool,
}

impl World {
    fn new() -> Self {
        let server = S3Server::start();
        server.put("file", "content");
        server.put("dir/a", "content");
        let environment = server.client_env().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut world = Self {
            place: Place::new(),
            server,
            environment,
            wrapper: Vec::new(),
            open: None,
            tls: None,
            answering: None,
            is_mounted_before: false,
        };
        world.environment.push(("HOME".into(), world.filled("{dir}")));
        world.environment.push(("WINDLASS_PATH_STYLE".into(), "true".into()));
        // What is refused at the tenth attempt is refused at the second.
        world.environment.push(("WINDLASS_RETRIES".into(), "1".into()));
        world
    }

    /// Carries out one step of the second field of a row.
    fn prepare(&mut self, step: &str) {
        let words: Vec<&str> = step.split(' ').collect();
        match words[..] {
            ["-"] => {}
            ["set", name, value] => {
                let value = self.filled(value);
                self.environment.retain(|(other, _)| other != name);
                self.environment.push((name.into(), value));
            }
            ["unset", name] => self.environment.retain(|(other, _)| other != name),
            ["no-keys"] => self.environment.retain(|(name, _)| !name.contains("KEY")),
            ["file", name, mode, ref text @ ..] => {
                let mode = u32::from_str_radix(mode, 8).expect("a mode");
                let text = self.filled(&text.join(" ")).replace("\\n", "\n");
                self.place.write(name, &text, mode);
            }
            ["directory", name, mode] => {
                let mode = u32::from_str_radix(mode, 8).expect("a mode");
                let path = self.place.beside(name);
                fs::create_dir(&path).expect("the place is new");
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
            }
            ["owner", name, uid] => {
                let uid = uid.parse().expect("a number");
                std::os::unix::fs::chown(self.place.beside(name), Some(uid), None).expect("we are root");
            }
            ["mounted"] => {
                let mut command = self.place.mount(&self.server);
                command.arg("--log-file").arg(self.place.beside("log"));
                run(command).succeeds();
                self.is_mounted_before = true;
            }
            ["open", name] => self.open = Some(fs::File::open(self.place.at.join(name)).expect("it is mounted")),
            ["refuses", "list"] => self.server.fault(Fault::new(Effect::Status(403)).kind(Kind::List)),
            ["refuses", "put"] => self.server.fault(Fault::new(Effect::Status(403)).kind(Kind::Put)),
            ["refuses", "get"] => self.server.fault(Fault::new(Effect::Status(403)).kind(Kind::Get)),
            ["answers", status, code, ref message @ ..] => {
                let document = format!("<Code>{code}</Code><Message>{}</Message><RequestId>R1</RequestId>", message.join(" "));
                self.answering = Some(WrongServer::refusing(&format!("{status} x"), &document));
            }
            ["moved-to", region] => {
                let document =
                    format!("<Code>PermanentRedirect</Code><Message>m</Message><Region>{region}</Region><RequestId>R1</RequestId>");
                self.answering = Some(WrongServer::refusing("301 Moved Permanently", &document));
            }
            ["tls", validity] => self.tls = Some(TlsServer::start(&self.place, validity == "expired")),
            ["without", "network"] => self.wrap(&["unshare", "--net"]),
            ["without", "device"] => self.wrap(&["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "sh"]),
            ["disk", name, size] => {
                fs::create_dir(self.place.beside(name)).expect("the place is new");
                let path = self.filled(&format!("{{dir}}/{name}"));
                let script =
                    format!("mount -t tmpfs -o size={size} none {path} && head -c 1T /dev/zero > {path}/rest 2> /dev/null; exec \"$@\"");
                self.wrap(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
            }
            ["user", uid] => {
                program_for_all(&self.place);
                self.wrap(&["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--"]);
            }
            _ => panic!("the step is not known: {step}"),
        }
    }

    fn wrap(&mut self, words: &[&str]) {
        self.wrapper.extend(words.iter().map(|&word| word.to_owned()));
    }

    /// The program with what the third field of a row says: its name first.
    fn command(&self, line: &str) -> Command {
        let words: Vec<String> = line.split(' ').map(|word| self.filled(word)).collect();
        let path = self.place.beside(&words[0]);
        if !path.exists() {
            symlink(env!("CARGO_BIN_EXE_windlass"), &path).expect("it is ours");
        }
        let mut command = match self.wrapper.split_first() {
            None => {
                let mut command = Command::new(&path);
                command.arg0(&words[0]);
                command
            }
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(path);
                command
            }
        };
        command.args(&words[1..]).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// What stands for addresses and paths of the test, and what they are.
    fn placeholders(&self) -> Vec<(&'static str, String)> {
        let path = |path: &Path| path.to_str().expect("the test names it").trim_end_matches('/').to_owned();
        let (url, tls) = (self.server.endpoint(), self.tls.as_ref().map(|server| server.address.clone()));
        let host = url.trim_start_matches("http://").to_owned();
        let mut all = vec![("{at}", path(&self.place.at)), ("{dir}", path(&self.place.beside(""))), ("{url}", url), ("{host}", host)];
        all.extend(tls.map(|address| ("{tls}", address)));
        all.extend(self.answering.as_ref().map(|server| ("{answering}", server.endpoint())));
        all.extend([
            ("{key}", ACCESS_KEY.into()),
            ("{secret}", SECRET_KEY.into()),
            ("{bucket}", BUCKET.into()),
            ("{region}", REGION.into()),
        ]);
        all
    }

    fn filled(&self, text: &str) -> String {
        self.placeholders().iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// The other way round, to show a row as it could be.
    fn unfilled(&self, text: &str) -> String {
        self.placeholders()
            .iter()
            .filter(|(name, _)| !["{key}", "{secret}", "{region}"].contains(name))
            .fold(text.to_owned(), |text, (name, value)| text.replace(value, name))
    }
}

fn answered(mistake: &Mistake) {
    let mut world = World::new();
    mistake.given.split("; ").for_each(|step| world.prepare(step));
    let said = run(world.command(mistake.command));
    // doctor reports on stdout.
    let shown = if said.err.is_empty() { &said.out } else { &said.err };
    let lines: Vec<&str> = shown.lines().filter(|line| !is_progress(line)).collect();
    let shown = lines.join(" | ");
    let row =
        || format!("{}\t{}\t{}\t{}\t{}", mistake.name, mistake.given, mistake.command, said.code.unwrap_or(-1), world.unfilled(&shown));
    assert!(said.code == Some(mistake.code) && is_like(&world.filled(mistake.answer), &shown), "the row would be\n{}\n{}", row(), said.out);
    check_form(&said);
    // Its command line names the place too.
    world.tls = None;
    if world.is_mounted_before {
        return;
    }
    if mistake.code != 0 {
        assert!(!world.place.is_mounted(), "a mount is left behind");
    } else if world.place.is_mounted() {
        world.place.umount().succeeds();
    }
    assert!(soon(|| world.place.pids().is_empty()), "a process is left behind");
}

/// Whether a line tells how a transfer goes, and not why it failed.
fn is_progress(line: &str) -> bool {
    ["windlass: plan: ", "fetching: ", "storing: "].iter().any(|start| line.starts_with(start))
}

/// Checks what no message may have, whatever it says.
#[track_caller]
fn check_form(said: &Said) {
    assert!(said.err.lines().filter(|line| !is_progress(line)).count() <= 2, "{}", said.err);
    for never in [SECRET_KEY, "panicked", "RUST_BACKTRACE", "Error {", "Error(", "Other(", "Some(", "\"\"", ": ;", "; ;"] {
        assert!(!said.err.contains(never) && !said.out.contains(never), "{never:?} is in {}{}", said.out, said.err);
    }
}

/// Whether `text` is `pattern`, in which `{any}` stands for anything.
fn is_like(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once("{any}") else { return pattern == text };
    let Some(text) = text.strip_prefix(first) else { return false };
    text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| is_like(rest, &text[at..]))
}

/// A TLS server with a certificate of its own making. It ends with the value.
struct TlsServer {
    child: Child,
    address: String,
}

impl TlsServer {
    fn start(place: &Place, is_expired: bool) -> Self {
        let [key, certificate, request] = ["tls-key", "tls-certificate", "tls-request"].map(|name| place.beside(name));
        let mut make = Command::new("openssl");
        make.args(["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout"]);
        make.arg(&key).arg("-out");
        if is_expired {
            succeeds(make.arg(&request));
            // Only `openssl ca` makes a certificate whose time is over.
            let directory = place.beside("");
            place.write("tls-index", "", 0o600);
            let lines = "[ca]\ndefault_ca=a\n[a]\ndatabase=DIR/tls-index\nnew_certs_dir=DIR/\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n\
                         x509_extensions=e\n[p]\n[e]\nsubjectAltName=IP:127.0.0.1\n";
            let config = place.write("tls-config", &lines.replace("DIR/", directory.to_str().expect("the test names it")), 0o600);
            let mut sign = Command::new("openssl");
            sign.args(["ca", "-batch", "-notext", "-selfsign", "-startdate", "20200101000000Z", "-enddate", "20210101000000Z", "-config"]);
            succeeds(sign.arg(config).arg("-keyfile").arg(&key).arg("-in").arg(request).arg("-out").arg(&certificate));
        } else {
            succeeds(make.arg(&certificate).args(["-x509", "-days", "2"]));
        }
        let mut serve = Command::new("openssl");
        serve.args(["s_server", "-accept", "127.0.0.1:0", "-www", "-key"]).arg(&key).arg("-cert").arg(&certificate);
        let child = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("it was found");
        let lines = BufReader::new(child.stdout.take().expect("it was piped")).lines();
        let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned));
        Self { child, address: address.expect("it says where it listens") }
    }
}

fn succeeds(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("it was found");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
