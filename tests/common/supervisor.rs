/// The process that follows the host: where there is a firewall a child of the one that was started.
pub fn supervisor(started: u32) -> u32 {
    let path = format!("/proc/{started}/task/{started}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let mut children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    let ours = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("claude-isola")
    };
    children.find(ours).unwrap_or(started)
}
