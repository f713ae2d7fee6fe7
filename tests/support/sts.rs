//! Token services over loopback HTTP: STS of AWS (AssumeRoleWithWebIdentity, AssumeRole), STS of Alibaba Cloud (AssumeRoleWithOIDC, AssumeRole),
//! the agent of EKS Pod Identity, and the metadata services of an ECS instance with a RAM role and an EC2 instance with a role. They check the token that they are shown (of AssumeRole
//! the one that belongs to the keys which ask, of the metadata service the name of the role), and give out keys for it. It runs on a thread of its own. Invariant: a token
//! that the test has not announced gets a refusal.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use reqsign_core::time::Timestamp;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// What is given out for a token.
#[derive(Clone, Debug)]
pub struct Minted {
    pub id: String,
    pub secret: String,
    pub token: String,
    pub lives: Duration,
}

impl Minted {
    /// Keys with this id; secret and token follow from it.
    pub fn new(id: &str, lives: Duration) -> Self {
        Self { id: id.into(), secret: format!("secret-of-{id}"), token: format!("token-of-{id}"), lives }
    }
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// `AssumeRoleWithOIDC` and so on; of Pod Identity the path.
    pub action: String,
    pub role: String,
    pub token: String,
}

#[derive(Debug, Default)]
struct State {
    /// One after the other; the last is given out again and again.
    tokens: Mutex<BTreeMap<String, VecDeque<Minted>>>,
    asked: Mutex<Vec<Question>>,
}

pub struct TokenService {
    address: SocketAddr,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TokenService {
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        listener.set_nonblocking(true).expect("a listener can be nonblocking");
        let address = listener.local_addr().expect("a bound listener has an address");
        let state = Arc::<State>::default();
        let (stop, stopped) = oneshot::channel();
        let shared = state.clone();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("the listener is nonblocking");
                tokio::select! { () = accept(listener, shared) => {}, _ = stopped => {} }
            });
        };
        let thread = std::thread::Builder::new().name("token-service".into()).spawn(serve).expect("a thread starts");
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Gives out `minted` to whoever shows `token`.
    pub fn give(&self, token: &str, minted: Minted) {
        self.state.tokens.lock().expect("no panic while it is held").insert(token.into(), [minted].into());
    }

    /// Gives out `minted` to whoever shows `token` once more, after what was announced before.
    pub fn give_then(&self, token: &str, minted: Minted) {
        self.state.tokens.lock().expect("no panic while it is held").entry(token.into()).or_default().push_back(minted);
    }

    /// Every question so far.
    pub fn asked(&self) -> Vec<Question> {
        self.state.asked.lock().expect("no panic while it is held").clone()
    }
}

impl Drop for TokenService {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic was printed; a second one would abort
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let state = state.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let state = state.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                Ok::<_, std::io::Error>(state.answer(&head, &body))
            }
        });
        tokio::spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl State {
    fn answer(&self, head: &http::request::Parts, body: &[u8]) -> Response<Full<Bytes>> {
        let text = if head.method == "POST" { String::from_utf8_lossy(body).into_owned() } else { head.uri.query().unwrap_or("").into() };
        let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let fields: BTreeMap<String, String> =
            text.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, value)| (decode(name), decode(value))).collect();
        let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let authorization = head.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let action = field("Action");
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let of_instance = head.uri.path().strip_prefix("/latest/");
        let token = match (action.as_str(), of_instance) {
            ("AssumeRoleWithWebIdentity", _) => field("WebIdentityToken"),
            ("AssumeRoleWithOIDC", _) => field("OIDCToken"),
            // Who asks signs with keys of another role, and shows what belongs to them: AWS as a header, Alibaba Cloud as a field.
            ("AssumeRole", _) if authorization.is_empty() => field("SecurityToken"),
            ("AssumeRole", _) => header("x-amz-security-token"),
            (_, Some("api/token")) => {
                let mut response = reply(200, "text/plain", INSTANCE_TOKEN.into());
                response.headers_mut().insert("x-aws-ec2-metadata-token-ttl-seconds", http::HeaderValue::from_static("21600"));
                return response;
            }
            (_, Some(EC2_ROLES)) if header(EC2_TOKEN) == INSTANCE_TOKEN => return reply(200, "text/plain", ROLE_OF_EC2.into()),
            (_, Some(path)) if header(EC2_TOKEN) == INSTANCE_TOKEN => path.strip_prefix(EC2_ROLES).unwrap_or_default().to_owned(),
            (_, Some(path)) if header("x-aliyun-ecs-metadata-token") == INSTANCE_TOKEN => {
                path.strip_prefix("meta-data/ram/security-credentials/").unwrap_or_default().to_owned()
            }
            _ => authorization.to_owned(),
        };
        let shown = if action.is_empty() { head.uri.path().to_owned() } else { action.clone() };
        let question = Question { action: shown, role: field("RoleArn"), token: token.clone() };
        self.asked.lock().expect("no panic while it is held").push(question);
        let minted = self.tokens.lock().expect("no panic while it is held").get_mut(&token).and_then(next);
        match (action.as_str(), minted) {
            ("AssumeRoleWithWebIdentity", Some(minted)) => reply(200, "text/xml", aws(&action, &minted)),
            ("AssumeRole", Some(minted)) if authorization.is_empty() => reply(200, "application/json", aliyun(&minted)),
            ("AssumeRole", Some(minted)) => reply(200, "text/xml", aws(&action, &minted)),
            ("", Some(minted)) if of_instance.is_some_and(|path| path.starts_with(EC2_ROLES)) => {
                reply(200, "application/json", ec2(&minted))
            }
            ("", Some(minted)) if of_instance.is_some() => reply(200, "application/json", instance(&minted)),
            ("AssumeRoleWithWebIdentity", None) => reply(400, "text/xml", AWS_REFUSAL.into()),
            ("AssumeRoleWithOIDC", Some(minted)) => reply(200, "application/json", aliyun(&minted)),
            ("", Some(minted)) => reply(200, "application/json", agent(&minted)),
            _ => reply(
                403,
                "application/json",
                r#"{"Code":"AuthenticationFail.OIDCToken.Expired","Message":"This OIDC token is expired."}"#.into(),
            ),
        }
    }
}

