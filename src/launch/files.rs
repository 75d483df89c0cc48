//! What the program finds of files and environment beyond the binds: settings with one meaning each.

/// As the configuration files say; lists add up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files {
    /// Paths and globs that read as empty: from `/` where they are paths, names at any depth otherwise.
    pub hide: Vec<String>,
    pub git_config: GitConfig,
    pub cache: Cache,
    pub environment: Variables,
}

/// What becomes of variables that git executes and the program wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GitConfig {
    /// Told, and taken out at the end.
    #[default]
    Restore,
    /// Told, and kept.
    Keep,
}

/// Where npm, cargo, pip and their like keep what they have downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// In a directory of the sandboxes' own.
    #[default]
    Private,
    /// Nowhere: it ends with the sandbox.
    None,
}

/// The program's environment variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Variables {
    /// Nothing passes but what `pass` names, and what a program cannot do without.
    pub clear: bool,
    /// Names, or beginnings of names with `*` at the end, that pass although something removes them.
    pub pass: Vec<String>,
    /// What is set, by name; the last value of a name counts.
    pub set: Vec<(String, String)>,
}
