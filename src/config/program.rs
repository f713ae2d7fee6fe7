//! The programs whose command lines windlass reads. Knows no option of them.

/// Whose command line is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Program {
    /// windlass itself.
    #[default]
    Native,
    /// ossfs, version 1.
    Ossfs,
    /// ossfs, version 2.
    Ossfs2,
    /// s3fs (s3fs-fuse).
    S3fs,
    /// Mountpoint for Amazon S3.
    Mountpoint,
}

impl Program {
    /// Its name, where it is not ours.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Ossfs => Some("ossfs"),
            Self::Ossfs2 => Some("ossfs2"),
            Self::S3fs => Some("s3fs"),
            Self::Mountpoint => Some("mount-s3"),
        }
    }

    /// Whether it mounts OSS and nothing else.
    pub fn is_for_oss(self) -> bool {
        matches!(self, Self::Ossfs | Self::Ossfs2)
    }

    /// Whether it mounts S3 and nothing else.
    pub fn is_for_s3(self) -> bool {
        matches!(self, Self::S3fs | Self::Mountpoint)
    }

    /// The program of this name.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "ossfs" => Some(Self::Ossfs),
            "ossfs2" => Some(Self::Ossfs2),
            "s3fs" => Some(Self::S3fs),
            "mount-s3" | "mountpoint" => Some(Self::Mountpoint),
            _ => None,
        }
    }
}
