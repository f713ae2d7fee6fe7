//! The command lines that the mount-proxy of Alibaba Cloud's driver starts ossfs and ossfs2 with, made of what it was asked for
//! (pkg/mounter/proxy/server/ossfs/driver.go and ossfs2/driver.go there). Pure. Invariant: every word of the request is in the line as it came.

use super::request::Mount;
use super::secrets::Credentials;

/// A client whose place we take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Ossfs,
    Ossfs2,
}

impl Client {
    /// As the driver and `--compat` call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ossfs => "ossfs",
            Self::Ossfs2 => "ossfs2",
        }
    }

    pub fn of(name: &str) -> Option<Self> {
        [Self::Ossfs, Self::Ossfs2].into_iter().find(|client| client.name() == name)
    }

    /// What the driver calls the password file among the secrets.
    pub fn password_file(self) -> &'static str {
        match self {
            Self::Ossfs => "passwd-ossfs",
            Self::Ossfs2 => "passwd-ossfs2",
        }
    }
}

/// The words behind `windlass`, without those that are ours.
pub(super) fn line(client: Client, request: &Mount, credentials: &Credentials) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut line = words(&["mount", "--compat", client.name()]);
    let mut options = request.options.clone().unwrap_or_default();
    match client {
        Client::Ossfs => {
            options.extend(credentials.path().map(|path| format!("passwd_file={path}")));
            // The driver itself joins them by commas.
            if !options.is_empty() {
                line.extend(["-o".to_owned(), options.join(",")]);
            }
            line.extend([request.source.clone(), request.target.clone()]);
        }
        Client::Ossfs2 => {
            line.push(request.target.clone());
            match credentials {
                Credentials::None => {}
                Credentials::File(path) => line.extend(["-c".to_owned(), path.clone()]),
                Credentials::Directory(path) => options.extend(
                    [("ak", "AccessKeyId"), ("sk", "AccessKeySecret"), ("token", "SecurityToken")]
                        .map(|(word, field)| format!("oss_sts_multi_conf_{word}_file={path}/{field}")),
                ),
            }
            line.extend(options.iter().map(|option| format!("--{option}")));
        }
    }
    line.push("-f".to_owned());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(options: &[&str]) -> Mount {
        let options = Some(options.iter().map(|option| (*option).to_owned()).collect());
        Mount { source: "data:/p".into(), target: "/run/t".into(), options, ..Mount::default() }
    }

    #[test]
    fn lines_are_those_of_the_driver() {
        let ossfs = request(&["url=https://oss-cn-hangzhou.aliyuncs.com", "allow_other"]);
        let directory = Credentials::Directory("/run/c/sts".into());
        assert_eq!(
            line(Client::Ossfs, &ossfs, &directory).join(" "),
            "mount --compat ossfs -o url=https://oss-cn-hangzhou.aliyuncs.com,allow_other,passwd_file=/run/c/sts data:/p /run/t -f"
        );
        let ossfs2 = request(&["oss_bucket=data", "ro=true"]);
        assert_eq!(
            line(Client::Ossfs2, &ossfs2, &Credentials::File("/run/c/passwd-ossfs2".into())).join(" "),
            "mount --compat ossfs2 /run/t -c /run/c/passwd-ossfs2 --oss_bucket=data --ro=true -f"
        );
        assert_eq!(
            line(Client::Ossfs2, &ossfs2, &directory).join(" "),
            "mount --compat ossfs2 /run/t --oss_bucket=data --ro=true --oss_sts_multi_conf_ak_file=/run/c/sts/AccessKeyId \
             --oss_sts_multi_conf_sk_file=/run/c/sts/AccessKeySecret --oss_sts_multi_conf_token_file=/run/c/sts/SecurityToken -f"
        );
        assert_eq!(line(Client::Ossfs, &request(&[]), &Credentials::None).join(" "), "mount --compat ossfs data:/p /run/t -f");
    }
}
