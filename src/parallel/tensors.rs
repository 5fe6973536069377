//! Collectives of buffers, for layers and engines over ranks: dtypes, counts and memory are those of the buffers.

use super::Communicator;
use super::call::{Call, Operation, Reduction};
#[cfg(nvte_cuda)]
use super::{Transport, peer::PeerAdded};
use crate::error::{Error, Result};
use crate::tensor::Buffer;
use crate::types::cudaStream_t;
use std::ops::Range;
use std::ptr::null;

impl Communicator {
    /// The own place among the ranks.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Gathers `part` of each rank into `whole`, in the order of the ranks.
    pub fn gather(
        &self,
        part: &Buffer,
        whole: &Buffer,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        self.run_of(
            Operation::AllGather,
            Reduction::Sum,
            [part, whole],
            [1, self.size],
            name,
            stream,
        )
    }

    /// Sums the parts of each rank's `whole` that belong to this rank, into `part`.
    pub fn scatter_sum(
        &self,
        whole: &Buffer,
        part: &Buffer,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let operation = Operation::ReduceScatter;
        self.run_of(operation, Reduction::Sum, [whole, part], [self.size, 1], name, stream)
    }

    /// Replaces each element by its sum over the ranks.
    pub fn sum(&self, data: &Buffer, name: &str, stream: cudaStream_t) -> Result<()> {
        self.run_of(Operation::AllReduce, Reduction::Sum, [data, data], [1, 1], name, stream)
    }

    /// Replaces each element by the greatest of the ranks.
    pub fn max(&self, data: &Buffer, name: &str, stream: cudaStream_t) -> Result<()> {
        self.run_of(Operation::AllReduce, Reduction::Max, [data, data], [1, 1], name, stream)
    }

    /// Replaces the data by those of rank `root`.
    pub fn broadcast(
        &self,
        data: &Buffer,
        root: usize,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let call = Call::new(Operation::Broadcast, data.dtype, data.shape.numel());
        let call = Call { root, ..call }.named(name);
        // SAFETY: the buffer has the elements that the call counts.
        unsafe { self.collective(call, ("data", null()), ("data", data.ptr().cast()), stream) }
    }

    /// Sends `send` to the rank that is `distance` further, from 1 to the ranks less 1, and gets `recv` from the one that
    /// is as far behind. All ranks do the same, with the same sizes.
    pub fn shift(
        &self,
        send: &Buffer,
        recv: &Buffer,
        distance: usize,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let bytes = send.bytes();
        if recv.bytes() != bytes {
            let expected = format!("the {bytes} bytes of send");
            return Err(Error::argument("recv", expected, recv.bytes()));
        }
        let message = (send.ptr().cast_const().cast(), recv.ptr().cast(), bytes);
        // SAFETY: the buffers have that many bytes.
        unsafe { self.shift_bytes(message, distance, name, stream) }
    }

