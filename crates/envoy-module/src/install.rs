//! `install-module DIRECTORY` copies the library of its image into a directory that the Envoy of
//! the same pod mounts. The image has no shell that could.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

/// Where the image has the library.
const LIBRARY: &str = "/opt/libratelease.so";

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let (Some(directory), None) = (args.next(), args.next()) else {
        eprintln!("usage: install-module DIRECTORY");
        return ExitCode::from(2);
    };
    match install(Path::new(LIBRARY), Path::new(&directory)) {
        Ok(installed) => {
            println!("install-module: {}", installed.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let directory = Path::new(&directory).display();
            eprintln!(
                "install-module: cannot copy {LIBRARY} into {directory}: {error}; mount a volume \
                 there that this user may write to"
            );
            ExitCode::FAILURE
        }
    }
}

/// Copies `library`, and renames the copy when it is complete: a container that restarts never
/// writes to a file that an Envoy has mapped.
fn install(library: &Path, directory: &Path) -> io::Result<PathBuf> {
    let (installed, partial) =
        (directory.join("libratelease.so"), directory.join(".libratelease.so"));
    fs::copy(library, &partial)?;
    fs::rename(&partial, &installed)?;
    Ok(installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_replaced_as_a_whole_and_a_file_in_use_stays_as_it_is() {
        let directory = env::temp_dir().join(format!("install-module-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let library = directory.join("source");
        for content in ["one", "another"] {
            fs::write(&library, content).unwrap();
            let before = fs::File::open(directory.join("libratelease.so"));
            let installed = install(&library, &directory).unwrap();
            assert_eq!(fs::read_to_string(installed).unwrap(), content);
            if let Ok(before) = before {
                assert_eq!(io::read_to_string(before).unwrap(), "one");
            }
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "no part is left");
        assert!(install(&library, &directory.join("none")).is_err());
        fs::remove_dir_all(directory).unwrap();
    }
}
