//! What a start makes in the user's home, and takes away again where nothing came of it and no other has found it.

use std::path::{Path, PathBuf};

/// What Claude's file has in it when it is made.
pub const EMPTY_JSON: &[u8] = b"{}\n";

/// Goes with this value unless it is kept; what has got something in it stays.
#[derive(Debug, Default)]
pub struct Made(Vec<PathBuf>);

impl Made {
    /// Notes what is missing of `path`, which is about to be made.
    pub fn note(&mut self, path: &Path) {
        let missing = |path: &&Path| path.symlink_metadata().is_err();
        let missing: Vec<&Path> = path.ancestors().take_while(missing).collect();
        self.0
            .extend(missing.into_iter().rev().map(Path::to_path_buf));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The program runs: it is the program's now.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.drain(..).rev() {
            if std::fs::remove_dir(&path).is_err()
                && std::fs::read(&path).is_ok_and(|text| text == EMPTY_JSON)
            {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs;

    #[test]
    fn what_is_empty_goes_and_the_rest_stays() {
        let top = Scratch::new();
        let [dir, used, file, kept] =
            ["a/b", "c/d", "new.json", "written.json"].map(|n| top.join(n));
        let mut made = Made::default();
        for path in [&dir, &used, &file, &kept] {
            made.note(path);
        }
        for path in [&dir, &used] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(used.join("x"), "").unwrap();
        fs::write(&file, EMPTY_JSON).unwrap();
        fs::write(&kept, "{\"a\": 1}\n").unwrap();
        // What was there before is not noted.
        made.note(&top);
        drop(made);
        let left = |dir: &Path| {
            let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        assert_eq!(left(&top), ["c", "written.json"]);
        assert!(used.join("x").exists());
        let mut made = Made::default();
        made.note(&dir);
        fs::create_dir_all(&dir).unwrap();
        made.keep();
        drop(made);
        assert!(dir.exists());
    }
}
