//! Opens mapped files and looks into them, in a thread that may hang.
//!
//! A job can map a file of a FUSE or network filesystem whose server never answers. Whoever
//! reads such a file sleeps for ever, so a thread of its own does, and is left behind.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::library::{inspect, Content, Stamp, Wanted};
use super::reader::Error;

/// How long one file may take; the reader's own limit is shorter, so only a hang gets here.
const PATIENCE: Duration = Duration::from_secs(5);
/// Threads that may be left hanging; after that no unknown file is opened any more. The caller
/// stops far earlier where the filesystem may have a server.
const MAX_HUNG: usize = 24;

enum Request {
    Open { pid: u32, start: u64, end: u64 },
    Inspect { file: File, likely: bool },
}

enum Answer {
    Opened(io::Result<(File, Stamp)>),
    Inspected(io::Result<(File, Stamp)>, Result<Option<Content>, Error>),
}

struct Worker {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
}

/// Hands files to its worker thread and waits a bounded time for the answer.
pub(super) struct Resolver {
    wanted: Arc<Wanted>,
    worker: Option<Worker>,
    /// Each thread holds one more of these.
    threads: Arc<()>,
    patience: Duration,
}

impl Resolver {
    pub(super) fn new(wanted: Wanted) -> Self {
        Resolver {
            wanted: Arc::new(wanted),
            worker: None,
            threads: Arc::new(()),
            patience: PATIENCE,
        }
    }

    /// Threads left behind in a read that has not come back yet.
    pub(super) fn hung(&self) -> usize {
        (Arc::strong_count(&self.threads) - 1).saturating_sub(usize::from(self.worker.is_some()))
    }

    /// The file behind a mapping, opened without reading it (O_PATH): a device that is mapped
    /// must not be opened for real.
    ///
    /// # Errors
    /// ENOENT and ESRCH when mapping or process are gone; TimedOut after a hang.
    pub(super) fn open(&mut self, pid: u32, start: u64, end: u64) -> io::Result<(File, Stamp)> {
        match self.ask(Request::Open { pid, start, end })? {
            Answer::Opened(result) => result,
            Answer::Inspected(..) => Err(io::Error::other("answer out of turn")),
        }
    }

    /// Looks into a regular file that [`Resolver::open`] gave; returns it readable.
    ///
    /// # Errors
    /// Worth another try later: the file could not be read or took too long.
    pub(super) fn inspect(
        &mut self,
        file: File,
        likely: bool,
    ) -> Result<(File, Stamp, Option<Content>), Error> {
        match self.ask(Request::Inspect { file, likely })? {
            Answer::Inspected(opened, content) => {
                let (file, stamp) = opened?;
                Ok((file, stamp, content?))
            }
            Answer::Opened(_) => Err(Error::Io(io::Error::other("answer out of turn"))),
        }
    }

    fn ask(&mut self, request: Request) -> io::Result<Answer> {
        if self.worker.is_none() {
            if self.hung() >= MAX_HUNG {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "too many files of filesystems that do not answer",
                ));
            }
            self.worker = Some(start(Arc::clone(&self.wanted), Arc::clone(&self.threads))?);
        }
        let answer = match &self.worker {
            Some(worker) if worker.requests.send(request).is_ok() => {
                worker.answers.recv_timeout(self.patience)
            }
            _ => Err(RecvTimeoutError::Disconnected),
        };
        answer.map_err(|_| {
            self.worker = None;
            io::Error::new(io::ErrorKind::TimedOut, "the file's filesystem does not answer")
        })
    }
}

fn start(wanted: Arc<Wanted>, alive: Arc<()>) -> io::Result<Worker> {
    let (requests, inbox) = channel();
    let (outbox, answers) = channel();
    thread::Builder::new().name("stragd-resolve".into()).stack_size(256 << 10).spawn(
        move || {
            let _alive = alive;
            for request in inbox {
                if outbox.send(answer(request, &wanted)).is_err() {
                    return;
                }
            }
        },
    )?;
    Ok(Worker { requests, answers })
}

fn answer(request: Request, wanted: &Wanted) -> Answer {
    match request {
        Request::Open { pid, start, end } => Answer::Opened(open(pid, start, end)),
        Request::Inspect { file, likely } => match reopen(&file) {
            Ok((file, stamp)) => {
                let content = inspect(&file, wanted, likely);
                Answer::Inspected(Ok((file, stamp)), content)
            }
            Err(e) => Answer::Inspected(Err(e), Ok(None)),
        },
    }
}

fn open(pid: u32, start: u64, end: u64) -> io::Result<(File, Stamp)> {
    // The path in `maps` may name another file by now, or one in another mount namespace.
    let path = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let stamp = Stamp::of(&file)?;
    Ok((file, stamp))
}

fn reopen(file: &File) -> io::Result<(File, Stamp)> {
    // O_NONBLOCK: a file under a lease answers at once instead of after its holder's timeout.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let stamp = Stamp::of(&file)?;
    Ok((file, stamp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::time::Instant;

    /// A FUSE mount whose server never answers; closing the descriptor ends it.
    struct DeadMount(std::path::PathBuf, Option<File>);

    impl DeadMount {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("stragd-fuse-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            let server = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
            let target = CString::new(path.to_str().unwrap()).unwrap();
            let options = CString::new(options).unwrap();
            // SAFETY: all arguments are C strings that live through the call.
            let rc = unsafe {
                libc::mount(
                    c"dead".as_ptr(),
                    target.as_ptr(),
                    c"fuse".as_ptr(),
                    0,
                    options.as_ptr().cast(),
                )
            };
            assert_eq!(rc, 0, "mount: {} (this test needs root)", io::Error::last_os_error());
            DeadMount(path, Some(server))
        }
    }

    impl Drop for DeadMount {
        fn drop(&mut self) {
            self.1 = None;
            let target = CString::new(self.0.to_str().unwrap_or("")).unwrap_or_default();
            // SAFETY: the argument is a C string that lives through the call.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
            let _ = std::fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn a_filesystem_that_does_not_answer_costs_a_thread_not_the_daemon() {
        let mut mount = DeadMount::new();
        let mut resolver = Resolver::new(Wanted::default());
        resolver.patience = Duration::from_millis(50);
        let path_only =
            || OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&mount.0).unwrap();
        for round in 1..=MAX_HUNG + 2 {
            let error = resolver.inspect(path_only(), false).unwrap_err();
            assert!(matches!(&error, Error::Io(e) if e.kind() == io::ErrorKind::TimedOut));
            assert_eq!(resolver.hung(), round.min(MAX_HUNG), "{error}");
        }
        // The server is gone: the threads come back and files are read again.
        mount.1 = None;
        let end = Instant::now() + Duration::from_secs(60);
        while resolver.hung() > 0 {
            assert!(Instant::now() < end, "{} threads still hang", resolver.hung());
            thread::sleep(Duration::from_millis(10));
        }
        resolver.patience = Duration::from_secs(60);
        let own = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/proc/self/exe");
        assert!(resolver.inspect(own.unwrap(), false).unwrap().2.is_none());
    }
}
