//! Gives two libraries the same inputs and compares their outputs.

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

pub fn download(machine: &dyn Machine, memory: &Basic) -> Result<Vec<u8>> {
    let mut bytes = vec![0; memory.bytes()];
    machine.download(&mut bytes, memory.ptr)?;
    Ok(bytes)
}

/// `|a - b| / |b|` in the 2-norm; NaN if there is one.
pub fn relative_error(dtype: DType, a: &[u8], b: &[u8]) -> f64 {
    let value = |bytes: &[u8]| match dtype {
        DType::Bf16 => f64::from(f32::from_le_bytes([0, 0, bytes[0], bytes[1]])),
        DType::F16 => f16(u16::from_le_bytes([bytes[0], bytes[1]])),
        DType::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        DType::E4m3 => e4m3(bytes[0]),
        DType::Byte | DType::E5m2 | DType::E8m0 | DType::E2m1 | DType::I32 | DType::I64 => {
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

/// The value of a code.
fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
    let magnitude = match (code & 0x7F, exponent) {
        (0x7F, _) => f64::NAN,
        (_, 0) => mantissa * 2f64.powi(-6),
        _ => (1.0 + mantissa) * 2f64.powi(exponent - 7),
    };
    if code < 0x80 { magnitude } else { -magnitude }
}

/// The value of a half-precision number; infinities count as numbers that are none.
fn f16(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3FF) / 1024.0);
    let magnitude = match exponent {
        31 => f64::NAN,
        0 => mantissa * 2f64.powi(-14),
        _ => (1.0 + mantissa) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
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
        assert_eq!([0x3C00, 0xC100, 1].map(f16), [1.0, -2.5, 2f64.powi(-24)]);
        assert_eq!([0x38, 0xB8, 0x7E, 0x01].map(e4m3), [1.0, -1.0, 448.0, 2f64.powi(-9)]);
    }
}
