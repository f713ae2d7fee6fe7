//! What may be asked of a volume: files, not blocks, by any number of nodes and pods. Decides; holds nothing.

use tonic::Status;

use super::proto::csi::VolumeCapability;
use super::proto::csi::volume_capability::access_mode::Mode;
use super::proto::csi::volume_capability::{AccessType, MountVolume};

/// What a request asks of a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Use<'a> {
    pub mount: &'a MountVolume,
    pub mode: Mode,
    pub read_only: bool,
    /// By one pod at a time.
    pub alone: bool,
}

/// Reads one capability.
///
/// # Errors
/// INVALID_ARGUMENT when it is none that a bucket has.
pub fn read(capability: Option<&VolumeCapability>) -> Result<Use<'_>, Status> {
    let refuse = |why: &str| Err(Status::invalid_argument(why.to_owned()));
    let Some(capability) = capability else { return refuse("the volume capability is missing") };
    let Some(AccessType::Mount(mount)) = &capability.access_type else {
        return refuse("a bucket is no block device: the volume must have volumeMode: Filesystem");
    };
    let mode = match capability.access_mode.map(|access| access.mode()) {
        None | Some(Mode::Unknown) => return refuse("the access mode is missing"),
        Some(mode) => mode,
    };
    let read_only = matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly);
    Ok(Use { mount, mode, read_only, alone: mode == Mode::SingleNodeSingleWriter })
}

#[cfg(test)]
mod tests {
    use super::super::proto::csi::volume_capability::{AccessMode, BlockVolume};
    use super::*;

    fn capability(access: AccessType, mode: Mode) -> VolumeCapability {
        VolumeCapability { access_type: Some(access), access_mode: Some(AccessMode { mode: mode.into() }) }
    }

    #[test]
    fn files_in_every_mode_and_no_blocks() {
        let files = || AccessType::Mount(MountVolume::default());
        for (mode, read_only, alone) in [
            (Mode::SingleNodeWriter, false, false),
            (Mode::MultiNodeMultiWriter, false, false),
            (Mode::MultiNodeReaderOnly, true, false),
            (Mode::SingleNodeSingleWriter, false, true),
        ] {
            let asked = capability(files(), mode);
            let wanted = read(Some(&asked)).unwrap();
            assert_eq!((wanted.read_only, wanted.alone), (read_only, alone), "{mode:?}");
        }
        let blocks = capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter);
        for wrong in [None, Some(&blocks), Some(&capability(files(), Mode::Unknown)), Some(&VolumeCapability::default())] {
            assert_eq!(read(wrong).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
