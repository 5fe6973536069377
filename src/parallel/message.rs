//! Messages between ranks, for modules of this library.
#![allow(unsafe_code)]

use super::call::{Call, Operation};
use super::host::Transfer;
use super::{Communicator, Result, Transport};
use crate::types::{NVTEDType, cudaStream_t};

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
}
