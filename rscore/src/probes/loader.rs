//! Loads the BPF program, attaches it to files, and reads its counters.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramAttachType,
    UprobeMultiOpts, UprobeOpts,
};

use super::counters::Counters;
use super::error::Error;
use super::layout;
use super::ring::Drain;
use super::site::{Site, Spec, LINKS_MAX};
use super::sites::SiteTable;

/// Sites of one file; no real library has half of it.
const SITES_PER_FILE: usize = 256;
/// Name of the BPF program.
const PROGRAM: &str = "collective";

/// The compiled `bpf/collectives.bpf.c`.
pub static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/collectives.bpf.o"));

/// How probes are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Multi links where the kernel has them (6.6), perf events otherwise.
    #[default]
    Auto,
    /// One uprobe_multi link per file.
    Multi,
    /// One perf event per site.
    Perf,
}

impl Method {
    /// The method's name as configuration and status say it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Auto => "auto",
            Method::Multi => "uprobe_multi",
            Method::Perf => "perf",
        }
    }
}

/// Sizes and method; ring sizes are bytes, powers of two, at least a page.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub bulk_bytes: u32,
    pub lifecycle_bytes: u32,
    pub method: Method,
}

impl Default for Options {
    fn default() -> Options {
        Options { bulk_bytes: 4 << 20, lifecycle_bytes: 256 << 10, method: Method::Auto }
    }
}

/// An open attachment of one file; also the `link` of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u16);

struct Attachment {
    /// Detach when dropped.
    _links: Vec<Link>,
    specs: Vec<Spec>,
    /// Open as long as the links, so that its inode cannot be reused.
    _file: File,
    duplicates_before: u64,
}

/// The loaded program and everything attached with it; detaches when dropped.
pub struct Probes {
    object: Object,
    method: Method,
    sites: SiteTable,
    attachments: HashMap<LinkId, Attachment>,
    next_link: u16,
    stats: Option<OwnedFd>,
}

impl Probes {
    /// Load the program; the second half reads events and may live in another thread.
    ///
    /// # Errors
    /// Names the missing capability where the kernel refuses.
    pub fn load(options: &Options) -> Result<(Probes, Drain), Error> {
        for bytes in [options.bulk_bytes, options.lifecycle_bytes] {
            if !bytes.is_power_of_two() || bytes < 4096 {
                return Err(Error::new(format!(
                    "ring size {bytes} is not a power of two of at least 4096 bytes"
                )));
            }
        }
        super::log::capture();
        let method = match options.method {
            Method::Auto if has_multi() => Method::Multi,
            Method::Auto => Method::Perf,
            chosen => chosen,
        };
        let mut open = ObjectBuilder::default()
            .open_memory(OBJECT)
            .map_err(|e| Error::from_bpf("cannot open the BPF object", &e))?;
        prepare(&mut open, options, method)?;
        let object = open.load().map_err(|e| {
            let error = Error::from_bpf("cannot load the BPF program", &e);
            super::log::explain(error)
        })?;
        layout::check(&object)?;
        let drain = {
            let lifecycle = map(&object, "lifecycle")?;
            let bulk = map(&object, "bulk")?;
            Drain::new(
                (lifecycle.as_fd(), options.lifecycle_bytes),
                (bulk.as_fd(), options.bulk_bytes),
            )
            .map_err(|e| Error::from_io("cannot map the ring buffers", &e))?
        };
        let probes = Probes {
            object,
            method,
            sites: SiteTable::default(),
            attachments: HashMap::new(),
            next_link: 0,
            stats: None,
        };
        Ok((probes, drain))
    }

    /// The method in use: [`Method::Multi`] or [`Method::Perf`].
    pub fn method(&self) -> Method {
        self.method
    }

    /// Probe `sites` of `file` in every process that maps it, now or later.
    ///
    /// # Errors
    /// All sites or none: an error names the file's descriptor and the kernel's reason.
    pub fn attach(&mut self, file: &File, sites: &[Site]) -> Result<LinkId, Error> {
        if sites.is_empty() || sites.len() > SITES_PER_FILE {
            let n = sites.len();
            return Err(Error::new(format!("{n} sites in one file: 1 to {SITES_PER_FILE} can be")));
        }
        let link = self.free_link()?;
        let file = file.try_clone().map_err(|e| Error::from_io("cannot keep the file open", &e))?;
        let mut specs = Vec::with_capacity(sites.len());
        match self.attach_specs(link, &file, sites, &mut specs) {
            Ok((links, duplicates_before)) => {
                let attachment =
                    Attachment { _links: links, specs, _file: file, duplicates_before };
                self.attachments.insert(link, attachment);
                Ok(link)
            }
            Err(error) => {
                self.sites.release(&specs);
                Err(error)
            }
        }
    }

