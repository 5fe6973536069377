//! Rows of tokens between GPUs of one host: kernels store them where other ranks take them, so that nothing is copied on its
//! way. Each rank has a slot for every token of every rank, as `op::ep::slots` has.
#![allow(unsafe_code)]

use super::*;
use crate::backend::args::ExpertRowsArgs;
use std::ffi::c_int;
use std::ptr::null_mut;

/// Ranks of which kernels know the memory.
const MOST_PEERS: usize = 16;

/// The memory of all ranks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PeerCall {
    places: [*mut u8; MOST_PEERS],
    rank: usize,
    ranks: usize,
    stop: *const c_int,
}

/// Bytes of a token that travel: `input` has them for each own token, or `output` does. The other one has rows of experts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Part {
    pub input: *const c_void,
    pub output: *mut c_void,
    pub width: usize,
    /// Where they are in the data of each rank, as the communicator says.
    pub offset: usize,
}

impl Part {
    pub const NONE: Self = Self { input: null_mut(), output: null_mut(), width: 0, offset: 0 };

    pub fn new(input: *const c_void, output: *mut c_void, width: usize) -> Self {
        Self { input, output, width, ..Self::NONE }
    }
}

/// What travels between tokens and rows of experts. The same struct is in `kernels/ep/peer_rows.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rows {
    /// The communicator's.
    pub call: PeerCall,
    /// `[planes, tokens]`: the slots of a token, one for each rank that has some of its experts.
    pub map: *const i32,
    /// `[planes, ranks * limit]`: the rows of the experts of the token in a slot.
    pub of_slots: *const i32,
    pub tokens: usize,
    /// Most tokens of a rank.
    pub limit: usize,
    pub planes: usize,
    /// Rows of experts that there are.
    pub rows: usize,
    /// A slot's parts that travel by themselves, as the communicator says.
    pub pieces: usize,
    pub data: Part,
    /// Of MXFP8; without width if there are none.
    pub scales: Part,
    /// Float32, one for each of so many choices of a token; a row has one.
    pub weights: Part,
    pub choices: usize,
    /// Of sums: factors of the choices of the token in a slot, `[slots, planes]`, or null.
    pub probs: *const f32,
    /// Of sums.
    pub dtype: NVTEDType,
    /// The output has slots, of which those are written that have rows.
    pub slots_only: bool,
    /// Where a dispatch is to zero the rows that no token has: the first row of each expert, and how many choices there are, of
    /// which at most `most` have rows unless that is 0.
    pub starts: *const i64,
    pub lengths: *const i64,
    pub experts: usize,
    pub most: usize,
}

impl Rows {
    /// None, of which calls say what differs.
    pub const NONE: Self = Self {
        call: PeerCall { places: [null_mut(); MOST_PEERS], rank: 0, ranks: 0, stop: null_mut() },
        map: null_mut(),
        of_slots: null_mut(),
        tokens: 0,
        limit: 0,
        planes: 0,
        rows: 0,
        pieces: 1,
        data: Part::NONE,
        scales: Part::NONE,
        weights: Part::NONE,
        choices: 0,
        probs: null_mut(),
        dtype: NVTEDType::kNVTEByte,
        slots_only: false,
        starts: null_mut(),
        lengths: null_mut(),
        experts: 0,
        most: 0,
    };
}

/// What travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToExperts,
    Back,
}

impl Communicator {
    /// Copies own tokens to the rows of their experts on all ranks, and those of other ranks to the rows of experts
    /// here. False, and nothing was done, where ranks do not write to each other's memory.
    ///
    /// # Safety
    /// All pointers have what the struct says.
    pub unsafe fn send_rows(&self, rows: &Rows, name: &str, stream: cudaStream_t) -> Result<bool> {
        // SAFETY: as the caller says.
        unsafe { self.move_rows(rows, Way::ToExperts, name, stream) }
    }

    /// Sums the rows of the experts of each own token: those of each rank, rounded, then these sums in the order of the
    /// token's choices. False as [`Self::send_rows`].
    ///
    /// # Safety
    /// All pointers have what the struct says.
    pub unsafe fn sum_rows(&self, rows: &Rows, name: &str, stream: cudaStream_t) -> Result<bool> {
        // SAFETY: as the caller says.
        unsafe { self.move_rows(rows, Way::Back, name, stream) }
    }

    /// Makes both plans of few tokens. False as [`Self::send_rows`].
    ///
    /// # Safety
    /// Both arguments have been checked.
    #[cfg(not(nvte_cuda))]
    pub unsafe fn plan_rows(
        &self,
        _: [&ExpertRowsArgs; 2],
        _: &str,
        _: cudaStream_t,
    ) -> Result<bool> {
        Ok(false)
    }

    #[cfg(not(nvte_cuda))]
    unsafe fn move_rows(&self, _: &Rows, _: Way, _: &str, _: cudaStream_t) -> Result<bool> {
        Ok(false)
    }

