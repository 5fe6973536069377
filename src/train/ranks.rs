//! What the ranks of a program tell each other about calls that not all of them may finish.

use crate::error::{Error, Kind, Result};
use crate::nn::memory::host_vec;
use crate::nn::ops;
use crate::nn::{Lifetime, Run};
use crate::parallel::Communicator;
use crate::types::NVTEDType::*;

/// Bytes of a rank's answer: its kind, and the beginning of its text.
const ANSWER: usize = 512;

/// The error of the first rank that has one, on all ranks; the own one on a rank that has one. Collective: ranks that
/// would go on alone would wait for the others until their time is over.
pub fn agree<T>(communicator: &Communicator, run: &Run, result: Result<T>) -> Result<T> {
    let mut own = vec![0_u8; ANSWER];
    if let Err(error) = &result {
        own[0] = error.kind as u8;
        let text = error.message.as_bytes();
        let length = text.len().min(ANSWER - 2);
        own[1..=length].copy_from_slice(&text[..length]);
    }
    let all = gather(communicator, run, &own);
    let value = result?;
    for (rank, answer) in all?.chunks_exact(ANSWER).enumerate() {
        let end = answer.iter().position(|&byte| byte == 0).unwrap_or(ANSWER);
        let text = String::from_utf8_lossy(answer.get(1..end).unwrap_or_default());
        let kind = match answer[0] {
            0 => continue,
            1 => Kind::Argument,
            2 => Kind::Unsupported,
            3 => Kind::Device,
            _ => Kind::Internal,
        };
        return Err(Error { kind, message: format!("rank {rank}: {text}") });
    }
    Ok(value)
}

/// The bytes of all ranks, which have equally many.
pub fn gather(communicator: &Communicator, run: &Run, own: &[u8]) -> Result<Vec<u8>> {
    let mut all = host_vec(0_u8, own.len() * communicator.size())?;
    let block = run.block(all.len(), Lifetime::Scratch)?;
    let buffer = block.buffer(0, kNVTEByte, &[all.len()]);
    let part = block.buffer(communicator.rank() * own.len(), kNVTEByte, &[own.len()]);
    ops::upload(part.ptr(), own, run.stream)?;
    communicator.gather(&part, &buffer, "answers", run.stream)?;
    ops::download(&mut all, buffer.ptr(), run.stream)?;
    Ok(all)
}

/// The bytes of rank 0.
pub fn of_first(communicator: &Communicator, run: &Run, own: &[u8]) -> Result<Vec<u8>> {
    let mut length = [own.len() as u64];
    let word = run.block(8, Lifetime::Scratch)?;
    ops::upload(word.ptr(), &length, run.stream)?;
    communicator.broadcast(&word.buffer(0, kNVTEInt64, &[1]), 0, "length", run.stream)?;
    ops::download(&mut length, word.ptr(), run.stream)?;
    let mut bytes = host_vec(0_u8, length[0] as usize)?;
    let block = run.block(bytes.len(), Lifetime::Scratch)?;
    if communicator.rank() == 0 {
        ops::upload(block.ptr(), own, run.stream)?;
    }
    communicator.broadcast(&block.buffer(0, kNVTEByte, &[bytes.len()]), 0, "bytes", run.stream)?;
    ops::download(&mut bytes, block.ptr(), run.stream)?;
    Ok(bytes)
}
