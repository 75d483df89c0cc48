//! A stand-in for the Messages API on a host of the lab: every message gets the same answer, as server-sent events.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use anyhow::Result;
use serde_json::{Value, json};

use super::network::{ISP, on};

pub const PORT: u16 = 8080;
/// In two pieces on the wire: a client that does not follow the stream would show half of it.
const ANSWER: [&str; 2] = ["Hello from ", "the lab."];

pub fn answer() -> String {
    ANSWER.concat()
}

pub fn start() -> Result<()> {
    let listener = on(ISP.name, || TcpListener::bind(("::", PORT)))??;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    Ok(())
}

/// One request a connection.
fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = request
        .split(' ')
        .nth(1)
        .unwrap_or_default()
        .split('?')
        .next()
        .unwrap_or_default();
    let (status, kind, text) = match path {
        "/v1/messages/count_tokens" => (
            "200 OK",
            "application/json",
            json!({"input_tokens": 1}).to_string(),
        ),
        "/v1/messages" if body["stream"] == true => ("200 OK", "text/event-stream", events()),
        "/v1/messages" => ("200 OK", "application/json", message(&answer()).to_string()),
        _ => (
            "404 Not Found",
            "application/json",
            json!({"type": "error"}).to_string(),
        ),
    };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )
}

fn message(text: &str) -> Value {
    let content = if text.is_empty() {
        json!([])
    } else {
        json!([{"type": "text", "text": text}])
    };
    json!({
        "id": "msg_lab", "type": "message", "role": "assistant", "model": "claude-lab", "content": content,
        "stop_reason": if text.is_empty() { Value::Null } else { json!("end_turn") }, "stop_sequence": null,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    })
}

/// The events of a streamed message, in the order of the API's documentation.
fn events() -> String {
    let mut all = vec![
        json!({"type": "message_start", "message": message("")}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    ];
    for text in ANSWER {
        let delta = json!({"type": "text_delta", "text": text});
        all.push(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
    }
    all.push(json!({"type": "content_block_stop", "index": 0}));
    let delta = json!({"stop_reason": "end_turn", "stop_sequence": null});
    all.push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 2}}));
    all.push(json!({"type": "message_stop"}));
    all.iter()
        .map(|e| {
            format!(
                "event: {}\ndata: {e}\n\n",
                e["type"].as_str().unwrap_or_default()
            )
        })
        .collect()
}
