//! Makes the messages of the CSI and of the kubelet's registry out of their .proto files. Run by cargo before the crate is built.

use std::error::Error;

const FILES: [&str; 1] = ["src/csi/registration.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let files = protox::compile(FILES, ["src/csi"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
