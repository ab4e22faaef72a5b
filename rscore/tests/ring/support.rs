//! A writer in this process, for rings in states that no real one reaches on request, and the
//! C writer of `tests/ringwriter`, which is a process of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rscore::ring::layout::{self, written, Comm, Header, Slot, COMM_BYTES, SLOT_BYTES};
use rscore::ring::source::open_file;
use rscore::ring::{Memory, Reader, Record};

pub const LIMIT: Duration = Duration::from_secs(60);

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// xorshift64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// An empty memfd of this size, sealed as a plugin seals it.
pub fn memfd(bytes: u64) -> File {
    // SAFETY: the name is a C string that lives through the call; the descriptor is fresh.
    let file = unsafe {
        let fd = libc::memfd_create(c"stragd-ring".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(bytes).unwrap();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// A ring that is written from here.
pub struct Ring {
    pub file: File,
    base: *mut u8,
    pub bytes: usize,
    slots: u64,
    slots_offset: usize,
}

impl Ring {
    pub fn new(slots: u32, comms: u32, clock: u32) -> Ring {
        let slots_offset = layout::HEADER_BYTES + comms as usize * COMM_BYTES;
        let bytes = slots_offset + slots as usize * SLOT_BYTES;
        let file = memfd(bytes as u64);
        // SAFETY: a fresh mapping of a file of this size.
        let base = unsafe {
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            let null = std::ptr::null_mut();
            libc::mmap(null, bytes, flags, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let ring = Ring { file, base: base.cast(), bytes, slots: slots.into(), slots_offset };
        ring.half(offset_of!(Header, layout), layout::LAYOUT);
        ring.half(offset_of!(Header, header_bytes), layout::HEADER_BYTES as u32);
        ring.half(offset_of!(Header, comm_bytes), COMM_BYTES as u32);
        ring.half(offset_of!(Header, comm_count), comms);
        ring.half(offset_of!(Header, slot_bytes), SLOT_BYTES as u32);
        ring.half(offset_of!(Header, slot_count), slots);
        ring.set(offset_of!(Header, comms_offset), layout::HEADER_BYTES as u64);
        ring.set(offset_of!(Header, slots_offset), slots_offset as u64);
        ring.set(offset_of!(Header, total_bytes), bytes as u64);
        ring.half(offset_of!(Header, clock), clock);
        ring.half(offset_of!(Header, mode), 3);
        ring.set(offset_of!(Header, magic), layout::MAGIC);
        ring
    }

    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset % 8 == 0 && offset < self.bytes);
        // SAFETY: aligned and inside the mapping, which lives as long as self.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    pub fn set(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// A 32-bit field.
    pub fn half(&self, offset: usize, value: u32) {
        let (word, shift) = (offset & !7, (offset & 4) * 8);
        let old = self.word(word).load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        self.set(word, old | u64::from(value) << shift);
    }

    pub fn head(&self) -> u64 {
        self.word(offset_of!(Header, head)).load(Ordering::Relaxed)
    }

    pub fn set_head(&self, head: u64) {
        self.set(offset_of!(Header, head), head);
    }

    /// Takes a ticket and does not write it.
    pub fn hole(&self) -> u64 {
        let ticket = self.head();
        self.set_head(ticket + 1);
        ticket
    }

    /// Writes the slot of a ticket that was taken.
    pub fn fill(&self, ticket: u64, slot: Slot) {
        let at = self.slots_offset + (ticket % self.slots) as usize * SLOT_BYTES;
        // SAFETY: Slot is repr(C) and 64 bytes of integers.
        let words = unsafe { std::mem::transmute::<Slot, [u64; 8]>(slot) };
        self.set(at, layout::writing(ticket));
        for (index, word) in words.iter().enumerate().skip(1) {
            self.set(at + index * 8, *word);
        }
        self.set(at, written(ticket));
    }

    pub fn write(&self, slot: Slot) {
        let ticket = self.hole();
        self.fill(ticket, slot);
    }

    pub fn communicator(&self, place: usize, hash: u64, generation: u32) {
        let at = layout::HEADER_BYTES + place * COMM_BYTES;
        self.set(at + offset_of!(Comm, hash), hash);
        self.half(at + offset_of!(Comm, state), layout::comm_state::LIVE);
        self.half(at + offset_of!(Comm, generation), generation);
    }

    pub fn memory(&self) -> Arc<Memory> {
        Arc::new(open_file(&self.file).unwrap_or_else(|why| panic!("{why:?}")))
    }

    pub fn reader(&self) -> Reader {
        Reader::new(self.memory())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// A record that a plugin would write, of this number.
pub fn slot(number: u64) -> Slot {
    let now = now_ns();
    Slot {
        device_start: now - 800,
        device_stop: now - 300,
        host_ns: now - 1_000,
        bytes: number,
        sequence: number as u32,
        peer: -1,
        order: number as u32,
        poll_delta: 1_000 / 64,
        function: 1,
        datatype: 7,
        channels: 2,
        ..Slot::default()
    }
}

/// All records of one turn.
pub fn turn(reader: &mut Reader, now: u64) -> Vec<Record> {
    let mut records = Vec::new();
    reader.turn(now, false, |record| records.push(*record));
    records
}

/// The writer in C, which knows ring.h and nothing of the twin.
pub struct Writer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// In our pid namespace.
    pub pid: u32,
}

impl Writer {
    pub fn start() -> Writer {
        Writer::run(Command::new(program()))
    }

    /// In mount, pid and ipc namespaces of its own.
    pub fn contained() -> Writer {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]);
        let mut writer = Writer::run({
            command.arg(program());
            command
        });
        let parent = writer.pid;
        let children = format!("/proc/{parent}/task/{parent}/children");
        let end = Instant::now() + LIMIT;
        writer.pid = loop {
            let text = std::fs::read_to_string(&children).unwrap();
            if let Some(pid) = text.split_whitespace().next() {
                break pid.parse().unwrap();
            }
            assert!(Instant::now() < end, "unshare has no child");
            std::thread::sleep(Duration::from_millis(5));
        };
        writer
    }

    fn run(mut command: Command) -> Writer {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let pid = child.id();
        Writer { child, orders, answers, pid }
    }

    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The numbers after "ok".
    pub fn answer(&mut self) -> Vec<u64> {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("ok"), "{line:?}");
        words.map(|word| word.parse().unwrap()).collect()
    }

    pub fn tell(&mut self, order: &str) -> Vec<u64> {
        self.order(order);
        self.answer()
    }

    /// Ends it the hard way; its memory goes with it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The compiled C writer.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("w{}", std::process::id()));
        let source = repository().join("tests/ringwriter/writer.c");
        compile(&source, &out);
        out
    })
}

pub fn compile(source: &Path, out: &Path) {
    let flags = ["-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"];
    let status = Command::new("cc").args(flags).arg(out).arg(source).arg("-ldl").status().unwrap();
    assert!(status.success(), "cc could not compile {}", source.display());
}
