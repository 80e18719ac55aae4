//! A program on a pseudoterminal, as a person would use it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::process::undisturbed;
use super::{ratectl, ratelease, wait_for};

/// A program on a terminal of its own. When this process ends, the kernel hangs up the terminal,
/// and that ends the program.
pub(crate) struct Terminal {
    child: Leashed,
    /// The test's side of the terminal.
    keyboard: File,
    /// The program's side, kept open so that the test can read its modes after the program has
    /// ended.
    line: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Whether the test no longer reads the screen.
    is_gone: Arc<AtomicBool>,
    screen: JoinHandle<()>,
}

/// A child that is killed if the test fails before the child ends.
struct Leashed(Child);

/// The result of a program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit status, or 128 + n after signal n.
    pub(crate) status: i32,
    /// Its whole output.
    pub(crate) shown: String,
    /// Whether the terminal echoes input and delivers it by lines.
    pub(crate) is_sane: bool,
}

/// Maximum wait, on a machine that also compiles.
const PATIENCE: Duration = Duration::from_secs(60);

// === impl Terminal ===

impl Terminal {
    /// Runs the binary with `args` on a terminal of 24 lines.
    pub(crate) fn ratelease(args: &[&str], columns: u16) -> Self {
        Self::run(&[], args, columns)
    }

    /// As [`Terminal::ratelease`], for a process that ignores SIGHUP from its start, as with nohup.
    pub(crate) fn ratelease_without_hangup(args: &[&str], columns: u16) -> Self {
        Self::run(&["env", "--ignore-signal=HUP"], args, columns)
    }

    /// `program` are the words before the arguments, which run the binary.
    fn run(program: &[&str], args: &[&str], columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keyboard = openpt(flags).expect("a pseudoterminal");
        grantpt(&keyboard).and_then(|()| unlockpt(&keyboard)).unwrap();
        let line = ioctl_tiocgptpeer(&keyboard, flags).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&line, size).unwrap();
        let side = || Stdio::from(line.try_clone().unwrap());
        // It leads a session on the terminal, so that Ctrl-C sends it a signal.
        let mut command = undisturbed("setsid");
        command.args(["--ctty", "--"]).args(program);
        command.arg(ratectl::program_of(args)).args(args);
        command.env_clear().envs(ratelease::inherited()).env("TERM", "xterm-256color");
        command.stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().expect("setsid of util-linux");
        let keyboard = File::from(keyboard);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let is_gone = Arc::new(AtomicBool::new(false));
        let (from, into, gone) =
            (keyboard.try_clone().unwrap(), Arc::clone(&shown), Arc::clone(&is_gone));
        let screen = thread::spawn(move || look(from, &into, &gone));
        Self { child: Leashed(child), keyboard, line, shown, is_gone, screen }
    }

    /// Waits until the program has written `text`.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        let shown = || String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
        wait_for(&format!("{text:?} on the terminal"), PATIENCE, || {
            shown().contains(text).then_some(())
        });
    }

    /// Waits until the program has written more than it has by now.
    #[track_caller]
    pub(crate) fn shows_more(&self) {
        let written = || self.shown.lock().unwrap().len();
        let before = written();
        wait_for("more on the terminal", PATIENCE, || (written() > before).then_some(()));
    }

    /// Whether input is echoed and delivered by lines, as a shell expects.
    pub(crate) fn is_sane(&self) -> bool {
        let modes = tcgetattr(&self.line).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.0.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Hangs up, as when the terminal's window is closed, and returns the program's exit status.
    #[track_caller]
    pub(crate) fn hung_up(mut self) -> i32 {
        self.is_gone.store(true, Ordering::Relaxed);
        self.screen.join().unwrap();
        drop(self.keyboard);
        let ended = wait_for("the program's end", PATIENCE, || self.child.0.try_wait().unwrap());
        status(ended)
    }

    /// Waits for the program's end.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Ended {
        let ended = wait_for("the program's end", PATIENCE, || self.child.0.try_wait().unwrap());
        let is_sane = self.is_sane();
        drop(self.line);
        self.screen.join().unwrap();
        let shown = String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
        Ended { status: status(ended), shown, is_sane }
    }
}

fn status(ended: ExitStatus) -> i32 {
    ended.code().or_else(|| ended.signal().map(|signal| 128 + signal)).unwrap()
}

/// Collects the program's output until no process has its side open any more, or until `gone`.
fn look(mut from: File, into: &Mutex<Vec<u8>>, gone: &AtomicBool) {
    let mut piece = [0; 4096];
    while !gone.load(Ordering::Relaxed) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let ready = poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&timeout));
        if ready.is_ok_and(|ready| ready == 0) {
            continue;
        }
        match from.read(&mut piece) {
            Ok(read @ 1..) => into.lock().unwrap().extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}
