//! Grids: all ranks of a program, and the groups in which they share weights, sequences, batches, experts and layers.

use super::call::{Call, Operation};
use super::exports::NVTEXGridGroup::{self, *};
use super::exports::{COMMUNICATORS, NVTEXCommunicator};
use super::{Communicator, Options, lock};
use crate::error::{Error, Result};
use crate::types::NVTEDType;
use std::fmt::{self, Display};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

/// How many ranks share what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Ranks that share weights, sequences, the batch, and layers.
    pub tp: usize,
    pub cp: usize,
    pub dp: usize,
    pub pp: usize,
    /// Ranks that share experts, among those of the batch and of its sequences.
    pub ep: usize,
}

impl Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tp, cp, dp, pp, ep } = self;
        write!(f, "tp {tp}, cp {cp}, dp {dp}, pp {pp}, ep {ep}")
    }
}

/// All groups, in the order of their numbers in C.
pub const GROUPS: [NVTEXGridGroup; 8] = [
    NVTEX_GRID_TP,
    NVTEX_GRID_CP,
    NVTEX_GRID_DP,
    NVTEX_GRID_DP_CP,
    NVTEX_GRID_ALL_BUT_PP,
    NVTEX_GRID_EP,
    NVTEX_GRID_EXPERT_DP,
    NVTEX_GRID_PP,
];

impl NVTEXGridGroup {
    pub fn name(self) -> &'static str {
        ["tp", "cp", "dp", "dp_cp", "all_but_pp", "ep", "expert_dp", "pp"][self as usize]
    }
}

/// The groups of one rank. Those of one rank alone have a communicator, too, of which [`Grid::group`] says nothing.
pub struct Grid {
    groups: [Arc<Communicator>; GROUPS.len()],
    /// The handles of groups that the program has asked for.
    handles: Mutex<[usize; GROUPS.len()]>,
}

impl Sizes {
    fn ranks(&self) -> Option<usize> {
        [self.cp, self.dp, self.pp].iter().try_fold(self.tp, |all, &size| all.checked_mul(size))
    }

    /// The sizes as a config has them, where 0 stands for 1, and of `dp` for what the others leave over.
    fn check(mut self, world: usize) -> Result<Self> {
        let Self { tp, cp, dp, pp, ep } = &mut self;
        for size in [tp, cp, pp, ep] {
            *size = (*size).max(1);
        }
        if *dp == 0 {
            let others = Self { dp: 1, ..self }.ranks().unwrap_or(usize::MAX);
            self.dp = (world / others).max(1);
        }
        if self.ranks() != Some(world) {
            let expected =
                format!("sizes tp, cp, dp and pp whose product is {world}, the ranks of world");
            return Err(Error::argument("config", expected, self));
        }
        if !(self.dp * self.cp).is_multiple_of(self.ep) {
            let expected = format!("a divisor of dp x cp ({})", self.dp * self.cp);
            return Err(Error::argument("config.ep", expected, self.ep));
        }
        Ok(self)
    }

    /// The number of the group of a kind that a rank is in, and the ranks that it has.
    fn place(&self, group: NVTEXGridGroup, rank: usize) -> (usize, usize) {
        let &Self { tp, cp, dp, pp, ep } = self;
        let (t, c, d, p) =
            (rank % tp, rank / tp % cp, rank / (tp * cp) % dp, rank / (tp * cp * dp));
        // The place among the ranks that share the batch and its sequences.
        let share = d * cp + c;
        // The ranks before that differ in layers or weights, which no group of the batch spans.
        let apart = p * tp + t;
        match group {
            NVTEX_GRID_TP => (rank / tp, tp),
            NVTEX_GRID_CP => (apart * dp + d, cp),
            NVTEX_GRID_DP => (apart * cp + c, dp),
            NVTEX_GRID_DP_CP => (apart, dp * cp),
            NVTEX_GRID_ALL_BUT_PP => (p, tp * cp * dp),
            NVTEX_GRID_EP => (apart * (dp * cp / ep) + share / ep, ep),
            NVTEX_GRID_EXPERT_DP => (apart * ep + share % ep, dp * cp / ep),
            NVTEX_GRID_PP => (rank % (tp * cp * dp), pp),
        }
    }

    /// The ranks of the group of a kind that a rank is in.
    fn members(&self, group: NVTEXGridGroup, rank: usize) -> Vec<usize> {
        let color = self.place(group, rank).0;
        let all = 0..self.ranks().unwrap_or(0);
        all.filter(|&other| self.place(group, other).0 == color).collect()
    }
}

