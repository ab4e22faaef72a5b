//! One process: events and records in, steps out.

use super::agreement::Vote;
use super::communicators::Communicators;
use super::device::Device;
use super::inflight::{Collective, InFlight};
use super::lane::Lane;
use super::overlap::Overlap;
use super::pairs::Call;
use super::RankStatus;
use crate::ring::Record;
use crate::window::source;
use crate::wire::{what, Event};

/// Who a process is within its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub job: u64,
    pub rank: u32,
    pub world_size: u32,
    pub class_id: u32,
}

/// Everything that is kept of one process.
#[derive(Debug)]
pub(crate) struct Process {
    pub pid: u32,
    /// Clock ticks after boot; 0 while nobody said it.
    pub start_time: u64,
    pub assignment: Option<Assignment>,
    /// The process ended; its steps wait for the window to close.
    pub ended: bool,
    pub last_event_ns: u64,
    communicators: Communicators,
    flight: InFlight,
    /// What the host probes and gloo's worker threads tell.
    host: Lane,
    /// What the ring tells, once there is one. Both lanes are fed all the time, so that a window
    /// has the one or the other as a whole.
    device: Option<Box<Device>>,
    events: u64,
    step_limit: usize,
}

impl Process {
    pub fn new(pid: u32, start_time: u64, step_limit: usize) -> Process {
        Process {
            pid,
            start_time,
            assignment: None,
            ended: false,
            last_event_ns: 0,
            communicators: Communicators::default(),
            flight: InFlight::default(),
            host: Lane::new(step_limit),
            device: None,
            events: 0,
            step_limit,
        }
    }

    /// Takes one event; true when a step that counts ended with it.
    #[inline]
    pub fn on_event(&mut self, event: &Event) -> bool {
        self.events += 1;
        self.last_event_ns = self.last_event_ns.max(event.time_ns);
        if event.what == what::ENTER && self.device.is_some() {
            self.host_call(event);
        }
        match event.what {
            what::ENTER if self.flight.is_empty() => self.take(&Collective::from_enter(event)),
            what::DETAIL => {
                self.flight.on_event(event);
                let (rank, nranks) = event.rank_and_size();
                if nranks > 0 {
                    self.communicators.learn(event.comm, rank, nranks);
                }
                self.settle_host(event.time_ns)
            }
            what::ENTER | what::DONE | what::FAILED => {
                self.flight.on_event(event);
                self.settle_host(event.time_ns)
            }
            what::COMM_INIT..=what::COMM_ABORT | what::COMM_INIT_ALL => {
                self.communicators.on_event(event);
                let ended = matches!(event.what, what::COMM_DESTROY | what::COMM_ABORT);
                if let Some(device) = self.device.as_mut().filter(|_| ended) {
                    device.coverage.communicator_ended(event.comm);
                }
                false
            }
            _ => false,
        }
    }

    /// Hands on what is finished or given up by `now_ns`.
    pub fn settle(&mut self, now_ns: u64) {
        if let Some(device) = &mut self.device {
            device.settle(now_ns);
        }
        self.settle_host(now_ns);
    }

    /// The same for the host's side; true when a step ended.
    #[inline]
    fn settle_host(&mut self, now_ns: u64) -> bool {
        let mut ended = false;
        while let Some(collective) = self.flight.pop(now_ns) {
            ended |= self.take(&collective);
            if let Some(device) = self.device.as_mut().filter(|_| collective.timed) {
                device.lane.also_busy(collective.start_ns, collective.end_ns);
            }
        }
        ended
    }

    // Always: see `Lane::take`.
    #[inline(always)]
    fn take(&mut self, collective: &Collective) -> bool {
        let communicator = self.communicators.count(collective.communicator);
        self.host.take(communicator, collective)
    }

    /// Counts a call that the ring has to see too: one of a single rank, or of nothing, never
    /// comes to the device.
    #[cold]
    fn host_call(&mut self, event: &Event) {
        let Some(device) = self.device.as_mut().filter(|device| device.is_full()) else { return };
        if event.count > 0 && self.communicators.nranks(event.comm) != Some(1) {
            let call = Collective::from_enter(event);
            device.coverage.host_call(Call {
                pointer: call.communicator,
                time_ns: call.start_ns,
                bytes: call.bytes,
                function: call.function,
            });
        }
    }

    /// A ring was found; one before it is over.
    pub fn ring_opened(&mut self) {
        self.device = Some(Box::new(Device::new(self.step_limit)));
    }