    /// Sends `part` to the rank that is `distance` further; all ranks do the same, for one distance after the other. What comes
    /// stays where [`Self::sum_posted`] finds it. False, and nothing was done, where ranks do not write to each other's
    /// memory. [`Self::make_way`] goes before.
    #[cfg_attr(not(nvte_cuda), expect(unused_variables))]
    pub fn post(
        &self,
        part: &Buffer,
        distance: usize,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<bool> {
        self.check_process()?;
        #[cfg(nvte_cuda)]
        if let Some((nccl, call)) = self.posted(part.bytes(), name)
            && call.count > 0
        {
            let message = (part.ptr().cast_const().cast(), call.count);
            // SAFETY: the buffer has that many bytes.
            return unsafe { self.post_copies(nccl, &call, message, distance, stream) };
        }
        Ok(false)
    }

    /// Ends what [`Self::make_way`] or [`Self::post`] has begun, on all ranks alike, if no sum has ended it.
    #[cfg_attr(not(nvte_cuda), expect(unused_variables))]
    pub fn give_up(&self, name: &str, stream: cudaStream_t) -> Result<()> {
        #[cfg(nvte_cuda)]
        if let Some((nccl, call)) = self.posted(0, name) {
            return self.give_up_copies(nccl, &call, stream);
        }
        Ok(())
    }

    /// Begins a gather that is read where it comes: returns where the parts of all ranks will lie, one behind the other, in
    /// memory that is the caller's until [`Self::end_gather`]. The own part is for the caller to put there. None, and nothing was
    /// done, where ranks do not write to each other's memory, where another gather lies there, and for small parts.
    ///
    /// What is sent is on the stream that `beside` returns, which is forked from the other one behind a kernel that waits for
    /// room: products on that stream, which come later, may leave no multiprocessor to it.
    #[cfg_attr(not(nvte_cuda), expect(unused_variables))]
    pub fn begin_gather(
        &self,
        part: &Buffer,
        name: &str,
        streams: (cudaStream_t, &dyn Fn() -> Result<cudaStream_t>),
    ) -> Result<Option<*mut u8>> {
        self.check_process()?;
        #[cfg(nvte_cuda)]
        if let Some((nccl, call)) = self.posted(part.bytes(), name)
            // Each part is aligned as the first one is.
            && call.count > 0
            && call.count.is_multiple_of(256)
        {
            let message = (part.ptr().cast_const().cast(), call.count);
            // SAFETY: the buffer has that many bytes.
            return unsafe { self.begin_copies(nccl, &call, message, streams) };
        }
        Ok(None)
    }

    /// Waits for room for sums of parts of so many bytes ([`Self::scatter_sum`], [`Self::sum`], [`Self::post`]), which will be on
    /// a stream that is forked from this one: products that follow here may leave no multiprocessor to a kernel there that waits.
    #[cfg_attr(not(nvte_cuda), expect(unused_variables))]
    pub fn make_way(&self, bytes: usize, name: &str, stream: cudaStream_t) -> Result<()> {
        #[cfg(nvte_cuda)]
        if let Some((nccl, call)) = self.posted(0, name) {
            return self.clear_copies(nccl, &call, bytes, stream);
        }
        Ok(())
    }

    /// What follows on the stream finds the parts of the ranks that are some distances behind, of a gather that has begun.
    #[cfg_attr(not(nvte_cuda), expect(unused_variables))]
    pub fn await_gather(
        &self,
        distances: Range<usize>,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        #[cfg(nvte_cuda)]
        if let Some((nccl, call)) = self.posted(0, name) {
            return self.await_copies(nccl, &call, distances, stream);
        }
        Ok(())
    }

    /// Nothing that follows on the stream reads what has been gathered.
    #[cfg_attr(not(nvte_cuda), expect(unused_variables))]
    pub fn end_gather(&self, name: &str, stream: cudaStream_t) -> Result<()> {
        #[cfg(nvte_cuda)]
        if let Some((nccl, call)) = self.posted(0, name) {
            return self.end_copies(nccl, &call, stream);
        }
        Ok(())
    }

    /// Writes the sum of the own part and of those that all other ranks have posted, in the order of the ranks. A bias and a
    /// matrix are added to it, each if it is there; false if that is left to the caller, as it is where they are not made of
    /// vectors of the result's dtype.
    #[cfg_attr(not(nvte_cuda), expect(unused_variables))]
    pub fn sum_posted(
        &self,
        own: &Buffer,
        to: &Buffer,
        [bias, matrix]: [Option<&Buffer>; 2],
        name: &str,
        stream: cudaStream_t,
    ) -> Result<bool> {
        #[cfg(nvte_cuda)]
        if let Transport::Nccl(nccl) = &self.transport {
            let cols = to.shape.flatten().1;
            let vectors = |buffer: &Buffer| {
                let places = buffer.ptr().addr() | (cols * to.dtype.bits() / 8);
                buffer.dtype == to.dtype && places.is_multiple_of(16)
            };
            let fits = [bias, matrix].into_iter().flatten().all(vectors);
            let place =
                |buffer: Option<&Buffer>| buffer.map_or(null(), |one| one.ptr().cast_const());
            let added = match fits {
                true => PeerAdded { bias: place(bias), matrix: place(matrix), cols },
                false => PeerAdded::NOTHING,
            };
            let call =
                Call::new(Operation::ReduceScatter, own.dtype, own.shape.numel()).named(name);
            let memory = (own.ptr().cast_const().cast(), to.ptr().cast());
            // SAFETY: all have the elements that the call counts.
            unsafe { self.sum_copies(nccl, &call, memory, &added, stream)? };
            return Ok(fits);
        }
        Ok(false)
    }

    /// Writes the sum of the parts of `parts`, one of each rank, in their order: what an ordered sum over the ranks does
    /// behind its exchange.
    pub fn sum_parts(&self, parts: &Buffer, to: &Buffer, stream: cudaStream_t) -> Result<()> {
        let (count, bytes) = (to.shape.numel(), to.bytes());
        if parts.dtype != to.dtype || parts.shape.numel() != self.size * count {
            let expected = format!("{} parts of {} {:?}", self.size, to.shape, to.dtype);
            let got = format!("{} {:?}", parts.shape, parts.dtype);
            return Err(Error::argument("parts", expected, got));
        }
        if count == 0 {
            return Ok(());
        }
        let slots = (parts.ptr().cast_const(), bytes, self.size);
        // SAFETY: the buffers have the elements that were counted.
        unsafe { self.domain.rank_sum(slots, to.ptr(), count, (to.dtype, false), stream) }
    }

    /// A collective whose buffers have so many parts each.
    fn run_of(
        &self,
        operation: Operation,
        reduction: Reduction,
        [send, recv]: [&Buffer; 2],
        [sent, received]: [usize; 2],
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let count = send.shape.numel() / sent;
        if send.dtype != recv.dtype || recv.shape.numel() != received * count {
            let describe = |buffer: &Buffer| format!("{} {:?}", buffer.shape, buffer.dtype);
            let expected = format!("{received} part(s) of the {sent} of send ({})", describe(send));
            return Err(Error::argument("recv", expected, describe(recv)));
        }
        let call = Call { reduction, ..Call::new(operation, send.dtype, count) }.named(name);
        let (send, recv) = (send.ptr().cast_const().cast(), recv.ptr().cast());
        // SAFETY: the buffers have the elements that the call counts.
        unsafe { self.collective(call, ("send", send), ("recv", recv), stream) }
    }
}
