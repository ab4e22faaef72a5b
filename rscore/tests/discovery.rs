//! Discovery on real processes of this machine; needs root, a C compiler and Python.

#![allow(clippy::print_stdout)] // the figures are part of a test run

mod discovery_support;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use discovery_support::{alone, build_id, Directory, Job, Watch, STUB};
use rscore::discover::library::Kind;
use rscore::discover::Change;

const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn a_late_load_is_seen_by_the_sideband() {
    let _alone = alone();
    let dir = Directory::new("late");
    // The name says nothing: it is known by its symbols.
    let path = dir.library("libfoo.so", STUB, &[]);
    let mut job = Job::start();
    job.tell("nothing");
    let mut watch = Watch::start(NEVER, true);
    watch.turn();
    assert_eq!(watch.seen(job.pid()), 0);
    job.load(&path);
    watch.until("the job is seen", |w| w.seen(job.pid()) == 1);
    let library = &watch.libraries(&dir.0)[0];
    println!("lag {:.6} s, {:?}", watch.discovery.lag(), watch.discovery.counters());
    assert!(watch.discovery.lag() > 0.0 && watch.discovery.lag() < 60.0);
    assert_eq!(library.kinds.names(), ["nccl"]);
    assert_eq!(library.version, "2.99.1");
    assert_eq!(library.build_id_hex(), build_id(&path));
    assert_eq!(library.ino, fs::metadata(&path).unwrap().ino());
    let names: Vec<_> = library.symbols.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["ncclAllReduce", "pncclAllReduce", "ncclGroupStart"]);
    // The library comes before its process.
    let first =
        watch.log.iter().position(|c| matches!(c, Change::Library(l) if l.id == library.id));
    let seen = watch
        .log
        .iter()
        .position(|c| matches!(c, Change::Seen { process, .. } if process.pid == job.pid()));
    assert!(first < seen);
    // Threads that come and go are no processes and end nothing.
    job.tell("threads 50");
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(500) {
        watch.turn();
    }
    assert_eq!((watch.seen(job.pid()), watch.gone(job.pid())), (1, 0));
    let id = library.id;
    job.kill();
    watch.until("killed, a zombie: gone", |w| w.gone(job.pid()) == 1 && w.unused(id));
    // Loaded again by another process, it is a library again.
    let mut other = Job::start();
    other.load(&path);
    watch.until("the second job is seen", |w| w.seen(other.pid()) == 1);
    assert_eq!(watch.libraries(&dir.0).len(), 2);
    // A loss, which a busy machine may have, brings an early sweep.
    assert!(watch.discovery.counters().sweeps == 1 || watch.discovery.sideband_lost() > 0);
}

#[test]
fn deleted_and_replaced_files_resolve_to_what_is_mapped() {
    let _alone = alone();
    let dir = Directory::new("replaced");
    let old = dir.library("libnccl.so.2", STUB, &[]);
    let new = dir.library("libnccl.so.3", STUB, &["-DTAG=2"]);
    let deleted = dir.library("libgone.so", STUB, &["-DTAG=3"]);
    assert_ne!(build_id(&old), build_id(&new));
    let ids = [build_id(&old), build_id(&deleted)];
    let inodes = [fs::metadata(&old).unwrap().ino(), fs::metadata(&deleted).unwrap().ino()];
    let mut job = Job::start();
    job.load(&old);
    job.load(&deleted);
    fs::rename(&new, &old).unwrap();
    fs::remove_file(&deleted).unwrap();
    let mut watch = Watch::start(NEVER, false);
    watch.until("both libraries", |w| w.libraries(&dir.0).len() == 2);
    let found = watch.libraries(&dir.0);
    let got: HashSet<_> = found.iter().map(|l| (l.build_id_hex(), l.ino)).collect();
    assert_eq!(got, ids.into_iter().zip(inodes).collect());
    for library in &found {
        assert_eq!(library.file.metadata().unwrap().ino(), library.ino);
        assert_eq!(watch.pids_of(library.id), [job.pid()]);
    }
    // A second process maps the new file of the same path: a third library.
    let mut second = Job::start();
    second.load(&old);
    let mut watch = Watch::start(NEVER, false);
    watch.until("three libraries", |w| w.libraries(&dir.0).len() == 3);
}