    /// `kept` tells which specs were put into the site table, also when attaching fails.
    fn attach_specs(
        &mut self,
        link: LinkId,
        file: &File,
        sites: &[Site],
        kept: &mut Vec<Spec>,
    ) -> Result<(Vec<Link>, u64), Error> {
        let table = map(&self.object, "sites")?;
        let mut cookies = Vec::with_capacity(sites.len());
        for site in sites {
            let index = self.sites.keep(&site.spec, &table)?;
            kept.push(site.spec);
            cookies.push(u64::from(link.0) << 32 | u64::from(index));
        }
        let duplicates_before = self.read_counters()?.duplicates[usize::from(link.0)];
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok((self.attach_all(&path, sites, &cookies)?, duplicates_before))
    }

    fn attach_all(
        &mut self,
        path: &str,
        sites: &[Site],
        cookies: &[u64],
    ) -> Result<Vec<Link>, Error> {
        let method = self.method;
        let program = self
            .object
            .progs_mut()
            .find(|p| p.name() == PROGRAM)
            .ok_or_else(|| Error::new(format!("the BPF object has no program {PROGRAM}")))?;
        let every_process = -1;
        if method == Method::Multi {
            let options = UprobeMultiOpts {
                offsets: sites.iter().map(|s| s.offset as usize).collect(),
                cookies: cookies.to_vec(),
                ..Default::default()
            };
            let link =
                program.attach_uprobe_multi_with_opts(every_process, path, "", options).map_err(
                    |e| Error::from_bpf(&format!("cannot attach {} probes", sites.len()), &e),
                )?;
            return Ok(vec![link]);
        }
        let mut links = Vec::with_capacity(sites.len());
        for (site, cookie) in sites.iter().zip(cookies) {
            let options = UprobeOpts { cookie: *cookie, ..Default::default() };
            let link = program
                .attach_uprobe_with_opts(every_process, path, site.offset as usize, options)
                .map_err(|e| Error::from_bpf(&format!("cannot attach to {}", site.symbol), &e))?;
            links.push(link);
        }
        Ok(links)
    }

    /// Detach; waits until no probe of this link runs any more: some 30 ms, with perf events
    /// some 90 ms a site, one after another (the kernel holds a lock).
    pub fn detach(&mut self, link: LinkId) {
        let Some(mut attachment) = self.attachments.remove(&link) else { return };
        let specs = std::mem::take(&mut attachment.specs);
        drop(attachment);
        self.sites.release(&specs);
        // Another link of the same real file may take over what this one owned.
        let id = u32::from(link.0).to_ne_bytes();
        if let Ok(claims) = map(&self.object, "claims") {
            delete_where(&claims, |_, owner| owner == Some(&id), true);
        }
    }

    /// Forget all that is known of ended processes, before their ids are used again.
    pub fn purge_all(&mut self, tgids: &[u32]) {
        let of_them = |key: &[u8], _: Option<&[u8]>| {
            let tgid = key.first_chunk().map(|b| u32::from_ne_bytes(*b));
            tgid.is_some_and(|t| tgids.contains(&t))
        };
        for name in ["claims", "comms", "outs", "inits", "ignored"] {
            if let Ok(map) = map(&self.object, name) {
                delete_where(&map, of_them, false);
            }
        }
    }

    /// [`Probes::purge_all`] of one process.
    pub fn purge(&mut self, tgid: u32) {
        self.purge_all(&[tgid]);
    }

    /// Drop a process's events in the kernel, or stop doing so.
    ///
    /// # Errors
    /// The table of ignored processes is full.
    pub fn ignore(&mut self, tgid: u32, on: bool) -> Result<(), Error> {
        let ignored = map(&self.object, "ignored")?;
        let failed = |e| Error::from_bpf(&format!("cannot ignore process {tgid}"), &e);
        let key = tgid.to_ne_bytes();
        if on {
            ignored.update(&key, &1u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        } else {
            // Absent is what was asked for.
            let _ = ignored.delete(&key);
        }
        // Without an entry the program need not look.
        let any = u32::from(ignored.keys().next().is_some());
        map(&self.object, ".data.ignoring")?
            .update(&0u32.to_ne_bytes(), &any.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed)
    }

    /// Count the program's run time, or stop: the kernel then reads the clock twice more per
    /// event, for all BPF programs of the machine.
    ///
    /// # Errors
    /// The kernel refuses; the message names the missing capability.
    pub fn measure_run_time(&mut self, on: bool) -> Result<(), Error> {
        self.stats = None;
        if on {
            // SAFETY: no pointers are passed.
            let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
            if fd < 0 {
                let error = std::io::Error::from_raw_os_error(-fd);
                return Err(Error::from_io("cannot measure BPF run time", &error));
            }
            // SAFETY: a fresh descriptor that nobody else owns.
            self.stats = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Ok(())
    }

    /// What the program counted since it was loaded.
    ///
    /// # Errors
    /// The counters cannot be read; not expected while the program is loaded.
    pub fn counters(&self) -> Result<Counters, Error> {
        let raw = self.read_counters()?;
        let mut links: Vec<_> = self.attachments.iter().collect();
        links.sort_by_key(|(link, _)| **link);
        let duplicates = links
            .into_iter()
            .map(|(link, a)| {
                (*link, raw.duplicates[usize::from(link.0)].wrapping_sub(a.duplicates_before))
            })
            .collect();
        let (run_time, run_count) = self.run_time();
        Ok(Counters::new(&raw, duplicates, run_time, run_count))
    }

    /// Events of all kinds lost since the program was loaded; cheaper than all counters.
    ///
    /// # Errors
    /// As [`Probes::counters`].
    pub fn lost_total(&self) -> Result<u64, Error> {
        Ok(self.read_counters()?.lost.iter().sum())
    }

    fn read_counters(&self) -> Result<Box<layout::RawCounters>, Error> {
        let data = map(&self.object, ".bss")?;
        let value = data
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::from_bpf("cannot read the BPF counters", &e))?
            .ok_or_else(|| Error::new("the BPF counters are gone"))?;
        layout::RawCounters::from_bytes(&value)
            .ok_or_else(|| Error::new("the BPF counters have an unexpected size"))
    }

    /// Nanoseconds and runs of the program while its time was measured.
    fn run_time(&self) -> (Duration, u64) {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut bytes = std::mem::size_of_val(&info) as u32;
        let Some(program) = self.object.progs().find(|p| p.name() == PROGRAM) else {
            return Default::default();
        };
        // SAFETY: `info` is a plain structure of `bytes` bytes; its pointers are null and its
        // array lengths 0, so the kernel fills in numbers only.
        let error = unsafe {
            libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut bytes)
        };
        if error != 0 {
            return Default::default();
        }
        (Duration::from_nanos(info.run_time_ns), info.run_cnt)
    }

