//! Same inputs, two libraries, compared outputs.

use super::abi::{Api, Basic, DType};
use super::cases::{Build, Case, Memory, Rule};
use super::machine::{Machine, Pool};
use super::report::table_line;
use anyhow::{Context, Result};

/// Products are summed in another order, and fp8 products without the split accumulator in fewer
/// bits: 3e-2 is far above both and far below a wrong result.
const CLOSE: f64 = 3e-2;

/// Runs a case on both libraries and prints a line for each output. True if all agree.
pub fn check(case: &Case, machine: &dyn Machine, pool: &Pool, apis: &[Api; 2]) -> Result<bool> {
    let run = |api: &Api, poison| -> Result<Memory> {
        let (call, memory) = Build::set(case, api, machine, pool, 0, poison)?;
        call();
        machine.synchronize()?;
        api.take_error()?;
        Ok(memory)
    };
    let ours = run(&apis[0], 0xA5).with_context(|| apis[0].name.clone())?;
    let other = run(&apis[1], 0x5A).with_context(|| apis[1].name.clone())?;
    let mut agree = true;
    for (a, b) in ours.outputs.iter().zip(&other.outputs) {
        let (a_bytes, b_bytes) = (download(machine, &a.memory)?, download(machine, &b.memory)?);
        let (text, good) = match a.rule {
            Rule::Equal => {
                let different = a_bytes.iter().zip(&b_bytes).filter(|(a, b)| a != b).count();
                (format!("{different} bytes"), different == 0)
            }
            Rule::Close => {
                let error = relative_error(a.memory.dtype, &a_bytes, &b_bytes);
                (format!("{error:.1e}"), error < CLOSE)
            }
        };
        let verdict = if good { "ok" } else { "DIFFERENT" };
        println!("{}", table_line(&format!("{}: {}", case.name, a.name), &[text, verdict.into()]));
        agree &= good;
    }
    Ok(agree)
}

fn download(machine: &dyn Machine, memory: &Basic) -> Result<Vec<u8>> {
    let mut bytes = vec![0; memory.bytes()];
    machine.download(&mut bytes, memory.ptr)?;
    Ok(bytes)
}

/// `|a - b| / |b|` in the 2-norm; NaN if there is one.
fn relative_error(dtype: DType, a: &[u8], b: &[u8]) -> f64 {
    let value = |bytes: &[u8]| match dtype {
        DType::Bf16 => f64::from(f32::from_le_bytes([0, 0, bytes[0], bytes[1]])),
        DType::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        DType::Byte | DType::I64 | DType::E4m3 => {
            panic!("no case compares {} by norm", dtype.name())
        }
    };
    let (mut difference, mut size) = (0.0, 0.0);
    for (a, b) in a.chunks_exact(dtype.size()).zip(b.chunks_exact(dtype.size())) {
        let (a, b) = (value(a), value(b));
        difference += (a - b).powi(2);
        size += b.powi(2);
    }
    (difference / size).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_errors() {
        let bytes =
            |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        let b = bytes(&[3.0, 4.0]);
        assert_eq!(relative_error(DType::F32, &bytes(&[3.0, 4.5]), &b), 0.1);
        assert!(relative_error(DType::F32, &bytes(&[f32::NAN, 4.0]), &b).is_nan());
        // bf16 1.0 and 2.0 against 1.0 and 1.0
        let error =
            relative_error(DType::Bf16, &[0x80, 0x3F, 0x00, 0x40], &[0x80, 0x3F, 0x80, 0x3F]);
        assert_eq!(error, 0.5f64.sqrt());
    }
}
