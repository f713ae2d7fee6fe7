//! Makes the messages of the CSI and of the kubelet's registry out of their .proto files. Run by cargo before the crate is built.

use std::error::Error;

const FILES: [&str; 2] = ["src/csi/csi.proto", "src/csi/registration.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let files = protox::compile(FILES, ["src/csi"])?;
    // The program serves; the clients, which the tests' kubelet is made of, speak over whatever it gives them.
    tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    Ok(())
}