#[test]
fn two_hundred_short_lived_processes_leave_nothing() {
    let _alone = alone();
    let dir = Directory::new("short");
    let library = dir.library("libnccl.so.2", STUB, &["-Wl,-soname,libnccl.so.2"]);
    let source = "#include <dlfcn.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
        int main(int n, char **a) { usleep(atoi(a[2])); void *h = dlopen(a[1], 2);\
        usleep(atoi(a[3])); return h ? 0 : 1; }";
    let program = dir.compile("short", source, &["-ldl"]);
    let mut watch = Watch::start(Duration::from_secs(2), true);
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let mut pids = HashSet::new();
    for round in 0..20u32 {
        let spawn = |i: u32| {
            let wait = [0, 200, 3000, 20_000, 60_000][(i % 5) as usize].to_string();
            let args = [wait.as_str(), if i % 2 == 0 { "0" } else { "30000" }];
            Command::new(&program).arg(&library).args(args).spawn().unwrap()
        };
        let children: Vec<_> = (0..10).map(|i| spawn(round * 10 + i)).collect();
        for mut child in children {
            pids.insert(child.id());
            watch.turn();
            assert!(child.wait().unwrap().success());
        }
    }
    watch.until("nothing is tracked", |w| {
        let mine =
            |u: &rscore::discover::LibraryUse| Path::new(&u.library.path).starts_with(&dir.0);
        let left = w.discovery.statuses().iter().any(mine);
        !left && pids.iter().all(|p| w.seen(*p) == w.gone(*p))
    });
    let seen: usize = pids.iter().map(|p| watch.seen(*p)).sum();
    let libraries = watch.libraries(&dir.0);
    assert!(seen > 0);
    assert!(libraries.iter().all(|l| watch.unused(l.id)));
    let announced = libraries.len();
    println!(
        "{seen} of {} seen, {announced} times a library, {:?}",
        pids.len(),
        watch.discovery.counters()
    );
    drop(libraries);
    watch.log.clear();
    // The resolver's thread and the sweep open files for moments; none stays.
    let end = Instant::now() + discovery_support::LIMIT;
    while descriptors() > before {
        assert!(Instant::now() < end, "{} descriptors before, {} after", before, descriptors());
        watch.turn();
    }
    assert_eq!(watch.discovery.counters().hung_threads, 0);
}

#[test]
fn forked_workers_hold_the_library_and_exec_drops_it() {
    let _alone = alone();
    let dir = Directory::new("fork");
    let path = dir.library("libnccl.so.2", STUB, &[]);
    let mut watch = Watch::start(NEVER, true);
    let mut job = Job::start();
    job.load(&path);
    watch.until("the job", |w| w.seen(job.pid()) == 1);
    let id = watch.libraries(&dir.0)[0].id;
    let workers: Vec<u32> = (0..3).map(|_| job.tell("fork").parse().unwrap()).collect();
    watch.until("workers use the library", |w| {
        workers.iter().all(|worker| w.pids_of(id).contains(worker))
    });
    // Without a sweep, only the touch makes a worker news.
    watch.discovery.touch(workers[0]);
    watch.until("a worker that did something", |w| w.seen(workers[0]) == 1);
    job.tell(&format!("kill {}", workers[0]));
    watch.until("kill -9", |w| w.gone(workers[0]) == 1);
    assert!(!watch.unused(id));
    // The job becomes another program: it is gone, its workers keep the library.
    job.tell("exec");
    watch.until("exec", |w| w.gone(job.pid()) == 1);
    assert!(!watch.unused(id));
    assert_eq!(watch.pids_of(id), workers[1..]);
    for worker in &workers[1..] {
        Command::new("kill").args(["-9", &worker.to_string()]).status().unwrap();
    }
    watch.until("the last worker", |w| w.unused(id));
    // A loss, which a busy machine may have, brings an early sweep.
    assert!(watch.discovery.counters().sweeps == 1 || watch.discovery.sideband_lost() > 0);
}

