//! The communicator of a program that a launcher has started on one host: the rank, the number of ranks and a name
//! for their meeting come from the environment.

use super::*;
use crate::env::launcher;

/// Variables of a launcher: rank, ranks, and how many of them are on this host.
const LAUNCHERS: [[&str; 3]; 2] = [
    // nvtex-run and torchrun.
    ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"],
    // mpirun of Open MPI.
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
];

/// What moves the data of ranks that a launcher has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// NCCL on CUDA, shared memory otherwise.
    Automatic,
    Shared,
    Nccl,
}

/// Without a launcher's variables the program is the only rank.
pub fn from_environment(options: Options, choice: Choice) -> Result<Arc<Communicator>> {
    let Some([rank, size, here]) = LAUNCHERS.iter().find(|names| launcher(names[0]).is_some())
    else {
        let alone = Communicator::local(1, &options)?.pop();
        return alone.ok_or_else(|| Error::device("a communicator of one rank has no rank"));
    };
    let (number_of_rank, number_of_ranks) = (number(rank)?, number(size)?);
    if launcher(here).is_some() && number(here)? != number_of_ranks {
        return Err(Error::unsupported(format!(
            "{here}: expected {number_of_ranks}, which is {size}, got {}: ranks of several hosts meet by \
             nvtex_communicator_create_nccl or nvtex_communicator_create_callbacks",
            number(here)?
        )));
    }
    let key = key()?;
    let nccl = match choice {
        Choice::Automatic => !backend::domain()?.is_host(),
        Choice::Shared => false,
        Choice::Nccl => true,
    };
    match nccl {
        true => Communicator::nccl_shared(&key, number_of_rank, number_of_ranks, options),
        false => Communicator::shared(&key, number_of_rank, number_of_ranks, options),
    }
}

fn number(name: &str) -> Result<i32> {
    let text = launcher(name).unwrap_or_default();
    text.parse().map_err(|_| Error::argument(name, "a number", format!("{text:?}")))
}

/// What all ranks of a run have alike, and other runs on this host have not.
fn key() -> Result<String> {
    let parts: Vec<String> = match launcher("NVTEX_RENDEZVOUS") {
        Some(name) => vec![name],
        None => {
            let of_torch =
                ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];
            let names: &[&str] = match launcher("MASTER_PORT") {
                Some(_) => &of_torch,
                None => &["PMIX_NAMESPACE"],
            };
            names.iter().filter_map(|name| launcher(name)).collect()
        }
    };
    if parts.is_empty() {
        let expected = "a name that all ranks of this run have alike, and other runs have not \
                        (MASTER_ADDR with MASTER_PORT, or PMIX_NAMESPACE, would also do)";
        return Err(Error::argument("NVTEX_RENDEZVOUS", expected, "nothing"));
    }
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
    let key: String = parts.join("-").chars().map(legal).collect();
    Ok(key[key.len().saturating_sub(200)..].to_owned())
}
