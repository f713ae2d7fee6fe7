//! A descriptor of /dev/fuse that was mounted by somebody else, as node plugins do it before they start who serves it.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Mounts at `at` and returns the descriptor, which processes that are started inherit.
pub fn mounted(at: &Path) -> OwnedFd {
    let fuse: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").expect("the trial looked for it").into();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", fuse.as_raw_fd());
    let options = std::ffi::CString::new(options).expect("it has no NUL");
    // pkg/mountpoint/mounter/mount_linux.go names the source so.
    mount("mountpoint-s3", at, "fuse", MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME, options.as_c_str())
        .expect("root may mount");
    fcntl_setfd(&fuse, FdFlags::empty()).expect("it is open");
    fuse
}

pub fn unmounted(at: &Path) {
    unmount(at, UnmountFlags::NOFOLLOW).expect("nobody is inside");
}
