//! Scores of one job: every rank, then the whole, then the groups.

use super::case::Case;
use super::compare::{compare, Comparisons, Straggler};
use super::estimate::scan_limit;
use super::fast::{self, FastScore, TENTHS};
use super::groups::{Groups, MIN_PEERS};
use super::lanes::{self, Terms};
use super::members::Flags;
use super::past::Past;
use super::quiet::judge_quiet;
use super::rank::{self, Context, LEVEL_ODDS};
use super::ranks::Ranks;
use super::rows::{Accepted, OneWindow};
use super::scan::Widths;
use super::select::{self, TILE};
use super::series::{Noise, Prior};
use super::whole::{Whole, WholeScore};
use super::{Abstention, Config, Kind, State, Update};
use crate::window::{flag, RankWindow};

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
    pub ranks: Ranks,
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
    /// Places of the accepted rows' ranks; empty where those are all ranks.
    slots: Vec<u32>,
    /// Of each group.
    pasts: Vec<Past>,
    noises: Vec<Noise>,
    terms: Vec<Terms>,
    /// Numbers of the members that are judged one by one.
    rest: Vec<u32>,
    prior: Prior,
    widths: Widths,
    /// Number of ranks, the limit for it, and that of a rank above its peers.
    limit: (usize, f64, f64),
    /// Number of ranks, and the limit of a tenth.
    fast_limit: (usize, f64),
}

impl JobScore {
    /// Takes a window whose rows are all as expected, and of ranks that are known, reading each row
    /// once; false, and nothing has changed, where one is not.
    pub fn update_at_once(
        &mut self,
        rows: &[RankWindow],
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) -> bool {
        let first = &rows[0];
        let fresh = self.window.is_none_or(|last| first.window > last);
        if !fresh || first.flags & flag::TENTH != 0 {
            return false;
        }
        let mut work = std::mem::take(&mut self.work);
        let before = update.abstentions.len();
        let taken = self.take_at_once(rows, &mut work, &mut update.abstentions);
        if taken {
            self.judge(rows, first, &mut work, config, next_id, update);
        } else {
            update.abstentions.truncate(before);
        }
        self.work = work;
        taken
    }

    fn take_at_once(
        &self,
        rows: &[RankWindow],
        work: &mut Work,
        abstentions: &mut Vec<Abstention>,
    ) -> bool {
        let Work { groups, slots, .. } = work;
        let (ranks, usual_steps) = (&self.ranks, f64::from(rows[0].steps));
        let base = select::Base { rows, ranks, usual_steps, tenth: false };
        let (mut window, mut next) = (OneWindow::of(&rows[0]), 0);
        groups.start(rows.len(), &ranks.identities);
        slots.clear();
        let all = rows.len() == ranks.numbers.len();
        for (place, tile) in (0..).step_by(TILE).zip(rows.chunks(TILE)) {
            let wanted = tile.iter().map(|row| row.rank);
            if !window.goes_on(tile) {
                return false;
            }
            if all {
                if !ranks.numbers[place..place + tile.len()].iter().copied().eq(wanted) {
                    return false;
                }
                let places = place as u32..(place + tile.len()) as u32;
                groups.take(&base, places.clone().zip(places), abstentions);
            } else {
                if !ranks.find_next(wanted, &mut next, slots) {
                    return false;
                }
                let places = (place as u32..).zip(slots[place..].iter().copied());
                groups.take(&base, places, abstentions);
            }
        }
        true
    }

    /// Takes the `accepted` rows of one window; there is at least one.
    pub fn update(
        &mut self,
        rows: &[RankWindow],
        accepted: &Accepted,
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        let mut work = std::mem::take(&mut self.work);
        let Work { groups, slots, .. } = &mut work;
        let ranks = &mut self.ranks;
        ranks.find(&accepted.ranks, slots);
        if slots.contains(&u32::MAX) {
            ranks.add(&accepted.ranks);
            ranks.find(&accepted.ranks, slots);
        }
        groups.take_all(rows, accepted, slots, ranks, false, &mut update.abstentions);
        let first = &rows[accepted.places[0] as usize];
        self.judge(rows, first, &mut work, config, next_id, update);
        self.work = work;
    }

    /// Judges the rows that were taken; `first` is the first that was accepted.
    fn judge(
        &mut self,
        rows: &[RankWindow],
        first: &RankWindow,
        work: &mut Work,
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        self.window = Some(first.window);
        self.recent.insert(0, (first.window, first.start_time_ns()));
        self.recent.truncate(RECENT);
        self.ranks.see(&work.slots);
        self.ranks.identities.renew(rows, &mut work.groups.members);
        work.groups.arrange();
        self.look_back(rows, work, update);
        let ranks = work.groups.members.len().max(1);
        if work.limit.0 != ranks {
            let rate = config.false_alarms_per_million * WINDOWS_SHARE;
            let with_level = scan_limit(rate * LEVEL_ODDS, ranks);
            work.limit = (ranks, scan_limit(rate, ranks), with_level);
        }
        self.judge_ranks(rows, work, config, next_id, update);
        self.judge_job(rows, work, config, next_id);
        self.judge_network(rows, work, config, next_id);
        let stragglers = self.stragglers();
        compare(&mut self.compared, &work.groups, rows, &stragglers, config, next_id);
        let all = work.slots.is_empty() || work.slots.len() == self.ranks.numbers.len();
        self.show(work, update);
        if !all {
            self.ranks.forget_missing(MISSING_WINDOWS);
        }
    }