impl Grid {
    /// Divides all ranks. Collective.
    pub fn new(world: &Arc<Communicator>, sizes: Sizes) -> Result<Self> {
        let sizes = sizes.check(world.size)?;
        // Ranks that have other sizes would wait for each other in different groups.
        let call = Call::new(Operation::Barrier, NVTEDType::kNVTEByte, 0);
        let call = call.named(&format!("grid {sizes}"));
        // SAFETY: a barrier reads and writes nothing.
        unsafe { world.collective(call, ("send", null()), ("recv", null_mut()), null_mut()) }?;
        let mut groups: Vec<Arc<Communicator>> = Vec::new();
        for group in GROUPS {
            let (color, size) = sizes.place(group, world.rank);
            let same = GROUPS.iter().take(groups.len()).position(|&other| {
                // Two kinds of groups are the same ones if that is so for this rank and for all others.
                size > 1
                    && (0..world.size)
                        .all(|rank| sizes.members(other, rank) == sizes.members(group, rank))
            });
            groups.push(match same {
                Some(same) => Arc::clone(&groups[same]),
                None if size == 1 => alone(group, &world.options)?,
                None => {
                    let part = world.split(color as i32, world.rank as i32, group.name())?;
                    part.ok_or_else(|| {
                        Error::argument("config", "a group of this rank", group.name())
                    })?
                }
            });
        }
        Self::made(groups)
    }

    /// A grid of communicators that a program has; those that are none are groups of one rank, or the same as others.
    pub fn of(mut given: [Option<Arc<Communicator>>; GROUPS.len()]) -> Result<Self> {
        let size = |given: &[Option<Arc<Communicator>>], group: NVTEXGridGroup| {
            given[group as usize].as_ref().map_or(1, |one| one.size)
        };
        // Each of these groups is made of two others, and is one of them if the other is of one rank.
        let made = [
            (NVTEX_GRID_DP_CP, NVTEX_GRID_DP, NVTEX_GRID_CP),
            (NVTEX_GRID_ALL_BUT_PP, NVTEX_GRID_DP_CP, NVTEX_GRID_TP),
        ];
        for (whole, a, b) in made {
            let [of_a, of_b] = [a, b].map(|part| size(&given, part));
            let same = if of_b == 1 { a } else { b };
            if given[whole as usize].is_none() && (of_a == 1 || of_b == 1) {
                given[whole as usize] = given[same as usize].clone();
            }
            let [a, b] = [a, b].map(NVTEXGridGroup::name);
            check_size(whole, size(&given, whole), of_a * of_b, &format!("{a} x {b}"))?;
        }
        let [share, ep] = [NVTEX_GRID_DP_CP, NVTEX_GRID_EP].map(|group| size(&given, group));
        if !share.is_multiple_of(ep) {
            let name = format!("communicators[{}]", NVTEX_GRID_EP as usize);
            let expected = format!("ep, of a divisor of {share} ranks (dp_cp)");
            return Err(Error::argument(name, expected, ep));
        }
        if ep == 1 && given[NVTEX_GRID_EXPERT_DP as usize].is_none() {
            given[NVTEX_GRID_EXPERT_DP as usize] = given[NVTEX_GRID_DP_CP as usize].clone();
        }
        let got = size(&given, NVTEX_GRID_EXPERT_DP);
        check_size(NVTEX_GRID_EXPERT_DP, got, share / ep, "dp_cp / ep")?;
        let options = Options::default();
        let list = given.into_iter().zip(GROUPS);
        let list = list.map(|(one, group)| one.map_or_else(|| alone(group, &options), Ok));
        Self::made(list.collect::<Result<_>>()?)
    }

    fn made(groups: Vec<Arc<Communicator>>) -> Result<Self> {
        let groups = groups.try_into().map_err(|groups: Vec<_>| {
            Error::argument("groups", format!("{} groups", GROUPS.len()), groups.len())
        })?;
        Ok(Self { groups, handles: Mutex::default() })
    }

    /// The handle of a group for the program.
    pub fn handle(&self, group: NVTEXGridGroup) -> Result<NVTEXCommunicator> {
        let handle = &mut lock(&self.handles)[group as usize];
        if *handle == 0 {
            *handle = COMMUNICATORS.insert(Arc::clone(self.communicator(group)))? as usize;
        }
        Ok(*handle as NVTEXCommunicator)
    }

    /// Destroys the handles of groups; the communicators live as long as the grid.
    pub fn close(&self) {
        for handle in std::mem::take(&mut *lock(&self.handles)) {
            if handle != 0 {
                let _ = COMMUNICATORS.remove("communicator", handle as NVTEXCommunicator);
            }
        }
    }

    /// The communicator of a group, also of one rank alone.
    pub fn communicator(&self, group: NVTEXGridGroup) -> &Arc<Communicator> {
        &self.groups[group as usize]
    }

    /// The communicator of a group of several ranks; none if the rank is alone in it.
    pub fn group(&self, group: NVTEXGridGroup) -> Option<&Arc<Communicator>> {
        Some(self.communicator(group)).filter(|one| one.size > 1)
    }
}

/// Refuses a group that has not the ranks which others say.
fn check_size(group: NVTEXGridGroup, got: usize, expected: usize, of: &str) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let name = format!("communicators[{}]", group as usize);
    let expected = format!("{}, of {expected} ranks ({of})", group.name());
    Err(Error::argument(name, expected, format!("{got}, where null is 1")))
}

/// The communicator of one rank.
fn alone(group: NVTEXGridGroup, options: &Options) -> Result<Arc<Communicator>> {
    let options =
        Options { name: group.name().into(), staging: 4096, on_failure: None, ..options.clone() };
    let mut made = Communicator::local(1, &options)?;
    made.pop().ok_or_else(|| Error::argument("size", "1", 0))
}
