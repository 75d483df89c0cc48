fn main() -> std::process::ExitCode {
    claude_isolated::ctl::main()
}
