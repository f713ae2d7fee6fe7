//! What is agreed on with the kernel before the first request. Mounting and this first exchange are fuser's; what comes after is ours, see
//! `session`.

use std::io;
use std::sync::{Arc, OnceLock};

use fuser::{Filesystem, InitFlags, KernelConfig, Request};
use serde::{Deserialize, Serialize};

use super::MAX_WRITE;

/// Requests the kernel may keep waiting in the background. With its default of 16, parallel small reads with a large
/// read-ahead drop to a sixth of their rate.
const MAX_BACKGROUND: u16 = 256;

/// What was agreed on with the kernel: what a daemon has to know that goes on with the session. Fields that are added later have defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Agreed {
    pub minor: u32,
    pub max_write: u32,
    /// The kernel asks again for what a daemon that died had taken.
    pub resends: bool,
    pub passthrough: bool,
}

/// What this mount wants.
#[derive(Clone, Debug)]
pub(super) struct Wishes {
    /// Listings tell the attributes of files, without a request for each.
    pub listings_tell_attributes: bool,
    /// Files of the disk that the kernel reads by itself.
    pub passthrough: bool,
    /// What came of it.
    pub agreed: Arc<OnceLock<Agreed>>,
}

impl Filesystem for Wishes {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            // Several lookups and listings in one directory at a time.
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Direct reads longer than one READ are sent side by side.
            InitFlags::FUSE_ASYNC_DIO,
            // Attributes with the names: the listing told them anyway.
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // We say when pages are stale; the kernel need not guess from mtime, which stores round to seconds.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            // O_TRUNC comes with the open: one request, and no moment in which the file is empty and somebody else's.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            // Setuid bits are taken away here; without it the kernel asks for an extended attribute before every write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        // With this the kernel asks for attributes in the first reply only until it sees a lookup, and whoever reads all names
        // before the first stat (ls -l, filepath.Walk) pays a lookup a file. Right only where attributes cost a request each.
        let adaptive = (!self.listings_tell_attributes).then_some(InitFlags::FUSE_READDIRPLUS_AUTO);
        for flag in wanted.into_iter().chain(adaptive) {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel does not know this");
            }
        }
        let passthrough = self.passthrough && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
        if passthrough {
            // Files on plain file systems; with more the mount itself could not lie under an overlay.
            config.set_max_stack_depth(1).map_err(|most| io::Error::other(format!("max_stack_depth above {most}")))?;
        }
        config.set_max_background(MAX_BACKGROUND).map_err(|least| io::Error::other(format!("max_background below {least}")))?;
        config.set_max_write(MAX_WRITE).map_err(|most| io::Error::other(format!("max_write above {most}")))?;
        let resends = config.capabilities().contains(InitFlags::FUSE_HAS_RESEND);
        let agreed = Agreed { minor: config.kernel_abi().1, max_write: MAX_WRITE, resends, passthrough };
        // A kernel asks once.
        let _ = self.agreed.set(agreed);
        Ok(())
    }
}
