//! What the tests of the probes share: compiled stubs, the driver, a loaded program.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rscore::discover::elf::Elf;
use rscore::probes::{names, plan, rows, Drain, Kinds, LinkId, Method, Options, Plan, Probes};
use rscore::wire::{what, Event};

pub const NCCL: Kinds = Kinds { nccl: true, rccl: false, gloo: false };
pub const RCCL: Kinds = Kinds { nccl: false, rccl: true, gloo: false };
pub const GLOO: Kinds = Kinds { nccl: false, rccl: false, gloo: true };
/// How long a test waits for something that must happen.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A directory that goes with the value.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("stragd-probes-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {} {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compile a file of `tests/cstubs`.
pub fn compile(source: &str, into: &Path, flags: &[&str]) {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let source = repository().join("tests/cstubs").join(source);
    run(Command::new(clang).args(flags).arg("-o").arg(into).arg(source));
}

/// The stub library and the driver, in a directory of their own.
pub fn build_stub(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (library, driver) = (scratch.path().join("libstub.so"), scratch.path().join("drive"));
    compile("stub.c", &library, &["-O0", "-shared", "-fPIC"]);
    compile("drive.c", &driver, &["-O2"]);
    (library, driver)
}

/// What the driver said it passed in one call.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    pub symbol: String,
    pub tgid: u32,
    pub fields: Fields,
}

/// count, datatype, reduction, peer, comm, id, aux
pub type Fields = (u64, u8, u8, i32, u64, u64, u64);

pub fn fields(e: &Event) -> Fields {
    (e.count, e.datatype, e.reduction, e.peer, e.comm, e.id, e.aux)
}

pub fn parse_calls(output: &str) -> (Vec<Call>, Vec<String>) {
    let (mut calls, mut absent) = (Vec::new(), Vec::new());
    for line in output.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["absent", name] => absent.push(name.to_owned()),
            [symbol, tgid, count, datatype, reduction, peer, comm, id, aux] => calls.push(Call {
                symbol: symbol.to_owned(),
                tgid: tgid.parse().unwrap(),
                fields: (
                    count.parse().unwrap(),
                    datatype.parse().unwrap(),
                    reduction.parse().unwrap(),
                    peer.parse().unwrap(),
                    comm.parse().unwrap(),
                    id.parse().unwrap(),
                    aux.parse().unwrap(),
                ),
            }),
            _ => {}
        }
    }
    (calls, absent)
}

/// The program, loaded and with its own rings.
pub struct Rig {
    pub probes: Probes,
    pub drain: Drain,
    pub events: Vec<Event>,
    pub symbols: HashMap<(u16, u32), String>,
}

impl Rig {
    pub fn new(options: &Options) -> Rig {
        // SAFETY: reads an id.
        let root = unsafe { libc::geteuid() } == 0;
        assert!(root, "the tests of the probes need root");
        let (probes, drain) = Probes::load(options).unwrap_or_else(|e| panic!("{e}"));
        Rig { probes, drain, events: Vec::new(), symbols: HashMap::new() }
    }

    pub fn with_method(method: Method) -> Rig {
        Rig::new(&Options { method, ..Options::default() })
    }

    pub fn attach(&mut self, path: &Path, kinds: Kinds) -> (LinkId, Plan) {
        let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.attach_file(&file, kinds)
    }

    pub fn attach_file(&mut self, file: &File, kinds: Kinds) -> (LinkId, Plan) {
        let plan = plan_of(file, kinds);
        let link = self.probes.attach(file, &plan.sites).unwrap_or_else(|e| panic!("{e}"));
        (link, plan)
    }

    /// Everything delivered so far.
    pub fn collect(&mut self) -> &[Event] {
        let events = &mut self.events;
        self.drain.drain(|e| events.push(*e));
        &self.events
    }

    /// Collect until `enough` or the limit.
    pub fn wait(&mut self, enough: impl Fn(&[Event]) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !enough(self.collect()) {
            assert!(Instant::now() < deadline, "waited in vain; {} events", self.events.len());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Events of one process, COMM_BOUND left out, in the order of delivery.
    pub fn of(&self, tgid: u32) -> Vec<Event> {
        let mine = |e: &&Event| e.tgid == tgid && e.what != what::COMM_BOUND;
        self.events.iter().filter(mine).copied().collect()
    }

    pub fn bound(&self, tgid: u32) -> Vec<Event> {
        let mine = |e: &&Event| e.tgid == tgid && e.what == what::COMM_BOUND;
        self.events.iter().filter(mine).copied().collect()
    }
}

pub fn plan_of(file: &File, kinds: Kinds) -> Plan {
    let elf = Elf::open(file).unwrap_or_else(|e| panic!("{e}"));
    let names = names(&kinds);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let symbols = elf.find_symbols(&names).unwrap_or_else(|e| panic!("{e}"));
    plan(&kinds, &symbols, |offset, buf| elf.read_at(offset, buf), false)
}

/// (what, function) that the table says of a symbol.
pub fn meaning(symbol: &str) -> (u8, u8) {
    let row = rows().iter().find(|r| r.symbol == symbol);
    let row = row.unwrap_or_else(|| panic!("{symbol} is not in the table"));
    (row.what, row.function)
}

/// Every call arrived once, in order, with the arguments that were passed.
pub fn assert_delivered(calls: &[Call], events: &[Event]) {
    let mut next = events.iter();
    for call in calls {
        let event = next.next().unwrap_or_else(|| panic!("{} did not arrive", call.symbol));
        assert_eq!((event.what, event.function), meaning(&call.symbol), "{}", call.symbol);
        assert_eq!(fields(event), call.fields, "{}: {event:?}", call.symbol);
        assert_eq!((event.flags, event.tgid), (0, call.tgid), "{}", call.symbol);
    }
    assert_eq!(next.next(), None, "more events than calls");
}

/// A driver that waits between loading the library and calling.
pub struct Paused {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Paused {
    pub fn start(driver: &Path, library: &Path) -> Paused {
        let mut child = Command::new(driver)
            .arg(library)
            .arg("pause")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut paused = Paused { child, output };
        paused.read_until("loaded");
        paused
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn read_until(&mut self, word: &str) -> String {
        let mut text = String::new();
        loop {
            let before = text.len();
            let n = self.output.read_line(&mut text).unwrap();
            assert!(n > 0, "the driver ended before `{word}`: {text}");
            if text[before..].trim_end() == word {
                return text;
            }
        }
    }

    /// Let it call; returns what it called.
    pub fn call(&mut self) -> Vec<Call> {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        parse_calls(&self.read_until("called")).0
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
