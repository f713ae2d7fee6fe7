//! ossfs2, as the driver of Alibaba Cloud starts it. The sources named are those of kubernetes-sigs/alibaba-cloud-csi-driver: its manager.go puts
//! the options together, its mount-proxy writes each behind `--` and adds -f (pkg/mounter/proxy/server/ossfs2/driver.go).

use libtest_mimic::Trial;

use super::oss::{Line, Needs};
use super::ossfs::all;

const MANAGER: &str = "pkg/mounter/fuse_pod_manager/oss/ossfs2/manager.go";

const LINES: &[Line] = &[
    Line {
        name: "fixed_keys",
        from: MANAGER,
        program: "ossfs2",
        words: "mount {at} -c {dir}/passwd-ossfs2 --oss_endpoint={url} --oss_bucket=data --oss_bucket_prefix=/p --log_level=info \
                --log_dir=/dev/stdout --use_metrics=true -f",
        environment: &[],
        settings: &[
            ("source", "oss://data/p"),
            ("endpoint", "{url}"),
            ("signature", "v1"),
            ("access-key-id", "LTAI5tEXAMPLEKEYID"),
            ("allow-other", "true"),
            ("file-mode", "0777"),
            ("dir-mode", "0777"),
            ("log-file", "/dev/stdout"),
            ("metrics-dir", "auto"),
            ("foreground", "true"),
        ],
        needs: Needs::Key,
        signature: "V1",
    },
    Line {
        name: "everything_a_volume_can_say",
        from: MANAGER,
        program: "ossfs2",
        words: "mount {at} -c {dir}/passwd-ossfs2 --attr_timeout=120 --oss_endpoint={url} --oss_bucket=data --oss_bucket_prefix=p/ --ro=true \
                --use_metrics=true --metrics_top=5 --oss_region=cn-hangzhou --log_level=debug --log_dir={dir}/logs -f",
        environment: &[],
        settings: &[
            ("source", "oss://data/p"),
            ("signature", "v4"),
            ("region", "cn-hangzhou"),
            ("read-only", "true"),
            ("stat-cache-ttl", "120s"),
            ("log-level", "debug"),
            ("log-file", "{dir}/logs/windlass.log"),
        ],
        needs: Needs::Key,
        signature: "V4",
    },
    Line {
        name: "tokens_that_rotate",
        from: "pkg/mounter/interceptors/ossfs_secret.go, manager.go getAuthOptions",
        program: "ossfs2",
        words: "mount {at} --oss_endpoint={url} --oss_bucket=data --oss_bucket_prefix=/p --log_level=info --log_dir=/dev/stdout \
                --use_metrics=false --oss_sts_multi_conf_ak_file={dir}/sts/AccessKeyId --oss_sts_multi_conf_sk_file={dir}/sts/AccessKeySecret \
                --oss_sts_multi_conf_token_file={dir}/sts/SecurityToken -f",
        environment: &[],
        settings: &[
            ("access-key-id-file", "{dir}/sts/AccessKeyId"),
            ("access-key-secret-file", "{dir}/sts/AccessKeySecret"),
            ("session-token-file", "{dir}/sts/SecurityToken"),
        ],
        needs: Needs::Token,
        signature: "V1",
    },
    Line {
        name: "a_role_of_the_instance",
        from: MANAGER,
        program: "ossfs2",
        words: "mount {at} --oss_endpoint={url} --oss_bucket=data --oss_bucket_prefix=/ --ram_role=KubernetesWorkerRole --log_level=info \
                --log_dir=/dev/stdout --use_metrics=true -f",
        environment: &[],
        settings: &[("source", "oss://data"), ("ram-role", "KubernetesWorkerRole")],
        needs: Needs::Elsewhere,
        signature: "V1",
    },
    Line {
        name: "a_role_of_the_service_account_alone",
        from: MANAGER,
        program: "ossfs2",
        words: "mount {at} --oss_endpoint={url} --oss_bucket=data --oss_bucket_prefix=/p --rrsa_endpoint={sts} --log_level=info \
                --log_dir=/dev/stdout --use_metrics=true -f",
        environment: &[
            ("ALIBABA_CLOUD_ROLE_ARN", "acs:ram::1:role/here"),
            ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "acs:ram::1:oidc-provider/ack-rrsa-c1"),
            ("ALIBABA_CLOUD_OIDC_TOKEN_FILE", "{dir}/token"),
        ],
        settings: &[("sts-endpoint", "{sts}")],
        needs: Needs::Role,
        signature: "V1",
    },
    Line {
        name: "a_role_of_the_service_account",
        from: MANAGER,
        program: "ossfs2",
        words: "mount {at} --oss_endpoint={url} --oss_bucket=data --oss_bucket_prefix=/p --rrsa_endpoint=https://sts-vpc.cn-hangzhou.aliyuncs.com \
                --assume_role_arn=acs:ram::1:role/there --log_level=info --log_dir=/dev/stdout --use_metrics=true -f",
        environment: &[
            ("ALIBABA_CLOUD_ROLE_ARN", "acs:ram::1:role/here"),
            ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "acs:ram::1:oidc-provider/ack-rrsa-c1"),
            ("ALIBABA_CLOUD_OIDC_TOKEN_FILE", "/var/run/secrets/ack.alibabacloud.com/rrsa-tokens/token"),
        ],
        settings: &[("sts-endpoint", "https://sts-vpc.cn-hangzhou.aliyuncs.com"), ("assume-role-arn", "acs:ram::1:role/there")],
        needs: Needs::Elsewhere,
        signature: "V1",
    },
    Line {
        name: "a_descriptor_and_a_disk_cache",
        from: "pkg/mounter/proxy/server/ossfs2/driver.go (op.FuseFd), help.aliyun.com description-of-mount-options (2.0.8)",
        program: "ossfs2",
        words: "mount {at} --oss_endpoint={url} --oss_bucket=data --disk_data_cache_dir={dir}/cache --disk_data_cache_size=1073741824 \
                --temp_dir={dir}/staging --close_to_open=true --prefetch_chunks=0 --metrics_port=0 --log_dir=syslog -f --fuse_device_fd=3",
        environment: &[],
        settings: &[
            ("mountpoint", "/dev/fd/3"),
            ("read-mode", "cached"),
            ("spill-dir", "{dir}/cache"),
            ("spill-max", "1GiB"),
            ("close-to-open", "true"),
            ("prefetch-chunks", "auto"),
            ("log-file", "/dev/log"),
        ],
        needs: Needs::Elsewhere,
        signature: "V1",
    },
];

pub fn trials() -> Vec<Trial> {
    all(LINES)
}
