//! Who may use the mount and how it is attached.

/// Options of the FUSE session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Other users than the mounting one may use it.
    pub allow_other: bool,
    /// Root may use it beside the mounting user.
    pub allow_root: bool,
    /// fusermount3 unmounts when the daemon dies.
    pub auto_unmount: bool,
    /// Mount over a directory that has entries.
    pub nonempty: bool,
    /// Bytes of read-ahead that the kernel is allowed.
    pub max_readahead: u32,
    /// Mount flags of mount(8) that the kernel keeps: `noexec`, `suid`, `dev`, `noatime`, ...
    pub mount_flags: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            allow_other: false,
            allow_root: false,
            auto_unmount: false,
            nonempty: false,
            // No mount of ours is given more, and who mounts for us may have prepared so much.
            max_readahead: 16 << 20,
            mount_flags: Vec::new(),
        }
    }
}
