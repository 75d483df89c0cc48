//! The stages of a launch.

pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(125)
}