/// What is given out now.
fn next(announced: &mut VecDeque<Minted>) -> Option<Minted> {
    if announced.len() > 1 { announced.pop_front() } else { announced.front().cloned() }
}

fn reply(status: u16, kind: &str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response.headers_mut().insert("content-type", kind.parse().expect("a header"));
    response
}

fn end(minted: &Minted) -> String {
    (Timestamp::now() + minted.lives).format_rfc3339_zulu()
}

/// What the metadata service gives to who asks for a token first (IMDSv2).
const INSTANCE_TOKEN: &str = "token-of-the-instance";

/// Where the metadata service of EC2 has roles, and the header that shows it the token.
const EC2_ROLES: &str = "meta-data/iam/security-credentials/";
const EC2_TOKEN: &str = "x-aws-ec2-metadata-token";

/// The role that an instance of EC2 has.
pub const ROLE_OF_EC2: &str = "role-of-ec2";

fn ec2(minted: &Minted) -> String {
    let (Minted { id, secret, token, .. }, end) = (minted, end(minted));
    format!(
        r#"{{"Code":"Success","LastUpdated":"2026-01-01T00:00:00Z","Type":"AWS-HMAC","AccessKeyId":"{id}","SecretAccessKey":"{secret}","Token":"{token}","Expiration":"{end}"}}"#
    )
}

fn instance(minted: &Minted) -> String {
    let (Minted { id, secret, token, .. }, end) = (minted, end(minted));
    format!(
        r#"{{"AccessKeyId":"{id}","AccessKeySecret":"{secret}","Expiration":"{end}","SecurityToken":"{token}","LastUpdated":"2026-01-01T00:00:00Z","Code":"Success"}}"#
    )
}

fn aws(action: &str, minted: &Minted) -> String {
    let Minted { id, secret, token, .. } = minted;
    let end = end(minted);
    format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result>\
         <Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>\
         <Expiration>{end}</Expiration></Credentials><AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/reader/s</Arn>\
         <AssumedRoleId>AROAEXAMPLE:s</AssumedRoleId></AssumedRoleUser></{action}Result>\
         <ResponseMetadata><RequestId>c6104cbe-af31-11e0-8154-cbc7ccf896c7</RequestId></ResponseMetadata></{action}Response>"
    )
}

const AWS_REFUSAL: &str = "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>\
     <Code>InvalidIdentityToken</Code><Message>the token is not known</Message></Error><RequestId>r</RequestId></ErrorResponse>";

fn aliyun(minted: &Minted) -> String {
    let (Minted { id, secret, token, .. }, end) = (minted, end(minted));
    let keys = format!(r#"{{"AccessKeyId":"{id}","AccessKeySecret":"{secret}","SecurityToken":"{token}","Expiration":"{end}"}}"#);
    format!(r#"{{"RequestId":"3D57EAD2-8723-1F26-B69C-F8707D8B565D","Credentials":{keys}}}"#)
}

fn agent(minted: &Minted) -> String {
    let (Minted { id, secret, token, .. }, end) = (minted, end(minted));
    format!(r#"{{"AccessKeyId":"{id}","SecretAccessKey":"{secret}","Token":"{token}","Expiration":"{end}","AccountId":"123456789012"}}"#)
}
