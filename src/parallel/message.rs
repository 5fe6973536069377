//! Messages between ranks, for modules of this library.
#![allow(unsafe_code)]

use super::call::{Call, Operation};
use super::host::Transfer;
use super::{Communicator, Result, Transport};
use crate::backend::args::CopyKind;
use crate::op::nvtex;
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;

/// Bytes from which a message goes alone, since it takes longer than it takes to begin it.
const LARGE: usize = 1 << 20;

/// Bytes that one rank sends to another.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub data: *mut u8,
    pub bytes: usize,
    pub peer: usize,
    /// Received into `data`; otherwise sent from there.
    pub receive: bool,
}

impl Communicator {
    /// Whether several ranks may be threads of one process.
    pub fn may_be_threads(&self) -> bool {
        matches!(self.transport, Transport::Host | Transport::Callbacks(_))
    }

    /// Sends and receives messages, those of a pair of ranks in the order of their lists. `name` is what both ranks
    /// of a message call it.
    ///
    /// # Safety
    /// Each message has its bytes.
    pub unsafe fn exchange_messages(
        &self,
        messages: &[Message],
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let call = |bytes| Call::new(Operation::Exchange, NVTEDType::kNVTEByte, bytes).named(name);
        let transfer = |message: &Message| {
            let &Message { data, bytes, peer, receive } = message;
            Transfer { data, bytes, peer, receive, call: call(bytes) }
        };
        let transfers: Vec<Transfer> = messages.iter().map(transfer).collect();
        // SAFETY: as the caller says.
        unsafe { self.exchange(call(0), &transfers, stream) }
    }

    /// Sends part r of each first buffer to rank r, and gets part r of the second one from there: parts of all ranks have
    /// as many bytes. Large parts go by copy engines where there are some, small ones by stores of a kernel.
    ///
    /// # Safety
    /// Each buffer has a part of these bytes for each rank.
    pub unsafe fn exchange_parts(
        &self,
        buffers: &[(*mut c_void, *mut c_void, usize)],
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        // SAFETY: as the caller says.
        if unsafe { self.share_parts(buffers, name, stream)? } {
            return Ok(());
        }
        let (rank, ranks) = (self.rank(), self.size());
        let mut messages = Vec::with_capacity(2 * ranks * buffers.len());
        for &(from, to, bytes) in buffers.iter().filter(|buffer| buffer.2 > 0) {
            let part = |buffer: *mut c_void, rank| buffer.wrapping_byte_add(rank * bytes);
            for distance in 1..ranks {
                let (next, before) = self.neighbours(distance);
                let (send, recv): (*mut u8, *mut u8) =
                    (part(from, next).cast(), part(to, before).cast());
                if bytes >= LARGE {
                    let message = (send.cast_const(), recv, bytes);
                    // SAFETY: as the caller says.
                    unsafe { self.shift_bytes(message, distance, name, stream)? };
                    continue;
                }
                messages.push(Message { data: send, bytes, peer: next, receive: false });
                messages.push(Message { data: recv, bytes, peer: before, receive: true });
            }
            let (to, from, kind) =
                (part(to, rank), part(from, rank), CopyKind::NVTEX_COPY_ON_DEVICE);
            // SAFETY: as the caller says.
            unsafe { nvtex::memcpy(to, from.cast_const(), bytes, kind, stream)? };
        }
        if messages.is_empty() {
            return Ok(());
        }
        // SAFETY: as the caller says.
        unsafe { self.exchange_messages(&messages, name, stream) }
    }
}
