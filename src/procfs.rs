//! Files of `/proc` (proc(5)).

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than most of them have.
const USUAL: usize = 16 * 1024;

/// A file whole. None says its size, so the standard library would begin with 32 bytes and double them; the kernel puts
/// its text together anew for each part.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same as text.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read(path)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_longer_than_usual_is_read_to_its_end() {
        let path = std::env::temp_dir().join(format!("procfs-{}", std::process::id()));
        let text = vec![b'x'; USUAL * 3 + 1];
        std::fs::write(&path, &text).unwrap();
        assert!(read(&path).unwrap() == text);
        std::fs::remove_file(path).unwrap();
        assert!(
            read_text("/proc/self/status")
                .unwrap()
                .contains("NoNewPrivs:")
        );
    }
}