    fn free_link(&mut self) -> Result<LinkId, Error> {
        for _ in 0..LINKS_MAX {
            // Round robin: an id rests before it is used again, for the sake of late events.
            let id = LinkId(self.next_link);
            self.next_link = (self.next_link + 1) % LINKS_MAX as u16;
            if !self.attachments.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(Error::new(format!("{LINKS_MAX} libraries are probed already: no more links")))
    }
}

/// Sizes and attach type, which must be set before the object is loaded.
fn prepare(open: &mut OpenObject, options: &Options, method: Method) -> Result<(), Error> {
    for mut map in open.maps_mut() {
        let bytes = match map.name().to_str() {
            Some("bulk") => options.bulk_bytes,
            Some("lifecycle") => options.lifecycle_bytes,
            _ => continue,
        };
        map.set_max_entries(bytes).map_err(|e| Error::from_bpf("cannot size a ring", &e))?;
    }
    if method == Method::Multi {
        for mut program in open.progs_mut() {
            program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
        }
    }
    Ok(())
}

/// Whether the kernel knows uprobe_multi links: it looks at the path before it looks for
/// instructions, so a path that is no regular file tells, and nothing is attached.
fn has_multi() -> bool {
    let Ok(mut open) = ObjectBuilder::default().open_memory(OBJECT) else {
        return false;
    };
    for mut program in open.progs_mut() {
        program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
    }
    let Ok(object) = open.load() else {
        return false;
    };
    let Some(program) = object.progs().find(|p| p.name() == PROGRAM) else {
        return false;
    };
    let offsets = [0 as libc::c_ulong];
    let mut options = libbpf_sys::bpf_link_create_opts::default();
    options.sz = std::mem::size_of_val(&options) as libbpf_sys::size_t;
    options.__bindgen_anon_1.uprobe_multi.path = c"/".as_ptr();
    options.__bindgen_anon_1.uprobe_multi.offsets = offsets.as_ptr();
    options.__bindgen_anon_1.uprobe_multi.cnt = 1;
    // SAFETY: the options and what they point at live through the call.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_fd().as_raw_fd(),
            -1,
            libbpf_sys::BPF_TRACE_UPROBE_MULTI,
            &options,
        )
    };
    fd == -libc::EBADF
}

/// Delete the entries of a hash that `doomed` picks by key and, where asked for, value.
/// Bounded: a job that adds entries meanwhile cannot keep us here.
fn delete_where(map: &MapHandle, doomed: impl Fn(&[u8], Option<&[u8]>) -> bool, values: bool) {
    let mut keys = Vec::new();
    for key in map.keys().take(2 * map.max_entries() as usize) {
        let value = if values { map.lookup(&key, MapFlags::ANY).ok().flatten() } else { None };
        if doomed(&key, value.as_deref()) {
            keys.push(key);
        }
    }
    for key in keys {
        // Gone already is gone.
        let _ = map.delete(&key);
    }
}

/// A map of the object by name; libbpf prefixes `.bss` with the object's name.
fn map(object: &Object, name: &str) -> Result<MapHandle, Error> {
    let found = object.maps().find(|m| match m.name().to_str() {
        Some(full) => full == name || (name.starts_with('.') && full.ends_with(name)),
        None => false,
    });
    let found = found.ok_or_else(|| Error::new(format!("the BPF object has no map {name}")))?;
    MapHandle::try_from(&found)
        .map_err(|e| Error::from_bpf(&format!("cannot use the BPF map {name}"), &e))
}