    /// Takes the `accepted` rows of a tenth of a window; there is at least one.
    pub fn update_tenth(
        &mut self,
        rows: &[RankWindow],
        accepted: &Accepted,
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        self.fast.last = Some(rows[accepted.places[0] as usize].window);
        let mut work = std::mem::take(&mut self.work);
        let (groups, slots) = (&mut work.groups, &mut work.slots);
        self.ranks.find(&accepted.ranks, slots);
        groups.take_all(rows, accepted, slots, &self.ranks, true, &mut Vec::new());
        if !groups.members.is_empty() {
            groups.arrange();
            groups.set_references();
            let ranks = groups.members.len();
            if work.fast_limit.0 != ranks {
                let rate = config.false_alarms_per_million * (1.0 - WINDOWS_SHARE) / TENTHS;
                work.fast_limit = (ranks, scan_limit(rate, ranks));
            }
            let limit = work.fast_limit.1;
            let base = fast::Base { rows, recent: &self.recent, config, limit };
            self.fast.judge(&mut self.ranks, groups, &base, next_id);
        }
        self.show(&mut work, update);
        self.work = work;
    }

    /// Forgets the past that does not count any more, and adds up what is known of the noise.
    fn look_back(&mut self, rows: &[RankWindow], work: &mut Work, update: &mut Update) {
        let groups = &mut work.groups;
        let mut prior = Prior::of_job(groups.stated_error());
        work.pasts.clear();
        for group in &groups.groups {
            let (ranks, farewells) = (&mut self.ranks, &mut update.findings);
            let mut past = Past::of(groups, group, rows, RECENT as u64, ranks, farewells);
            past.add(groups, group, &ranks.scores, &mut prior);
            work.pasts.push(past);
        }
        work.prior = prior;
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
        let Work { groups, noises, terms, rest, .. } = work;
        let (limit, history) = (work.limit.1, config.history_windows);
        self.fast.window_variance = 0.0;
        noises.clear();
        terms.clear();
        for (group, past) in groups.groups.iter().zip(&work.pasts) {
            let noise = past.noise(groups, group, &self.ranks.scores, work.prior);
            self.fast.window_variance = self.fast.window_variance.max(noise.variance);
            terms.push(lanes::terms(group, groups.healthy(group), &noise, limit));
            noises.push(noise);
        }
        let scores = &mut self.ranks.scores;
        judge_quiet(scores, &groups.members, terms, history, &mut work.widths, rest);
        if groups.groups.len() > 1 {
            // Stable: by rank within a group.
            rest.sort_by_key(|number| groups.members.places[*number as usize].group);
        }
        let least = (1.0 + config.min_slowdown).ln();
        let mut begin = 0;
        while begin < rest.len() {
            let of = |number: u32| groups.members.places[number as usize].group;
            let place = of(rest[begin]);
            let same = rest[begin..].partition_point(|number| of(*number) <= place);
            let (numbers, place) = (&rest[begin..begin + same], place as usize);
            begin += same;
            let (group, noise) = (groups.groups[place], noises[place]);
            let context = Context {
                config,
                recent: &self.recent,
                least,
                limit,
                limit_with_level: work.limit.2,
                alone: groups.members.len() == 1,
                noise,
                long_run: noise.long_run(),
                around: groups.around(&group, work.pasts[place].moved),
            };
            for number in numbers {
                let (member, reference) = groups.member(*number as usize);
                let beside = (context.around.peers >= MIN_PEERS).then(|| groups.beside(&member));
                let changes = &mut rank::Work { widths: &mut work.widths, next_id };
                let row = &rows[member.place.row as usize];
                let reason = self.ranks.change(member.place.slot, |one| {
                    let reason = one.judge(&member, reference, rows, beside, &context, changes);
                    if one.flags.has(Flags::OPEN) {
                        one.cases.tell_work(groups.work(place, rows, row));
                    }
                    reason
                });
                if let Some(reason) = reason {
                    let RankWindow { job, rank, window, .. } = *row;
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
        let Some(value) = groups.fastest_quarter() else { return };
        let row = &rows[groups.first().row as usize];
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
            let own = work.groups.median().exp() * unit;
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
        let groups = &mut work.groups;
        let Some(comm) = groups.usual_transfer() else { return };
        let value = comm.ln();
        let whole = Whole {
            kind: Kind::Network,
            least: NETWORK_LEAST,
            doubtful: self.wide.case.is_some(),
            limit: work.limit.1,
            row: &rows[groups.first().row as usize],
            recent: &self.recent,
            config,
        };
        self.network.judge(value, &whole, &mut work.widths, next_id);
        self.network.show(value, comm, &whole);
    }

    fn stragglers(&self) -> Vec<Straggler> {
        let straggler = |slot: u32| {
            let slot = slot as usize;
            let case = self.ranks.cases[slot].case.as_ref().filter(|case| case.is_proven())?;
            let finding = case.finding.as_ref()?;
            let extra_ns = finding.own_ns - finding.peers_own_ns;
            Some(Straggler { signature: self.ranks.identities.get(slot).key.0, extra_ns })
        };
        self.ranks.open().filter_map(straggler).collect()
    }

    /// Every open finding, and those that this window cleared.
    fn show(&mut self, work: &mut Work, update: &mut Update) {
        work.slots.clear();
        work.slots.extend(self.ranks.open());
        for slot in &work.slots {
            let missing = self.ranks.missing(*slot);
            self.ranks.change(*slot, |one| {
                let cases = &mut **one.cases;
                for slot in [&mut cases.case, &mut cases.sometimes] {
                    if let (true, Some(case)) = (missing > MISSING_WINDOWS, &mut *slot) {
                        end(case);
                    }
                    show(slot, update);
                }
                one.tell();
            });
        }
        show(&mut self.wide.case, update);
        show(&mut self.network.case, update);
        self.compared.values_mut().for_each(|score| show(&mut score.case, update));
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
