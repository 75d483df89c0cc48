//! A web server on a host of the lab: the files below a directory, and nothing else.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Result;

use super::network::{Host, on};

/// Serves the files below `root` on a free port of `host` as long as the scenario lives; gives the address, without a
/// slash at its end.
pub fn serve(host: &Host, root: PathBuf) -> Result<String> {
    let listener = on(host.name, || TcpListener::bind(("::", 0)))??;
    let port = listener.local_addr()?.port();
    serve_on(listener, root);
    Ok(format!("http://{}:{port}", host.v4))
}

pub fn serve_on(listener: TcpListener, root: PathBuf) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let root = root.clone();
            thread::spawn(move || answer(stream, &root));
        }
    });
}

/// One request a connection.
fn answer(mut stream: TcpStream, root: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let (status, kind, body) = match file(root, &request) {
        Some((kind, body)) => ("200 OK", kind, body),
        None => ("404 Not Found", "text/plain", b"no such file\n".to_vec()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)
}

/// The file that a `GET` names, a directory's `index.html` for one that ends with a slash.
fn file(root: &Path, request: &str) -> Option<(&'static str, Vec<u8>)> {
    let mut words = request.split(' ');
    let path = words
        .next()
        .filter(|method| *method == "GET")
        .and(words.next())?;
    let path = path.split('?').next()?.trim_start_matches('/');
    if path.split('/').any(|part| part == "..") {
        return None;
    }
    let mut file = root.join(path);
    if path.is_empty() || path.ends_with('/') {
        file.push("index.html");
    }
    let kind = match file.extension().and_then(|e| e.to_str()) {
        Some("html") => "text/html",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    Some((kind, fs::read(file).ok()?))
}
