//! Changes a document step by step, and records the steps as a JSON patch (RFC 6902). The document
//! is what applying the patch gives, so an answer of the webhook and a written file agree.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, MoveOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

use crate::fault::Fault;

/// A document that is being changed.
#[derive(Debug)]
pub(crate) struct Editor {
    document: Value,
    patch: Patch,
    /// What undoes each step.
    inverse: Vec<PatchOperation>,
}

// === impl Editor ===

impl Editor {
    pub(crate) fn new(document: Value) -> Self {
        Self { document, patch: Patch(Vec::new()), inverse: Vec::new() }
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
            let parent = &path[..end];
            let next = path[end];
            if self.get(parent).is_none_or(Value::is_null) {
                let is_list = next == "-" || next.bytes().all(|byte| byte.is_ascii_digit());
                self.add_one(parent, if is_list { json!([]) } else { json!({}) })?;
            }
        }
        self.add_one(path, value)
    }

    /// Moves a value to another place of its list, which is that after it was taken out.
    pub(crate) fn move_to(&mut self, from: &[&str], to: &[&str]) -> Result<(), Fault> {
        let step = |from, to| {
            PatchOperation::Move(MoveOperation { from: pointer(from), path: pointer(to) })
        };
        self.apply(to, step(from, to), step(to, from))
    }

    /// Takes all steps back.
    pub(crate) fn undo(&mut self) {
        self.patch.0.clear();
        for step in self.inverse.drain(..).rev() {
            // Each one is of the document as the step left it.
            let undone = json_patch::patch(&mut self.document, std::slice::from_ref(&step));
            debug_assert!(undone.is_ok(), "{step:?}");
        }
    }

    fn get(&self, path: &[&str]) -> Option<&Value> {
        self.document.pointer(pointer(path).as_str())
    }

    fn add_one(&mut self, path: &[&str], value: Value) -> Result<(), Fault> {
        let inverse = self.inverse_of_add(path);
        self.apply(path, PatchOperation::Add(AddOperation { path: pointer(path), value }), inverse)
    }

    fn inverse_of_add(&self, path: &[&str]) -> PatchOperation {
        let parent = path.split_last().map_or(&[][..], |(_, parent)| parent);
        let remove = |path| PatchOperation::Remove(RemoveOperation { path });
        match (self.get(parent), self.get(path)) {
            (Some(Value::Array(list)), _) if path.last() == Some(&"-") => {
                let at = list.len().to_string();
                remove(pointer(&[parent, &[at.as_str()]].concat()))
            }
            (Some(Value::Object(_)), Some(old)) => {
                PatchOperation::Add(AddOperation { path: pointer(path), value: old.clone() })
            }
            _ => remove(pointer(path)),
        }
    }

    fn apply(
        &mut self,
        path: &[&str],
        step: PatchOperation,
        inverse: PatchOperation,
    ) -> Result<(), Fault> {
        let applied = json_patch::patch(&mut self.document, std::slice::from_ref(&step));
        applied.map_err(|_| {
            let fix = "see that the fields before it are maps or lists";
            Fault::new(path.join("."), "cannot be changed", fix)
        })?;
        self.patch.0.push(step);
        self.inverse.push(inverse);
        Ok(())
    }
}

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
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
        editor.move_to(&["spec", "a", "0"], &["spec", "a", "2"]).unwrap();
        let (document, patch) = editor.finish();
        let expected = json!({
            "metadata": {"annotations": {"x.io/y": "z"}},
            "spec": {"a": [7, 2, 1], "volumes": [{"name": "v"}]},
        });
        assert_eq!(document, expected);
        let mut again = original;
        json_patch::patch(&mut again, &patch).unwrap();
        assert_eq!(again, expected);
    }

    #[test]
    fn all_steps_can_be_undone() {
        let original = json!({"metadata": {"annotations": null}, "spec": {"a": [1, 2], "b": [{}]}});
        let mut editor = Editor::new(original.clone());
        editor.add(&["metadata", "annotations", "x.io/y"], json!("z")).unwrap();
        editor.add(&["metadata", "annotations", "x.io/y"], json!("other")).unwrap();
        editor.add(&["spec", "volumes", "-"], json!({"name": "v"})).unwrap();
        editor.add(&["spec", "volumes", "-"], json!({"name": "w"})).unwrap();
        editor.add(&["spec", "a", "0"], json!(7)).unwrap();
        editor.move_to(&["spec", "a", "0"], &["spec", "a", "2"]).unwrap();
        editor.add(&["spec", "b", "0", "mounts", "-"], json!(1)).unwrap();
        editor.undo();
        let (document, patch) = editor.finish();
        assert_eq!((document, patch.0.len()), (original, 0));
    }

    #[test]
    fn a_path_through_text_is_a_fault() {
        let mut editor = Editor::new(json!({"spec": "x"}));
        let fault = editor.add(&["spec", "volumes", "-"], json!({})).unwrap_err();
        assert_eq!(fault.place, "spec.volumes");
        assert_eq!(editor.finish().1.0.len(), 0, "nothing was recorded");
    }
}
