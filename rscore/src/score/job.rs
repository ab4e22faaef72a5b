//! Scores of one job: every rank, then the whole, then the groups.

use std::collections::HashSet;

use super::case::Case;
use super::compare::{compare, Comparisons};
use super::estimate::{scan_limit, Middle};
use super::fast::{self, FastScore, TENTHS};
use super::groups::{key, Groups, Member, MIN_PEERS};
use super::rank::{self, Context, Entry, RankScore, LEVEL_ODDS};
use super::series::{lend, pool, Widths};
use super::whole::{Whole, WholeScore};
use super::{Abstention, Config, Kind, State, Update};
use crate::window::{flag, source, RankWindow};

/// Noise of a window below which none is believed (ln).
const HOST_FLOOR: f64 = 0.004;
const DEVICE_FLOOR: f64 = 0.001;
/// ln 1.07 and ln 1.25: least lasting slowdown of the job and of its transfers.
const JOB_LEAST: f64 = 0.06765864847381486;
const NETWORK_LEAST: f64 = 0.22314355131420976;
/// Windows without a row after which a rank is forgotten.
const MISSING_WINDOWS: u32 = 10;
/// Windows whose numbers are kept.
const RECENT: usize = 64;
/// Share of the false alarms that whole windows may raise; the rest is for tenths of them.
const WINDOWS_SHARE: f64 = 0.9;

/// Everything that is kept of one job.
#[derive(Debug, Default)]
pub(super) struct JobScore {
    pub last_call: u64,
    pub window: Option<u64>,
    /// (Number, begin) of the last windows, newest first.
    pub recent: Vec<(u64, u64)>,
    /// By rank; `ranks` has the rest of each.
    pub entries: Vec<Entry>,
    pub ranks: Vec<RankScore>,
    pub key: u64,
    pub wide: WholeScore,
    pub network: WholeScore,
    pub compared: Comparisons,
    pub fast: FastScore,
    work: Work,
}

/// What is reused from window to window and is no state.
#[derive(Debug, Default)]
struct Work {
    groups: Groups,
    /// Places of the accepted rows' ranks.
    slots: Vec<u32>,
    values: Vec<f64>,
    widths: Widths,
    /// Number of ranks, the limit for it, and that of a rank above its peers.
    limit: (usize, f64, f64),
    /// Number of ranks, and the limit of a tenth.
    fast_limit: (usize, f64),
}

impl JobScore {
    /// Takes the `accepted` rows of one window; there is at least one.
    pub fn update(
        &mut self,
        rows: &[RankWindow],
        accepted: &[u32],
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        let first = &rows[accepted[0] as usize];
        self.window = Some(first.window);
        self.recent.insert(0, (first.window, first.start_time_ns()));
        self.recent.truncate(RECENT);
        let mut work = std::mem::take(&mut self.work);
        self.place_ranks(rows, accepted, &mut work.slots);
        work.groups.build(rows, accepted, &work.slots, &mut update.abstentions);
        self.look_back(rows, &mut work.groups, update);
        let ranks = work.groups.members.len().max(1);
        if work.limit.0 != ranks {
            let rate = config.false_alarms_per_million * WINDOWS_SHARE;
            let with_level = scan_limit(rate * LEVEL_ODDS, ranks);
            work.limit = (ranks, scan_limit(rate, ranks), with_level);
        }
        self.judge_ranks(rows, &mut work, config, next_id, update);
        self.judge_job(rows, &mut work, config, next_id);
        self.judge_network(rows, &mut work, config, next_id);
        compare(&mut self.compared, &work.groups, rows, config, next_id);
        self.work = work;
        self.show(update);
    }

