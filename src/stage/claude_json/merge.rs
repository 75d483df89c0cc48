//! Three versions of a JSON object into one: what two writers made of the same base.

use serde_json::{Map, Value};

/// Lays the changes from `base` to `ours` over `theirs`, member by member. Where both changed the same member, objects
/// are merged in turn; of other values `ours` counts, but what one side removed and the other changed is kept: a login
/// that is new on one side is never lost to the other. `None` where one of them is not a JSON object.
pub fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let object = |text| serde_json::from_slice::<Map<String, Value>>(text).ok();
    let merged = members(
        &object(base).unwrap_or_default(),
        object(ours)?,
        object(theirs)?,
    );
    let mut text = serde_json::to_vec_pretty(&merged).ok()?;
    text.push(b'\n');
    Some(text)
}

fn members(
    base: &Map<String, Value>,
    ours: Map<String, Value>,
    mut theirs: Map<String, Value>,
) -> Map<String, Value> {
    // Removed by us and unchanged by them.
    theirs.retain(|key, value| ours.contains_key(key) || base.get(key) != Some(value));
    for (key, our) in ours {
        let old = base.get(&key);
        if old == Some(&our) {
            // Unchanged by us: theirs counts, also where they removed it.
            continue;
        }
        let merged = match (our, theirs.remove(&key)) {
            (Value::Object(our), Some(Value::Object(their))) => {
                let none = Map::new();
                let old = old.and_then(Value::as_object).unwrap_or(&none);
                Value::Object(members(old, our, their))
            }
            (our, _) => our,
        };
        theirs.insert(key, merged);
    }
    theirs
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(base: Value, ours: Value, theirs: Value) -> Value {
        let text = [base, ours, theirs].map(|value| value.to_string().into_bytes());
        serde_json::from_slice(&merge(&text[0], &text[1], &text[2]).unwrap()).unwrap()
    }

    #[test]
    fn neither_side_loses_what_the_other_did() {
        for (base, ours, theirs, both) in [
            (
                json!({"n": 1}),
                json!({"n": 2}),
                json!({"n": 1, "login": "x"}),
                json!({"n": 2, "login": "x"}),
            ),
            (
                json!({}),
                json!({"login": "x"}),
                json!({"n": 1}),
                json!({"login": "x", "n": 1}),
            ),
            (
                json!({"login": "x"}),
                json!({}),
                json!({"login": "y"}),
                json!({"login": "y"}),
            ),
            (
                json!({"login": "x"}),
                json!({"login": "y"}),
                json!({}),
                json!({"login": "y"}),
            ),
            (
                json!({"login": "x", "n": 1}),
                json!({"n": 1}),
                json!({"login": "x", "n": 2}),
                json!({"n": 2}),
            ),
            (
                json!({"login": "x"}),
                json!({"login": "x"}),
                json!({}),
                json!({}),
            ),
            (
                json!({"n": 1}),
                json!({"n": 2}),
                json!({"n": 3}),
                json!({"n": 2}),
            ),
            (
                json!({"projects": {"/a": {"c": 1}}}),
                json!({"projects": {"/a": {"c": 2}, "/b": {}}}),
                json!({"projects": {"/a": {"c": 1, "d": 1}, "/c": {}}}),
                json!({"projects": {"/a": {"c": 2, "d": 1}, "/b": {}, "/c": {}}}),
            ),
        ] {
            assert_eq!(
                merged(base.clone(), ours.clone(), theirs.clone()),
                both,
                "{base} {ours} {theirs}"
            );
        }
    }

    #[test]
    fn what_is_no_object_is_not_merged() {
        for text in ["", "{\"a\":", "[]", "1"] {
            assert_eq!(merge(b"{}", text.as_bytes(), b"{}"), None);
            assert_eq!(merge(b"{}", b"{}", text.as_bytes()), None);
        }
        assert!(merge(b"", b"{}", b"{}").is_some());
    }
}
