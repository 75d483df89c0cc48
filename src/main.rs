fn main() -> std::process::ExitCode {
    claude_isolated::stage::main()
}