    /// Takes the `accepted` rows of a tenth of a window; there is at least one.
    pub fn update_tenth(
        &mut self,
        rows: &[RankWindow],
        accepted: &[u32],
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        self.fast.last = Some(rows[accepted[0] as usize].window);
        let mut work = std::mem::take(&mut self.work);
        let (groups, slots) = (&mut work.groups, &mut work.slots);
        let mut slot = 0;
        slots.clear();
        for &place in accepted {
            let rank = rows[place as usize].rank;
            while self.entries.get(slot).is_some_and(|entry| entry.rank < rank) {
                slot += 1;
            }
            slots.push(match self.entries.get(slot) {
                Some(entry) if entry.rank == rank => slot as u32,
                _ => u32::MAX,
            });
        }
        groups.select(rows, accepted, slots, &mut Vec::new());
        let entries = &self.entries;
        groups.members.retain_mut(|member| {
            let entry = entries.get(member.slot as usize);
            entry.is_some_and(|entry| fast::look_back(member, &rows[member.row as usize], entry))
        });
        if !groups.members.is_empty() {
            groups.arrange(rows);
            groups.set_references();
            let ranks = groups.members.len();
            if work.fast_limit.0 != ranks {
                let rate = config.false_alarms_per_million * (1.0 - WINDOWS_SHARE) / TENTHS;
                work.fast_limit = (ranks, scan_limit(rate, ranks));
            }
            let scores = fast::Scores { entries: &mut self.entries, ranks: &mut self.ranks };
            let limit = work.fast_limit.1;
            let base = fast::Base { rows, recent: &self.recent, config, limit };
            self.fast.judge(scores, groups, &base, next_id, &mut work.values);
        }
        self.work = work;
        self.show(update);
    }

    /// Finds or makes the ranks of the rows, and counts the windows of all.
    fn place_ranks(&mut self, rows: &[RankWindow], accepted: &[u32], slots: &mut Vec<u32>) {
        let of = |place: &u32| rows[*place as usize].rank;
        let mut known = self.entries.iter().map(|entry| entry.rank);
        let unknown = |place: &&u32| !known.any(|rank| rank == of(place));
        if let Some(first) = accepted.iter().find(unknown) {
            self.add_ranks(accepted.iter().map(of).filter(|rank| *rank >= of(first)));
        }
        slots.clear();
        let mut wanted = accepted.iter().map(of).peekable();
        for (slot, entry) in self.entries.iter_mut().enumerate() {
            entry.behind = entry.behind.saturating_add(1);
            if wanted.next_if_eq(&entry.rank).is_some() {
                entry.missing = 0;
                slots.push(slot as u32);
            } else {
                entry.missing += 1;
            }
        }
    }

    fn add_ranks(&mut self, ranks: impl Iterator<Item = u32>) {
        let known: HashSet<u32> = self.entries.iter().map(|entry| entry.rank).collect();
        let entries = std::mem::take(&mut self.entries).into_iter();
        let mut all: Vec<_> = entries.zip(std::mem::take(&mut self.ranks)).collect();
        for rank in ranks.filter(|rank| !known.contains(rank)) {
            all.push((Entry { rank, ..Entry::default() }, RankScore::default()));
        }
        all.sort_by_key(|(entry, _)| entry.rank);
        (self.entries, self.ranks) = all.into_iter().unzip();
    }

    /// Every rank's value over its own past, and what happened to the others meanwhile.
    fn look_back(&mut self, rows: &[RankWindow], groups: &mut Groups, update: &mut Update) {
        for member in &mut groups.members {
            let row = &rows[member.row as usize];
            let entry = &mut self.entries[member.slot as usize];
            if entry.renew(key(row), row) {
                self.ranks[member.slot as usize].renew(&mut update.findings);
            }
            member.excess = member.value - entry.usual;
            member.proven = entry.proven;
        }
        groups.set_references();
    }

    fn judge_ranks(
        &mut self,
        rows: &[RankWindow],
        work: &mut Work,
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        let groups = &mut work.groups;
        let least = (1.0 + config.min_slowdown).ln();
        let stated = groups.stated_error(rows);
        let spreads = groups.members.iter().map(|m| &self.entries[m.slot as usize].spread);
        let prior = lend(spreads, stated);
        self.fast.window_variance = 0.0;
        for place in 0..groups.groups.len() {
            let group = groups.groups[place];
            let members = &groups.members[group.from..group.to];
            let host = members.iter().any(|m| rows[m.row as usize].source == source::GLOO);
            let series = members.iter().map(|m| &self.entries[m.slot as usize].spread);
            let noise = pool(series, if host { HOST_FLOOR } else { DEVICE_FLOOR }, prior);
            self.fast.window_variance = self.fast.window_variance.max(noise.variance);
            let window = rows[members[0].row as usize].window;
            let moved =
                |m: &&Member| self.entries[m.slot as usize].has_moved(window, RECENT as u64);
            let context = Context {
                config,
                recent: &self.recent,
                least,
                limit: work.limit.1,
                limit_with_level: work.limit.2,
                alone: groups.members.len() == 1,
                noise,
                long_run: noise.long_run(),
                around: groups.around(&group, members.iter().filter(moved).count() as u32),
            };
            for number in group.from..group.to {
                let member = groups.members[number];
                let row = &rows[member.row as usize];
                let beside = (context.around.peers >= MIN_PEERS)
                    .then(|| groups.beside(&group, number, &mut work.values));
                let entry = &mut self.entries[member.slot as usize];
                let rank = &mut self.ranks[member.slot as usize];
                let changes = &mut rank::Work { widths: &mut work.widths, next_id };
                let reason = rank.judge(entry, &member, row, beside, &context, changes);
                if entry.open {
                    rank.tell_work(groups.work(place, rows, row));
                }
                if let Some(reason) = reason {
                    let (job, rank, window) = (row.job, row.rank, row.window);
                    update.abstentions.push(Abstention { job, rank, window, reason });
                }
            }
        }
    }

