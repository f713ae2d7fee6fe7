//! ossfs (version 1), as the drivers of Alibaba Cloud start it. The sources named are those of kubernetes-sigs/alibaba-cloud-csi-driver: its
//! manager.go puts the options together (MakeMountOptions, AddDefaultMountOptions, getAuthOptions), its mount-proxy joins them by commas and
//! adds source, target and -f (pkg/mounter/proxy/server/ossfs/driver.go).

use libtest_mimic::Trial;

use super::oss::{Line, Needs, comes_to, mounts};
use super::support::mounts::trial;

const MANAGER: &str = "pkg/mounter/fuse_pod_manager/oss/ossfs/manager.go";

const LINES: &[Line] = &[
    Line {
        name: "fixed_keys",
        from: MANAGER,
        program: "ossfs",
        words: "-o url={url},dbglevel=warn,allow_other,use_metrics,listobjectsv2,passwd_file={dir}/passwd-ossfs data:/p {at} -f",
        environment: &[],
        settings: &[
            ("source", "oss://data/p"),
            ("endpoint", "{url}"),
            ("signature", "v1"),
            ("passwd-file", "{dir}/passwd-ossfs"),
            ("allow-other", "true"),
            ("log-level", "warn"),
            ("metrics-dir", "auto"),
            ("foreground", "true"),
        ],
        needs: Needs::Key,
        signature: "V1",
    },
    Line {
        name: "everything_a_volume_can_say",
        from: MANAGER,
        program: "ossfs",
        words: "-o max_stat_cache_size=0,umask=022,url={url},ro,use_sse=kmsid:key-1,use_metrics,metrics_top=5,sigv4,region=cn-hangzhou,\
                dbglevel=err,allow_other,mime=/csi/mime.types,listobjectsv2,passwd_file={dir}/passwd-ossfs data:/p {at} -f",
        environment: &[],
        settings: &[
            ("signature", "v4"),
            ("region", "cn-hangzhou"),
            ("read-only", "true"),
            ("sse", "kmsid:key-1"),
            ("stat-cache-size", "0"),
            ("umask", "0022"),
            ("log-level", "error"),
        ],
        needs: Needs::Key,
        signature: "V4",
    },
    Line {
        name: "a_version_of_the_signature",
        from: MANAGER,
        program: "ossfs",
        words: "-o url={url},use_sse,sigv1,dbglevel=info,allow_other,listobjectsv2,passwd_file={dir}/passwd-ossfs data:/p {at} -f",
        environment: &[],
        settings: &[("signature", "v1"), ("sse", "on"), ("log-level", "info")],
        needs: Needs::Key,
        signature: "V1",
    },
    Line {
        name: "a_public_bucket",
        from: MANAGER,
        program: "ossfs",
        words: "-o url={url},public_bucket=1,dbglevel=warn,allow_other,listobjectsv2 data:/p {at} -f",
        environment: &[],
        settings: &[("signature", "none")],
        needs: Needs::Nothing,
        signature: "none",
    },
    Line {
        name: "a_role_of_the_instance",
        from: MANAGER,
        program: "ossfs",
        words: "-o url={url},ram_role=KubernetesWorkerRole,dbglevel=warn,allow_other,listobjectsv2 data:/p {at} -f",
        environment: &[],
        settings: &[("ram-role", "KubernetesWorkerRole")],
        needs: Needs::Elsewhere,
        signature: "V1",
    },
    Line {
        name: "a_role_of_the_service_account",
        from: MANAGER,
        program: "ossfs",
        words: "-o url={url},rrsa_endpoint=https://sts-vpc.cn-hangzhou.aliyuncs.com,assume_role_arn=acs:ram::1:role/there,\
                assume_role_external_id=abc,dbglevel=warn,allow_other,listobjectsv2 data:/p {at} -f",
        environment: &[
            ("ALIBABA_CLOUD_ROLE_ARN", "acs:ram::1:role/here"),
            ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "acs:ram::1:oidc-provider/ack-rrsa-c1"),
            ("ALIBABA_CLOUD_OIDC_TOKEN_FILE", "/var/run/secrets/ack.alibabacloud.com/rrsa-tokens/token"),
            ("ROLE_SESSION_NAME", "ossfs.volume.abc"),
        ],
        settings: &[
            ("sts-endpoint", "https://sts-vpc.cn-hangzhou.aliyuncs.com"),
            ("assume-role-arn", "acs:ram::1:role/there"),
            ("assume-role-external-id", "abc"),
        ],
        needs: Needs::Elsewhere,
        signature: "V1",
    },
    Line {
        name: "a_role_of_the_service_account_alone",
        from: MANAGER,
        program: "ossfs",
        words: "-o url={url},rrsa_endpoint={sts},dbglevel=warn,allow_other,listobjectsv2 data:/p {at} -f",
        environment: &[
            ("ALIBABA_CLOUD_ROLE_ARN", "acs:ram::1:role/here"),
            ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "acs:ram::1:oidc-provider/ack-rrsa-c1"),
            ("ALIBABA_CLOUD_OIDC_TOKEN_FILE", "{dir}/token"),
            ("ROLE_SESSION_NAME", "ossfs.volume.abc"),
        ],
        settings: &[("sts-endpoint", "{sts}")],
        needs: Needs::Role,
        signature: "V1",
    },
    Line {
        name: "a_role_in_a_virtual_machine",
        from: "pkg/mounter/fuse_pod_manager/oss/utils.go AppendRRSAAuthOptions, pkg/mounter/cmd_mounter.go",
        program: "ossfs",
        words: "-o url={url},rrsa_endpoint={sts},dbglevel=warn,allow_other,listobjectsv2,\
                rrsa_oidc_provider_arn=acs:ram::1:oidc-provider/ack-rrsa-c1,rrsa_role_arn=acs:ram::1:role/here,\
                rrsa_role_session_name=ossfs.volume.abc,rrsa_token_file={dir}/token data:/p {at}",
        environment: &[],
        settings: &[
            ("role-arn", "acs:ram::1:role/here"),
            ("oidc-provider-arn", "acs:ram::1:oidc-provider/ack-rrsa-c1"),
            ("role-session-name", "ossfs.volume.abc"),
            ("oidc-token-file", "{dir}/token"),
            ("sts-endpoint", "{sts}"),
            ("foreground", "false"),
        ],
        needs: Needs::Role,
        signature: "V1",
    },
    Line {
        name: "keys_in_a_secret_store",
        from: MANAGER,
        program: "ossfs",
        words: "-o url={url},secret_store_dir={dir}/sts,dbglevel=warn,allow_other,listobjectsv2 data:/p {at} -f",
        environment: &[],
        settings: &[("passwd-file", "{dir}/sts")],
        needs: Needs::Token,
        signature: "V1",
    },
    Line {
        name: "tokens_that_rotate",
        from: "pkg/mounter/interceptors/ossfs_secret.go, manager.go getAuthOptions",
        program: "ossfs",
        words: "-o url={url},use_session_token,dbglevel=warn,allow_other,listobjectsv2,passwd_file={dir}/sts data:/p {at} -f",
        environment: &[],
        settings: &[("passwd-file", "{dir}/sts")],
        needs: Needs::Token,
        signature: "V1",
    },
    Line {
        name: "in_a_virtual_machine_without_f",
        from: "pkg/mounter/cmd_mounter.go getArgs",
        program: "ossfs",
        words: "-o url={url},dbglevel=warn,allow_other,listobjectsv2,passwd_file={dir}/passwd-ossfs data:/p {at}",
        environment: &[],
        settings: &[("foreground", "false")],
        needs: Needs::Key,
        signature: "V1",
    },
    Line {
        name: "of_the_plugin_before_containers",
        from: "pkg/oss/nodeserver.go before commit bd7c338a9: ossfs BUCKET:PATH DIR -ourl=URL OTHEROPTS",
        program: "ossfs",
        words: "data:/p {at} -ourl={url} -o max_stat_cache_size=0 -o allow_other -opasswd_file={dir}/passwd-ossfs",
        environment: &[],
        settings: &[("source", "oss://data/p"), ("stat-cache-size", "0"), ("allow-other", "true")],
        needs: Needs::Key,
        signature: "V1",
    },
];

pub fn trials() -> Vec<Trial> {
    all(LINES)
}

/// Each line looked at, and each that needs nothing from elsewhere mounted.
pub fn all(lines: &'static [Line]) -> Vec<Trial> {
    let looked_at = lines.iter().map(|line| {
        Trial::test(format!("{}_{}_comes_to_these_settings", line.program, line.name), move || {
            comes_to(line);
            Ok(())
        })
    });
    let run = lines.iter().filter(|line| line.needs != Needs::Elsewhere);
    let mounted = run.map(|line| trial(&format!("{}_{}_mounts_and_reads", line.program, line.name), move || mounts(line)));
    looked_at.chain(mounted).collect()
}
