//! A line for OSS: a server that checks signatures, the files that the driver lays out, and what is asked of the line.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::runtime::Runtime;

use super::place::{Place, run, soon, wait};
use super::support::oss_server::{OssServer, Setup};
use super::support::oss_sign::Signee;
use super::support::sts::{Minted, TokenService};

pub const BUCKET: &str = "data";
const KEY: (&str, &str) = ("LTAI5tEXAMPLEKEYID", "EXAMPLEsecret0001");
const TOKEN: &str = "EXAMPLEtoken/0001==";
/// What the cluster vouches for a pod with.
const CLUSTER: &str = "EXAMPLE.of.the.cluster";
const CONTENT: &[u8] = b"what the line mounts";

/// What the server lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Key,
    Token,
    /// Keys that a token service gives out for a token of the cluster.
    Role,
    Nothing,
    /// A service that is not on this machine: the line is looked at and not run.
    Elsewhere,
}

/// A line as a driver starts it.
pub struct Line {
    pub name: &'static str,
    /// Where in the sources of the driver it is put together.
    pub from: &'static str,
    pub program: &'static str,
    /// `{url}`, `{sts}`, `{at}` and `{dir}` stand for the store, the token service, the mount point and the driver's own files.
    pub words: &'static str,
    /// Variables that the driver sets in the container.
    pub environment: &'static [(&'static str, &'static str)],
    /// Options as `--print-config` shows them.
    pub settings: &'static [(&'static str, &'static str)],
    pub needs: Needs,
    /// How requests are signed.
    pub signature: &'static str,
}

pub struct World {
    pub place: Place,
    pub server: OssServer,
    sts: TokenService,
    runtime: Runtime,
}

impl World {
    pub fn new(needs: Needs) -> Self {
        let runtime = Runtime::new().expect("threads can be had");
        let who = Signee { id: KEY.0.into(), secret: KEY.1.into(), region: "cn-hangzhou".into() };
        let token = matches!(needs, Needs::Token | Needs::Role).then(|| TOKEN.to_owned());
        let objects = BTreeMap::from([(b"p/file".to_vec(), CONTENT.to_vec()), (b"else".to_vec(), b"not below the path".to_vec())]);
        let setup = Setup { bucket: BUCKET.into(), who, token, public: needs == Needs::Nothing, objects, redirect_to: None };
        let server = runtime.block_on(OssServer::start(setup));
        let sts = TokenService::start();
        sts.give(CLUSTER, Minted { id: KEY.0.into(), secret: KEY.1.into(), token: TOKEN.into(), lives: Duration::from_secs(3600) });
        let world = Self { place: Place::new(), server, sts, runtime };
        world.lay_out();
        world
    }

    /// What ossfs_secret.go of the driver writes, and what its pods mount of a secret.
    fn lay_out(&self) {
        self.place.write("token", CLUSTER, 0o600);
        self.place.write("passwd-ossfs", &format!("{BUCKET}:{}:{}", KEY.0, KEY.1), 0o600);
        self.place.write("passwd-ossfs2", &format!("--oss_access_key_id={}\n--oss_access_key_secret={}", KEY.0, KEY.1), 0o600);
        let fields = [("AccessKeyId", KEY.0), ("AccessKeySecret", KEY.1), ("SecurityToken", TOKEN), ("Expiration", "2099-01-01T00:00:00Z")];
        let data = self.place.beside(".sts.tmp_1");
        fs::create_dir(&data).expect("it is ours");
        for (name, text) in fields {
            fs::write(data.join(name), text).expect("it is ours");
            fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o600)).expect("it is ours");
        }
        symlink(".sts.tmp_1", self.place.beside("sts")).expect("it is ours");
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.server.address)
    }

    pub fn words(&self, line: &str) -> Vec<String> {
        self.filled(line).split_whitespace().map(str::to_owned).collect()
    }

    pub fn filled(&self, text: &str) -> String {
        let path = |path: &Path| path.to_str().expect("the test names it").to_owned();
        let (at, dir) = (path(&self.place.at), path(&self.place.beside("")));
        let text = text.replace("{url}", &self.url()).replace("{sts}", &self.sts.url());
        text.replace("{at}", &at).replace("{dir}", dir.trim_end_matches('/'))
    }

    /// The program under the name that the driver calls.
    pub fn command(&self, name: &str) -> Command {
        let link = self.place.beside(name);
        if !link.exists() {
            symlink(env!("CARGO_BIN_EXE_windlass"), &link).expect("it is ours");
        }
        let mut command = Command::new(&link);
        command.arg0(name).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
        // No other keys than those of the line.
        command.env("HOME", self.place.beside("")).env("ALIBABA_CLOUD_ECS_METADATA_DISABLED", "true");
        command
    }

    #[track_caller]
    pub fn reads(&self) {
        assert_eq!(self.place.read("file"), CONTENT);
        assert!(!self.place.at.join("else").exists());
    }

    /// Unmounts, and sees the daemon end in order.
    #[track_caller]
    pub fn ends(&self) {
        self.place.umount().succeeds();
        assert!(soon(|| self.place.pids().is_empty()), "{:?}", self.place.pids());
        let _runtime = &self.runtime;
    }
}

impl World {
    /// What the token service was asked for: which call, and for which role.
    pub fn roles(&self) -> Vec<(String, String)> {
        self.sts.asked().into_iter().map(|question| (question.action, question.role)).collect()
    }
}

/// The settings of the line, as the program shows them.
pub fn comes_to(line: &Line) {
    let world = World::new(line.needs);
    let mut command = world.command(line.program);
    command.args(world.words(line.words)).arg("--print-config");
    let said = run(command).succeeds();
    for (name, value) in line.settings {
        let value = world.filled(value);
        let shown = said.out.lines().find_map(|row| row.strip_prefix(&format!("{name} = "))?.split("  # ").next());
        assert_eq!(shown.map(|text| text.trim_matches('"')), Some(value.as_str()), "{name}, {}\n{}", line.from, said.out);
    }
}

/// The line mounts, and what is mounted can be read.
pub fn mounts(line: &Line) {
    let world = World::new(line.needs);
    let mut command = world.command(line.program);
    command.args(world.words(line.words)).envs(line.environment.iter().map(|(name, value)| (*name, world.filled(value))));
    let foreground = line.words.split_whitespace().any(|word| word == "-f");
    if foreground {
        let mut child = command.stdout(Stdio::null()).spawn().expect("it starts");
        let mounted = soon(|| world.place.is_mounted() || child.try_wait().is_ok_and(|ended| ended.is_some()));
        assert!(mounted && world.place.is_mounted(), "{}: {}", line.name, line.from);
        world.reads();
        world.place.umount().succeeds();
        assert_eq!(wait(&mut child), Some(0));
    } else {
        run(command).succeeds();
        world.reads();
        world.ends();
    }
    assert_eq!(world.server.counts().signature, line.signature, "{}", line.from);
    let role = ("AssumeRoleWithOIDC".to_owned(), "acs:ram::1:role/here".to_owned());
    assert_eq!(world.roles().contains(&role), line.needs == Needs::Role, "{:?}", world.roles());
}

/// What the program says of a line that it does not take, and the code it ends with.
pub fn refusal(program_name: &str, words: &str) -> (Option<i32>, String) {
    let world = World::new(Needs::Key);
    let mut command = world.command(program_name);
    command.args(world.words(words));
    let said = run(command);
    assert!(!world.place.is_mounted());
    (said.code, said.err)
}