    /// Everybody slower than before: even the fastest quarter is.
    fn judge_job(
        &mut self,
        rows: &[RankWindow],
        work: &mut Work,
        config: &Config,
        next_id: &mut u64,
    ) {
        let groups = &mut work.groups;
        let key = groups.groups.iter().fold(0, |key, group| key ^ group.key.0);
        if key != self.key {
            self.key = key;
            self.wide.reset();
        }
        let count = groups.everybody.len();
        if count < 2 {
            return;
        }
        let quarter = (count - 1) / 4;
        let (_, value, _) = groups.everybody.select_nth_unstable_by(quarter, f64::total_cmp);
        let value = *value;
        let row = &rows[groups.members[0].row as usize];
        let whole = Whole {
            kind: Kind::JobWide,
            least: JOB_LEAST,
            doubtful: false,
            limit: work.limit.1,
            row,
            recent: &self.recent,
            config,
        };
        self.wide.judge(value, &whole, &mut work.widths, next_id);
        if self.wide.case.is_some() {
            let unit = if row.flags & flag::STEPS_NOT_INFERRED == 0 { 1.0 } else { row.wall };
            work.values.clear();
            work.values.extend(work.groups.members.iter().map(|member| member.value));
            let own = Middle::of(&mut work.values).median().exp() * unit;
            self.wide.show(value, own, &whole);
        }
    }

    /// Transfers slower than before, while the ranks' own work is not.
    fn judge_network(
        &mut self,
        rows: &[RankWindow],
        work: &mut Work,
        config: &Config,
        next_id: &mut u64,
    ) {
        work.values.clear();
        let members = &work.groups.members;
        let transfers = members.iter().map(|member| rows[member.row as usize].comm);
        work.values.extend(transfers.filter(|comm| *comm > 0.0));
        if work.values.len() < 2 {
            return;
        }
        let comm = Middle::of(&mut work.values).median();
        let value = comm.ln();
        let whole = Whole {
            kind: Kind::Network,
            least: NETWORK_LEAST,
            doubtful: self.wide.case.is_some(),
            limit: work.limit.1,
            row: &rows[members[0].row as usize],
            recent: &self.recent,
            config,
        };
        self.network.judge(value, &whole, &mut work.widths, next_id);
        self.network.show(value, comm, &whole);
    }

    /// Every open finding, and those that this window cleared.
    fn show(&mut self, update: &mut Update) {
        let mut gone = false;
        for (entry, rank) in self.entries.iter_mut().zip(&mut self.ranks) {
            let missing = entry.missing > MISSING_WINDOWS;
            gone |= missing;
            if !entry.open {
                continue;
            }
            for slot in [&mut rank.case, &mut rank.sometimes] {
                if let (true, Some(case)) = (missing, &mut *slot) {
                    end(case);
                }
                show(slot, update);
            }
            rank.tell(entry);
        }
        show(&mut self.wide.case, update);
        show(&mut self.network.case, update);
        self.compared.values_mut().for_each(|score| show(&mut score.case, update));
        if gone {
            let mut entries = self.entries.iter();
            let here = |entry: &Entry| entry.missing <= MISSING_WINDOWS;
            self.ranks.retain(|_| entries.next().is_some_and(here));
            self.entries.retain(here);
        }
    }
}

/// The rank of a case is gone.
fn end(case: &mut Case) {
    case.state = State::Cleared;
    if let Some(shown) = &mut case.finding {
        shown.state = State::Cleared;
    }
}

/// Lists the finding of a case, and drops the case when it is over.
fn show(slot: &mut Option<Box<Case>>, update: &mut Update) {
    let Some(case) = slot else { return };
    update.findings.extend(case.finding.clone());
    if case.finding.is_none() || case.state == State::Cleared {
        *slot = None;
    }
}
