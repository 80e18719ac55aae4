//! Changes a document step by step, and records the steps as a JSON patch (RFC 6902). The document
//! is what applying the patch gives, so an answer of the webhook and a written file agree.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

use crate::fault::Fault;

/// A document that is being changed.
#[derive(Debug)]
pub(crate) struct Editor {
    document: Value,
    patch: Patch,
}

// === impl Editor ===

impl Editor {
    pub(crate) fn new(document: Value) -> Self {
        Self { document, patch: Patch(Vec::new()) }
    }

    /// The document as it is now.
    pub(crate) fn document(&self) -> &Value {
        &self.document
    }

    pub(crate) fn finish(self) -> (Value, Patch) {
        (self.document, self.patch)
    }

    /// Adds a value, or replaces that of a field. Fields on the way to it that are absent or null
    /// are added: as lists before an index or `-`, else as maps.
    pub(crate) fn add(&mut self, path: &[&str], value: Value) -> Result<(), Fault> {
        for end in 1..path.len() {
            let (parent, next) = (&path[..end], path[end]);
            if self.get(parent).is_none_or(Value::is_null) {
                let is_list = next == "-" || next.bytes().all(|byte| byte.is_ascii_digit());
                self.apply(parent, Some(if is_list { json!([]) } else { json!({}) }))?;
            }
        }
        self.apply(path, Some(value))
    }

    pub(crate) fn remove(&mut self, path: &[&str]) -> Result<(), Fault> {
        self.apply(path, None)
    }

    fn get(&self, path: &[&str]) -> Option<&Value> {
        self.document.pointer(PointerBuf::from_tokens(path.iter().copied()).as_str())
    }

    fn apply(&mut self, path: &[&str], value: Option<Value>) -> Result<(), Fault> {
        let path = PointerBuf::from_tokens(path.iter().copied());
        let operation = match value {
            Some(value) => PatchOperation::Add(AddOperation { path: path.clone(), value }),
            None => PatchOperation::Remove(RemoveOperation { path: path.clone() }),
        };
        let applied = json_patch::patch(&mut self.document, std::slice::from_ref(&operation));
        applied.map_err(|_| {
            let place = path.as_str().trim_start_matches('/').replace('/', ".");
            Fault::new(
                place,
                "cannot be changed",
                "see that the fields before it are maps or lists",
            )
        })?;
        self.patch.0.push(operation);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_makes_the_document_of_the_original() {
        let original = json!({"metadata": {"annotations": null}, "spec": {"a": [1, 2]}});
        let mut editor = Editor::new(original.clone());
        editor.add(&["metadata", "annotations", "x.io/y"], json!("z")).unwrap();
        editor.add(&["spec", "volumes", "-"], json!({"name": "v"})).unwrap();
        editor.add(&["spec", "a", "1"], json!(7)).unwrap();
        editor.remove(&["spec", "a", "0"]).unwrap();
        let (document, patch) = editor.finish();
        let expected = json!({
            "metadata": {"annotations": {"x.io/y": "z"}},
            "spec": {"a": [7, 2], "volumes": [{"name": "v"}]},
        });
        assert_eq!(document, expected);
        let mut again = original;
        json_patch::patch(&mut again, &patch).unwrap();
        assert_eq!(again, expected);
    }

    #[test]
    fn a_path_through_text_is_a_fault() {
        let mut editor = Editor::new(json!({"spec": "x"}));
        let fault = editor.add(&["spec", "volumes", "-"], json!({})).unwrap_err();
        assert_eq!(fault.place, "spec.volumes");
        assert_eq!(editor.finish().1.0.len(), 0, "nothing was recorded");
    }
}
