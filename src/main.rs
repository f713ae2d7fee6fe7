//! The program: everything is in the library, where tests reach it.

fn main() -> std::process::ExitCode {
    windlass::cli::run(std::env::args_os())
}