#[test]
fn the_sweep_alone_sees_everything_in_the_end() {
    let _alone = alone();
    let dir = Directory::new("sweep");
    let path = dir.library("libnccl.so.2", STUB, &[]);
    let mut watch = Watch::start(Duration::from_secs(1), false);
    assert!(!watch.discovery.sideband_error().is_empty());
    let mut jobs: Vec<Job> = (0..3).map(|_| Job::start()).collect();
    for job in &mut jobs {
        job.load(&path);
    }
    watch.until("three jobs", |w| jobs.iter().all(|j| w.seen(j.pid()) == 1));
    let id = watch.libraries(&dir.0)[0].id;
    assert_eq!(watch.libraries(&dir.0).len(), 1);
    let worker: u32 = jobs[0].tell("fork").parse().unwrap();
    watch.until("a worker", |w| w.seen(worker) == 1);
    jobs[0].tell(&format!("kill {worker}"));
    jobs[0].tell("close");
    watch.until("dlclose", |w| w.gone(jobs[0].pid()) == 1 && w.gone(worker) == 1);
    jobs[1].tell("exec");
    watch.until("exec", |w| w.gone(jobs[1].pid()) == 1);
    jobs[2].kill();
    watch.until("kill", |w| w.gone(jobs[2].pid()) == 1 && w.unused(id));
}

#[test]
fn hidden_symbols_are_present_but_not_probeable() {
    let _alone = alone();
    let dir = Directory::new("hidden");
    let gpu = "__attribute__((section(\".nv_fatbin\"), used)) static const char code[64] = {1};";
    let hidden = ["-fvisibility=hidden", "-s"];
    // By the GPU code inside, whatever the name; by its likely name; and a plain user of NCCL,
    // which says the same words without carrying it.
    let by_code = dir.library("libbar.so", &format!("{STUB}{gpu}"), &hidden);
    let by_name = dir.library("libtorch_cuda.so", STUB, &hidden);
    let user = "const char a[] = \"needs NCCL version 2.14 or later\";\
        const char b[] = \"NCCL version %s\"; int f(void) { return a[1] + b[1]; }";
    let user = dir.library("libtorch_cuda_user.so", user, &[]);
    let mut job = Job::start();
    for path in [&by_code, &by_name, &user] {
        job.load(path);
    }
    let mut watch = Watch::start(NEVER, false);
    watch.until("the job", |w| w.seen(job.pid()) == 1);
    let found = watch.libraries(&dir.0);
    let paths: HashSet<_> = found.iter().map(|l| l.path.clone()).collect();
    let expected = [by_code, by_name].map(|p| p.display().to_string());
    assert_eq!(paths, expected.into_iter().collect());
    for library in &found {
        assert!(!library.is_probeable());
        assert!(library.kinds.contains(Kind::Nccl));
        assert_eq!(library.version, "2.99.1");
    }
}

#[test]
fn hostile_mappings_are_nobodys_library() {
    let _alone = alone();
    let dir = Directory::new("hostile");
    let good = dir.library("libnccl.so.2", STUB, &[]);
    let mut bytes = fs::read(&good).unwrap();
    // Program headers beyond the file, under the best of names.
    bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    let broken = dir.0.join("libnccl.so.9");
    fs::write(&broken, &bytes).unwrap();
    let newline = dir.0.join("libnccl\n7f00-7f10 r-xp 0 0:0 1 x.so");
    fs::copy(&good, &newline).unwrap();
    let script = format!(
        "import mmap, sys, ctypes\n\
         f = open({:?}, 'rb'); m = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, 5)\n\
         d = ctypes.CDLL({:?})\n\
         print('ok', flush=True); sys.stdin.read()",
        broken.display().to_string(),
        newline.display().to_string(),
    );
    let mut child = Command::new("python3")
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "ok\n");
    let mut watch = Watch::start(NEVER, false);
    watch.until("the good one", |w| w.seen(child.id()) == 1);
    let found = watch.libraries(&dir.0);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].ino, fs::metadata(&newline).unwrap().ino());
    assert!(!found[0].path.contains('\n'));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Two overlay mounts over one lower folder, unmounted at the end.
struct Overlays(Vec<std::path::PathBuf>);

impl Overlays {
    fn mount(dir: &Directory) -> Self {
        let mut mounts = Overlays(Vec::new());
        for name in ["a", "b"] {
            let of = |part: &str| dir.0.join(format!("{part}-{name}"));
            for part in ["upper", "work", "merged"] {
                fs::create_dir_all(of(part)).unwrap();
            }
            let options = format!(
                "lowerdir={},upperdir={},workdir={}",
                dir.0.join("lower").display(),
                of("upper").display(),
                of("work").display()
            );
            let status = Command::new("mount")
                .args(["-t", "overlay", "overlay", "-o", &options])
                .arg(of("merged"))
                .status()
                .unwrap();
            assert!(status.success(), "overlay mount: these tests need root");
            mounts.0.push(of("merged"));
        }
        mounts
    }
}