    /// Sends part r of each first buffer to rank r, and gets part r of the second one from there, if that is little. False as
    /// [`Self::send_rows`].
    ///
    /// # Safety
    /// Each buffer has a part of these bytes for each rank.
    #[cfg(not(nvte_cuda))]
    pub unsafe fn share_parts(
        &self,
        _: &[(*mut c_void, *mut c_void, usize)],
        _: &str,
        _: cudaStream_t,
    ) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(nvte_cuda)]
pub use cuda::{COUNTERS, nvte_cuda_peer_rows_settled};

#[cfg(nvte_cuda)]
mod cuda {
    use super::super::call::{Call, Operation, Reduction};
    use super::super::peer::{Memory, Writers};
    use super::*;
    use crate::backend::args::Outcome;

    /// The start of each rank's memory, which has the counters: those of calls, then those of slots. Also in
    /// `kernels/nvtex/peer.cuh`.
    pub const COUNTERS: usize = 4 << 20;
    const FIRST_SLOT: usize = 64 << 10;

    /// Choices of a token, each of which has a lane of a warp.
    const MOST_PLANES: usize = 32;

    /// Bytes of one rank for another one that a kernel shares; more are copied.
    const MOST_SHARED: usize = 1 << 20;

    /// Bytes of a rank's values that a kernel reduces; more are summed in shares.
    const MOST_REDUCED: usize = 256 << 10;

    /// What one block plans: a thread has a token, and its memory all choices. Also in `kernels/ep/peer_plan.cu`.
    const MOST_PLANNED: usize = 512;
    const MOST_CHOICES: usize = 8192;
    const MOST_EXPERTS: usize = 256;

    /// Slots of all ranks for the own tokens, and rows of the own experts for the tokens in them, whose choices a kernel
    /// brings. The same struct is in `kernels/ep/peer_plan.cu`.
    #[repr(C)]
    struct Plans {
        call: PeerCall,
        own: ExpertRowsArgs,
        of_slots: ExpertRowsArgs,
    }

    /// What all ranks have for each other. The same structs are in `kernels/nvtex/peer_share.cu`.
    #[repr(C)]
    struct Share {
        call: PeerCall,
        parts: [Part; 2],
        gather: bool,
    }

    /// Elements of all ranks, which become one.
    #[repr(C)]
    struct Reduce {
        call: PeerCall,
        input: *const u8,
        output: *mut u8,
        count: usize,
        dtype: NVTEDType,
        max: bool,
    }

    unsafe extern "C" {
        fn nvte_cuda_peer_send_rows(args: *const Rows, stream: cudaStream_t) -> Outcome;
        fn nvte_cuda_peer_sum_rows(args: *const Rows, stream: cudaStream_t) -> Outcome;
        fn nvte_cuda_peer_plan(args: *const Plans, stream: cudaStream_t) -> Outcome;
        fn nvte_cuda_peer_share(args: *const Share, stream: cudaStream_t) -> Outcome;
        fn nvte_cuda_peer_reduce(args: *const Reduce, stream: cudaStream_t) -> Outcome;
        /// Whether all other ranks have finished the calls that this one has.
        pub fn nvte_cuda_peer_rows_settled(
            memory: *const u8,
            rank: usize,
            ranks: usize,
            settled: *mut bool,
        ) -> Outcome;
    }

    impl Communicator {
        pub(super) unsafe fn move_rows(
            &self,
            rows: &Rows,
            way: Way,
            name: &str,
            stream: cudaStream_t,
        ) -> Result<bool> {
            let slots = self.size * rows.limit;
            // All ranks decide alike: they have the same limit, planes and widths.
            let pieces = (2048 / rows.limit.max(1)).clamp(1, 8);
            let fits = rows.planes <= MOST_PLANES
                && rows.choices <= rows.planes
                && slots * pieces <= (COUNTERS - FIRST_SLOT) / 8;
            if !fits || rows.data.width == 0 || slots == 0 {
                return Ok(false);
            }
            let mut args = Rows { pieces, ..*rows };
            args.weights.width = 4 * args.choices;
            let mut bytes = 0;
            for part in [&mut args.data, &mut args.scales, &mut args.weights] {
                part.offset = bytes;
                bytes += (slots * part.width.next_multiple_of(16)).next_multiple_of(256);
            }
            let call = Call::new(Operation::Exchange, NVTEDType::kNVTEByte, bytes).named(name);
            self.by_stores(bytes, &call, stream, |call| {
                args.call = call;
                // SAFETY: as the caller says.
                unsafe {
                    match way {
                        Way::ToExperts => nvte_cuda_peer_send_rows(&args, stream),
                        Way::Back => nvte_cuda_peer_sum_rows(&args, stream),
                    }
                }
            })
        }

