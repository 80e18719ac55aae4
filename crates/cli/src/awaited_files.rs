//! Files that a start waits for, such as those of Secrets that are made after the pod.
//!
//! A native sidecar that ends keeps its whole pod from starting, so an injected one waits for its
//! files rather than end with a fault.

use std::path::Path;

use crate::safe::Safe;

/// The variable that names the files, separated by commas.
pub const VARIABLE: &str = "WAIT_FOR_FILES";

/// Returns the files that [`VARIABLE`] names and that do not exist, in order.
pub fn missing(env: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let given = env(VARIABLE).unwrap_or_default();
    let paths = given.split(',').map(str::trim).filter(|path| !path.is_empty());
    paths.filter(|path| !Path::new(path).exists()).map(str::to_owned).collect()
}

/// Returns the line that says what a start waits for.
pub fn notice(missing: &[String]) -> String {
    let paths = Safe(missing.join(", ")).to_string();
    format!("ratelease: waiting for {paths}; see that the Secrets exist and have these keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_missing_until_they_exist() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        let named = format!("{}, {},", one.display(), other.display());
        let env = |name: &str| (name == VARIABLE).then(|| named.clone());
        assert_eq!(missing(&env).len(), 2);
        std::fs::write(&one, "").unwrap();
        let left = missing(&env);
        assert_eq!(left, [other.display().to_string()]);
        assert!(notice(&left).contains("other; see that the Secrets exist"));
        std::fs::write(&other, "").unwrap();
        assert!(missing(&env).is_empty() && missing(&|_| None).is_empty());
    }
}