impl Drop for Overlays {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}

#[test]
fn overlay_mounts_show_one_file_as_two_and_it_is_said() {
    let _alone = alone();
    let dir = Directory::new("overlay");
    fs::create_dir_all(dir.0.join("lower")).unwrap();
    dir.library("lower/libnccl.so.2", STUB, &[]);
    let mounts = Overlays::mount(&dir);
    let mut watch = Watch::start(NEVER, true);
    let mut jobs = [Job::start(), Job::start()];
    for (job, mount) in jobs.iter_mut().zip(&mounts.0) {
        job.load(&mount.join("libnccl.so.2"));
    }
    watch.until("both jobs", |w| jobs.iter().all(|j| w.seen(j.pid()) == 1));
    let found = watch.libraries(&dir.0);
    assert_eq!(found.len(), 2);
    assert_ne!(found[0].dev, found[1].dev);
    assert_eq!(found[0].probably_same_as, None);
    assert_eq!(found[1].probably_same_as, Some(found[0].id));
    drop(jobs);
}

#[test]
fn a_touched_file_stays_the_same_library() {
    let _alone = alone();
    let dir = Directory::new("touched");
    let path = dir.library("libnccl.so.2", STUB, &[]);
    let mut job = Job::start();
    job.load(&path);
    let mut watch = Watch::start(Duration::from_secs(1), false);
    watch.until("the job", |w| w.seen(job.pid()) == 1);
    fs::hard_link(&path, dir.0.join("another-name.so")).unwrap();
    let sweeps = watch.discovery.counters().sweeps;
    watch.until("two sweeps", |w| w.discovery.counters().sweeps >= sweeps + 3);
    assert_eq!(watch.libraries(&dir.0).len(), 1);
    assert_eq!((watch.seen(job.pid()), watch.gone(job.pid())), (1, 0));
}

#[test]
fn a_second_sweep_looks_into_no_file_again() {
    let _alone = alone();
    let mut children: Vec<_> =
        (0..300).map(|_| Command::new("sleep").arg("600").spawn().unwrap()).collect();
    let mut watch = Watch::start(Duration::from_secs(1), false);
    let first = watch.discovery.counters();
    let began = cpu_time();
    watch.until("two more sweeps", |w| w.discovery.counters().sweeps >= 4);
    let after = watch.discovery.counters();
    let processes = fs::read_dir("/proc").unwrap().count();
    println!("sweep of about {processes} processes: first {first:?}, then {after:?}");
    let looks = (after.examined - first.examined) as u32;
    println!("{:?} of CPU time a process and sweep", (cpu_time() - began) / looks);
    assert!(after.examined - first.examined > 600);
    // Whatever else starts on this machine is new; 300 times sleep is not.
    assert!(after.inspected - first.inspected < 200, "{first:?} {after:?}");
    // With the side-band, most sweeps look at new processes only.
    let mut watch = Watch::start(Duration::from_secs(1), true);
    let first = watch.discovery.counters();
    watch.until("a light sweep", |w| w.discovery.counters().sweeps >= 3);
    let after = watch.discovery.counters();
    println!(
        "light sweeps: {} looks, the last took {} ns",
        after.examined - first.examined,
        after.sweep_ns
    );
    let lost = watch.discovery.sideband_lost() > 0;
    assert!(lost || after.examined - first.examined < 300, "{first:?} {after:?}");
    let after = watch.discovery.counters();
    for _ in 0..100 {
        assert!(Command::new("true").status().unwrap().success());
    }
    watch.turn();
    let volume = watch.discovery.counters();
    println!(
        "side-band: {:.1} records and {:.0} bytes a process of /bin/true",
        (volume.records - after.records) as f64 / 100.0,
        (volume.record_bytes - after.record_bytes) as f64 / 100.0
    );
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// CPU time of this process, all threads.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn discovery_can_live_in_a_thread_of_its_own() {
    fn is_send<T: Send>() {}
    is_send::<rscore::discover::Discovery>();
}