        /// See the one without CUDA.
        ///
        /// # Safety
        /// Both arguments have been checked.
        pub unsafe fn plan_rows(
            &self,
            [own, of_slots]: [&ExpertRowsArgs; 2],
            name: &str,
            stream: cudaStream_t,
        ) -> Result<bool> {
            // All ranks decide alike: these numbers are the same on all.
            let fits = own.limit <= MOST_PLANNED
                && of_slots.tokens * of_slots.topk <= MOST_CHOICES
                && of_slots.experts <= MOST_EXPERTS;
            if !fits {
                return Ok(false);
            }
            // The number of a rank's tokens before their choices.
            let bytes = self.size * 4 * (4 + own.limit * own.topk);
            let call = Call::new(Operation::Exchange, NVTEDType::kNVTEByte, bytes).named(name);
            self.by_stores(bytes, &call, stream, |call| {
                let plans = Plans { call, own: *own, of_slots: *of_slots };
                // SAFETY: as the caller says.
                unsafe { nvte_cuda_peer_plan(&plans, stream) }
            })
        }

        /// See the one without CUDA.
        ///
        /// # Safety
        /// Each buffer has a part of these bytes for each rank.
        pub unsafe fn share_parts(
            &self,
            buffers: &[(*mut c_void, *mut c_void, usize)],
            name: &str,
            stream: cudaStream_t,
        ) -> Result<bool> {
            let all: usize = buffers.iter().map(|buffer| buffer.2).sum();
            let mut parts = [Part::NONE; 2];
            if buffers.len() > parts.len() || !(1..=MOST_SHARED).contains(&all) {
                return Ok(false);
            }
            let mut bytes = 0;
            for (part, &(from, to, width)) in parts.iter_mut().zip(buffers) {
                *part = Part { offset: bytes, ..Part::new(from, to, width) };
                bytes += (self.size * width).next_multiple_of(256);
            }
            let call = Call::new(Operation::Exchange, NVTEDType::kNVTEByte, bytes).named(name);
            self.by_stores(bytes, &call, stream, |call| {
                let args = Share { call, parts, gather: false };
                // SAFETY: as the caller says.
                unsafe { nvte_cuda_peer_share(&args, stream) }
            })
        }

        /// Runs a small collective in one kernel. False, and nothing was done, where it is none that a kernel does, and
        /// where ranks do not write to each other's memory.
        ///
        /// # Safety
        /// The memory is as large as the operation of the call says.
        pub(in super::super) unsafe fn collective_by_stores(
            &self,
            call: &Call,
            (send, recv): (*const u8, *mut u8),
            stream: cudaStream_t,
        ) -> Result<bool> {
            let bytes = call.bytes();
            if !(1..=MOST_REDUCED).contains(&bytes) || bytes >= env().comm_peer {
                return Ok(false);
            }
            let room = self.size * bytes.next_multiple_of(16);
            match call.operation {
                Some(Operation::AllReduce) if self.options.ordered => {
                    self.by_stores(room, call, stream, |peers| {
                        let (count, dtype) = (call.count, call.dtype);
                        let max = call.reduction == Reduction::Max;
                        let args =
                            Reduce { call: peers, input: send, output: recv, count, dtype, max };
                        // SAFETY: as the caller says.
                        unsafe { nvte_cuda_peer_reduce(&args, stream) }
                    })
                }
                Some(Operation::AllGather) => {
                    self.by_stores(room, call, stream, |call| {
                        let parts = [Part::new(send.cast(), recv.cast(), bytes), Part::NONE];
                        // SAFETY: as the caller says.
                        unsafe {
                            let args = Share { call, parts, gather: true };
                            nvte_cuda_peer_share(&args, stream)
                        }
                    })
                }
                _ => Ok(false),
            }
        }

        /// Runs a kernel that stores so many bytes in the memory of each other rank. False, and nothing was done,
        /// where there is none.
        fn by_stores(
            &self,
            bytes: usize,
            call: &Call,
            stream: cudaStream_t,
            kernel: impl FnOnce(PeerCall) -> Outcome,
        ) -> Result<bool> {
            let Transport::Nccl(nccl) = &self.transport else { return Ok(false) };
            if self.size > MOST_PEERS || self.options.check {
                return Ok(false);
            }
            self.check_process()?;
            let mut memory = lock(&nccl.peers.stores);
            if !self.has_room(nccl, &mut memory, (Writers::Kernels, bytes), stream)? {
                return Ok(false);
            }
            let Memory::Ready(slots) = &mut *memory else { return Ok(false) };
            let mut places = [null_mut(); MOST_PEERS];
            places[..self.size].copy_from_slice(&slots.places);
            let (rank, ranks, stop) = (self.rank, self.size, slots.stop.cast_const());
            let mut state = lock(&self.state);
            let collective = call.operation != Some(Operation::Exchange);
            let number = if collective { &mut state.number } else { &mut state.exchanges };
            *number += 1;
            let call = Call { number: *number, ..*call };
            if let Err(failure) = self.check() {
                return Err(self.fail(&call, failure));
            }
            if let Some(segment) = &self.segment {
                segment.announce(&call, state.number + u64::from(!collective));
            }
            if let Some(line) = &self.line {
                line.announce(&call);
            }
            let queued = slots
                .in_order(stream, |_| peer::done(kernel(PeerCall { places, rank, ranks, stop })));
            queued.map(|()| true).map_err(|failure| self.fail(&call, failure))
        }
    }
}
