//! Whose turn it is among the works of one gloo context.

use super::hash::Map;

/// Most contexts that one process is followed in.
const MAX_CONTEXTS: usize = 512;
/// A tag that lies so far ahead skips no work that could still come: workers of a group are few.
const MAX_AHEAD: i32 = 16;
/// A tag that lies so far behind is not late: another group lives at the address.
const MAX_BEHIND: i32 = 256;
/// Waits in vain, from which on a context's tags are known to have holes. They have where a group
/// spreads its tags over several devices, and where its calls are no works of the queue.
const MAX_VAIN: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct Turn {
    next: u32,
    vain: u8,
}

/// The tag that comes next, by context. Bounded.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    contexts: Map<u64, Turn>,
}

impl Turns {
    /// Whether the work of `tag` may go on. Where an earlier one is absent it may not, unless
    /// nobody is `patient` any more, or waiting never helped here.
    #[inline]
    pub fn take(&mut self, context: u64, tag: u32, patient: bool) -> bool {
        let after = tag.wrapping_add(1);
        let Some(turn) = self.contexts.get_mut(&context) else {
            if self.contexts.len() >= MAX_CONTEXTS {
                self.contexts.clear();
            }
            self.contexts.insert(context, Turn { next: after, vain: 0 });
            return true;
        };
        match tag.wrapping_sub(turn.next) as i32 {
            0 => turn.vain = turn.vain.saturating_sub(1),
            1..=MAX_AHEAD if turn.vain < MAX_VAIN => {
                if patient {
                    return false;
                }
                turn.vain += 1;
            }
            // Late: given up already.
            ahead if (-MAX_BEHIND..0).contains(&ahead) => return true,
            _ => {}
        }
        turn.next = after;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_of_a_context_are_learnt() {
        let mut turns = Turns::default();
        assert!(turns.take(1, 0, true));
        for tag in [2, 4, 6] {
            assert!(!turns.take(1, tag, true));
            assert!(turns.take(1, tag, false));
        }
        assert!((8..100).step_by(2).all(|tag| turns.take(1, tag, true)));
        // Without holes it becomes patient again.
        assert!((99..102).all(|tag| turns.take(1, tag, true)));
        assert!(!turns.take(1, 103, true));
    }

    #[test]
    fn a_new_group_at_the_address_begins_anew() {
        let mut turns = Turns::default();
        assert!(turns.take(1, 5_000, true));
        assert!(turns.take(1, 0, true));
        assert!(!turns.take(1, 2, true), "1 is absent");
        assert!(turns.take(1, 1, true) && turns.take(1, 2, true));
        // A late one changes nothing.
        assert!(turns.take(1, 0, true) && turns.take(1, 3, true));
    }

    #[test]
    fn contexts_without_end_stay_bounded() {
        let mut turns = Turns::default();
        assert!((0..5_000).all(|context| turns.take(context, 7, true)));
        assert!(turns.contexts.len() <= MAX_CONTEXTS);
    }
}
