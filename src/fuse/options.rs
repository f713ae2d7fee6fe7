//! Who may use the mount and how it is attached.

/// Options of the FUSE session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Other users than the mounting one may use it.
    pub allow_other: bool,
    /// Root may use it beside the mounting user.
    pub allow_root: bool,
    /// fusermount3 unmounts when the daemon dies.
    pub auto_unmount: bool,
    /// Mount over a directory that has entries.
    pub nonempty: bool,
    /// Mount flags of mount(8) that the kernel keeps: `noexec`, `suid`, `dev`, `noatime`, ...
    pub mount_flags: Vec<String>,
}
