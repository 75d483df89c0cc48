//! A service that gives back what it gets, and how it is asked: over TCP all bytes, and the service's name after the
//! asker's end; over UDP each datagram with the name before it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::harness::network::target;

const PATIENCE: Duration = Duration::from_secs(15);

/// `tcp/ADDR/PORT` or `udp/ADDR/PORT` each; says by a file that all listen, and stays until it is ended.
pub fn serve(name: &str, mark: &str, places: &[&str]) -> Result<()> {
    for place in places {
        match place.split('/').collect::<Vec<_>>().as_slice() {
            ["tcp", address, port] => {
                let at = target(address, port.parse()?)?;
                let listener = TcpListener::bind(at).with_context(|| format!("bind {place}"))?;
                serve_tcp(listener, name.to_owned());
            }
            ["udp", address, port] => {
                let at = target(address, port.parse()?)?;
                let socket = UdpSocket::bind(at).with_context(|| format!("bind {place}"))?;
                serve_udp(socket, name.to_owned());
            }
            _ => bail!("no such place: {place}"),
        }
    }
    fs::write(mark, "")?;
    thread::sleep(Duration::from_secs(80));
    Ok(())
}

pub fn serve_tcp(listener: TcpListener, name: String) {
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let name = name.clone();
            thread::spawn(move || -> std::io::Result<()> {
                let mut chunk = vec![0; 1 << 16];
                loop {
                    let length = stream.read(&mut chunk)?;
                    if length == 0 {
                        return stream.write_all(name.as_bytes());
                    }
                    stream.write_all(&chunk[..length])?;
                }
            });
        }
    });
}

pub fn serve_udp(socket: UdpSocket, name: String) {
    thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&[name.as_bytes(), &buffer[..length]].concat(), from);
        }
    });
}

/// Who answers at `to`; an error unless every byte has come back.
pub fn ask_tcp(to: SocketAddr, bytes: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut writer = stream.try_clone()?;
    let mut all = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let written = scope.spawn(move || -> std::io::Result<()> {
            writer.write_all(bytes)?;
            writer.shutdown(Shutdown::Write)
        });
        stream.read_to_end(&mut all)?;
        written.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        Ok(())
    })?;
    ensure!(
        all.len() >= bytes.len() && all[..bytes.len()] == *bytes,
        "{} bytes came back of {}, or others",
        all.len(),
        bytes.len()
    );
    Ok(String::from_utf8_lossy(&all[bytes.len()..]).into_owned())
}

/// Who answers a datagram at `to`, and only from there.
pub fn ask_udp(to: SocketAddr, text: &str) -> Result<String> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(Duration::from_millis(1500)))?;
    // An answer from elsewhere is not heard.
    socket.connect(to)?;
    socket.send(text.as_bytes())?;
    let mut buffer = [0; 65536];
    let length = socket.recv(&mut buffer)?;
    let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
    let name = answer.strip_suffix(text);
    Ok(name.context("another text came back")?.to_owned())
}