    /// Takes one record of the ring.
    pub fn on_record(&mut self, record: &Record, now_ns: u64) {
        self.last_event_ns = self.last_event_ns.max(record.host_ns.min(now_ns));
        if let Some(device) = &mut self.device {
            device.on_record(record, now_ns);
        }
    }

    /// `lost` more records were not read in time.
    pub fn ring_lost(&mut self, lost: u64) {
        if let Some(device) = &mut self.device {
            device.on_lost(lost);
        }
    }

    /// Whether the ring records everything from now on.
    pub fn ring_mode(&mut self, full: bool) {
        match &mut self.device {
            Some(device) if full && !device.is_full() => **device = Device::new(self.step_limit),
            Some(device) if !full && device.is_full() => device.stop(false),
            _ => {}
        }
    }

    /// The ring is gone.
    pub fn ring_closed(&mut self) {
        if let Some(device) = &mut self.device {
            device.stop(true);
        }
    }

    /// The device, while steps are made of what it tells.
    fn live_device(&self) -> Option<&Device> {
        let live = |d: &&Device| d.is_live() || self.ended && d.was_live();
        self.device.as_deref().filter(live)
    }

    /// What steps are made of now.
    pub fn lane(&self) -> &Lane {
        self.live_device().map_or(&self.host, |device| &device.lane)
    }

    /// What tells of the whole window, and the device if it is that.
    pub fn lane_for(&self, start_ns: u64, end_ns: u64) -> (&Lane, Option<&Device>) {
        let covers = |d: &&Device| d.covers(start_ns, if self.ended { 0 } else { end_ns });
        match self.live_device().filter(covers) {
            Some(device) => (&device.lane, Some(device)),
            None => (&self.host, None),
        }
    }

    /// What this rank takes for the job's step; `None` without a job or a pattern.
    pub fn vote(&self) -> Option<Vote> {
        let job = self.assignment.filter(|_| !self.ended)?.job;
        self.lane().vote(job)
    }

    /// What the ring's lane knows of its places, with its job and signature.
    pub fn overlap(&mut self) -> Option<(u64, u64, &mut Overlap)> {
        let job = self.assignment.filter(|_| !self.ended)?.job;
        let device = self.device.as_mut().filter(|device| device.lane.has_pattern())?;
        Some((job, device.lane.signature(), &mut device.overlap))
    }

    /// Most ranks cut the same sequence otherwise: searches anew, a bounded number of times.
    pub fn look_again(&mut self) {
        match &mut self.device {
            Some(device) if device.is_live() => device.lane.look_again(),
            _ => self.host.look_again(),
        }
    }

    /// The next slice of time begins.
    pub fn next_slice(&mut self) {
        self.host.next_slice();
        if let Some(device) = &mut self.device {
            device.lane.next_slice();
        }
    }

    /// A window closed at `end_ns`.
    pub fn close(&mut self, end_ns: u64) {
        self.host.close(end_ns);
        if let Some(device) = &mut self.device {
            device.close(end_ns);
        }
    }

    /// What `stragctl ranks` shows.
    pub fn status(&self) -> RankStatus {
        let assignment =
            self.assignment.unwrap_or(Assignment { job: 0, rank: 0, world_size: 0, class_id: 0 });
        let lane = self.lane();
        let device = self.device.as_deref();
        let source = match (lane.untimed(), lane.collectives()) {
            (_, 0) => 0,
            _ if self.live_device().is_some() => source::DEVICE_RING,
            (0, _) => source::GLOO,
            _ => source::HOST_PROBE,
        };
        let coverage = device.filter(|device| device.is_full());
        RankStatus {
            pid: self.pid,
            start_time: self.start_time,
            job: assignment.job,
            rank: assignment.rank,
            world_size: assignment.world_size,
            events: self.events,
            records: device.map_or(0, Device::records),
            coverage: coverage.and_then(|device| device.coverage.share()),
            missed: coverage.map_or(0, |device| device.coverage.missed()),
            collectives: lane.collectives(),
            irregular: lane.irregular(),
            steps: lane.completed(),
            period: lane.period() as u64,
            signature: if lane.has_pattern() { lane.signature() } else { 0 },
            source,
            last_event_ns: self.last_event_ns,
            in_flight: self.flight.unfinished() as u64,
            communicators: self
                .communicators
                .status(|pointer| coverage.and_then(|device| device.coverage.joined(pointer))),
        }
    }
}
