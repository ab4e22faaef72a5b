//! Stub libraries, child processes and waiting, for the discovery tests.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rscore::discover::library::{LibraryId, Wanted};
use rscore::discover::{Change, Config, Discovery};

/// Real processes and file descriptors are counted: one test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub const LIMIT: Duration = Duration::from_secs(60);

/// What a stub of NCCL exports; the version is the text that the real one carries.
pub const STUB: &str = r#"
#define WEAK __attribute__((weak))
#ifndef TAG
#define TAG 1
#endif
const char version_text[] = "NCCL version 2.99.1+cuda12.9";
int pncclAllReduce(void) { return TAG; }
WEAK int ncclAllReduce(void) { return TAG; }
int ncclGroupStart(void) { return 1; }
const char *stub_version(void) { return version_text; }
"#;

pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stragd-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// Compiles a shared object; `flags` go to the C compiler.
    pub fn library(&self, file: &str, source: &str, flags: &[&str]) -> PathBuf {
        self.compile(file, source, &[&["-shared", "-fPIC"], flags].concat())
    }

    pub fn compile(&self, file: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (c, out) = (self.0.join(format!("{file}.c")), self.0.join(file));
        fs::write(&c, source).unwrap();
        let status = Command::new("cc")
            .args(["-O1", "-Wl,--build-id", "-x", "c"])
            .arg(&c)
            .args(["-x", "none"])
            .args(flags)
            .arg("-o")
            .arg(&out)
            .status()
            .unwrap();
        assert!(status.success(), "cc could not compile {file}");
        out
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The build-id as binutils prints it.
pub fn build_id(path: &Path) -> String {
    let out = Command::new("readelf").arg("-n").arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.split("Build ID: ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}

/// A Python process that does what it is told, one line at a time.
pub struct Job {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const JOB: &str = r"
import ctypes, os, signal, sys, threading, time
kept, closed = [], []
for line in sys.stdin:
    order, *rest = line.split()
    answer = 'ok'
    if order == 'load':
        kept.append(ctypes.CDLL(rest[0]))
    elif order == 'close':
        import _ctypes
        _ctypes.dlclose(kept.pop()._handle)
    elif order == 'fork':
        pid = os.fork()
        if pid == 0:
            while True: signal.pause()
        answer = str(pid)
    elif order == 'kill':
        os.kill(int(rest[0]), signal.SIGKILL)
        os.waitpid(int(rest[0]), 0)
    elif order == 'threads':
        for _ in range(int(rest[0])):
            t = threading.Thread(target=time.sleep, args=(0.001,)); t.start(); t.join()
    elif order == 'exec':
        print('ok', flush=True)
        os.execv('/bin/sleep', ['sleep', '600'])
    print(answer, flush=True)
";

impl Job {
    pub fn start() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", JOB])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Job { child, orders, answers }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the job ended at {order}");
        line.trim().to_owned()
    }

    pub fn load(&mut self, path: &Path) {
        assert_eq!(self.tell(&format!("load {}", path.display())), "ok");
    }

    /// SIGKILL; the zombie stays until the job is dropped.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A discovery and everything it has said.
pub struct Watch {
    pub discovery: Discovery,
    pub log: Vec<Change>,
}

impl Watch {
    /// Sweeps once; with `sweep` an hour, all that follows comes from the side-band.
    pub fn start(sweep: Duration, sideband: bool) -> Self {
        let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let wanted = Wanted {
            nccl: names(&["ncclAllReduce", "pncclAllReduce", "ncclGroupStart", "ncclBroadcast"]),
            rccl: names(&["ncclAllToAllv"]),
            gloo: names(&["_ZN4gloo9allreduceERNS_16AllreduceOptionsE"]),
        };
        let linger = Duration::from_millis(300);
        let discovery =
            Discovery::new(Config { sweep, max_processes: 4096, wanted, linger, sideband });
        if sideband {
            assert_eq!(discovery.sideband_error(), "", "these tests need root");
        }
        let mut watch = Watch { discovery, log: Vec::new() };
        watch.turn();
        watch
    }

    pub fn turn(&mut self) {
        self.log.extend(self.discovery.poll(Duration::from_millis(20)));
    }

    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds(self) {
            assert!(Instant::now() < end, "never: {what}\n{:#?}", self.log);
            self.turn();
        }
    }

    pub fn seen(&self, pid: u32) -> usize {
        let is = |c: &&Change| matches!(c, Change::Seen { process, .. } if process.pid == pid);
        self.log.iter().filter(is).count()
    }

    pub fn gone(&self, pid: u32) -> usize {
        let is = |c: &&Change| matches!(c, Change::Gone { process } if process.pid == pid);
        self.log.iter().filter(is).count()
    }

    pub fn unused(&self, id: LibraryId) -> bool {
        self.log.iter().any(|c| matches!(c, Change::LibraryUnused(u) if *u == id))
    }

    /// Libraries announced whose path begins with `prefix`, oldest first.
    pub fn libraries(
        &self,
        prefix: &Path,
    ) -> Vec<std::sync::Arc<rscore::discover::library::Library>> {
        let mut found = Vec::new();
        for change in &self.log {
            if let Change::Library(library) = change {
                if Path::new(&library.path).starts_with(prefix) {
                    found.push(library.clone());
                }
            }
        }
        found
    }

    pub fn pids_of(&self, id: LibraryId) -> Vec<u32> {
        let uses = self.discovery.statuses();
        uses.into_iter().find(|u| u.library.id == id).map(|u| u.pids).unwrap_or_default()
    }
}
