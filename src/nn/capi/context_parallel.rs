//! Which rows of sequences a rank has, where ranks share each sequence.
#![allow(unsafe_code)]

use super::*;
use crate::nn::rearrange;
use crate::parallel::exports::{COMMUNICATORS, NVTEXCommunicator};

fn run(
    communicator: NVTEXCommunicator,
    [whole, part]: [NVTETensor; 2],
    format: MaybeUninit<NVTE_QKV_Format>,
    merge: bool,
    stream: cudaStream_t,
) -> Result<()> {
    use NVTE_QKV_Format::*;
    let ranks = COMMUNICATORS.get("communicator", communicator)?;
    let [whole, part] = [check::tensor("whole", whole)?, check::tensor("part", part)?];
    let format = from_c("format", format)?;
    if !matches!(format, NVTE_SBHD | NVTE_BSHD) {
        let expected = "NVTE_SBHD or NVTE_BSHD (of packed tokens nvte_cp_thd_get_partitioned_indices says which a rank has)";
        return Err(Error::argument("format", expected, format!("{format:?}")));
    }
    rearrange(&ranks, [&whole, &part], format, merge, stream)
}

/// Copies the rows of whole sequences that this rank has to `part`: tokens, labels, positions, or what else has a row for
/// each token.
///
/// The length of `whole` is divided into as many chunks as twice the ranks of the communicator, of which rank r of P gets
/// the chunks r and 2 P - 1 - r, so that causal attention costs all ranks the same.
///
/// Shapes: `whole` `[length, ...]` (NVTE_SBHD) or `[batch, length, ...]` (NVTE_BSHD), `part` the same with the P-th part of
/// the length, which is a multiple of 2 P. Any dtype. No rank waits for another one.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_parallel_split(
    communicator: NVTEXCommunicator,
    whole: NVTETensor,
    part: NVTETensor,
    format: MaybeUninit<NVTE_QKV_Format>,
    stream: cudaStream_t,
) {
    guard("nvtex_context_parallel_split", || {
        run(communicator, [whole, part], format, false, stream)
    });
}

/// Brings the rows of all ranks back together in `whole`, on each of them: the inverse of `nvtex_context_parallel_split`,
/// with its shapes. Collective.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_parallel_merge(
    communicator: NVTEXCommunicator,
    part: NVTETensor,
    whole: NVTETensor,
    format: MaybeUninit<NVTE_QKV_Format>,
    stream: cudaStream_t,
) {
    guard("nvtex_context_parallel_merge", || {
        run(communicator, [whole, part], format, true, stream)
    });
}
