//! Results and gradients of modules as operators, against candle's own.

use candle_core::{Device, Result, Tensor, Var};
use nvte::{LayerNormMLP, LayerNormMLPConfig, Linear, LinearConfig, Recipe, RecipeKind, Stream};
use nvte_candle::{ModuleOp, context};

const ROWS: usize = 32;
const INPUTS: usize = 32;
const OUTPUTS: usize = 48;

fn random(shape: &[usize]) -> Result<Var> {
    Var::from_tensor(&Tensor::randn(0f32, 1.0, shape, &Device::Cpu)?)
}

fn error(a: &Tensor, b: &Tensor) -> Result<f32> {
    let difference = (a - b)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
    Ok((difference / b.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt())
}

fn linear(recipe: Option<RecipeKind>, [bound, of_gradients]: [f32; 2]) -> Result<()> {
    let context = context().unwrap();
    let config = LinearConfig::new().in_features(INPUTS).out_features(OUTPUTS);
    let module = Linear::new(context, &config, &Stream::default()).unwrap();
    let recipe = recipe.map(|kind| Recipe::of_kind(kind).unwrap());
    let op = ModuleOp::new(context, module, OUTPUTS, recipe).unwrap();
    let (x, w, b) =
        (random(&[4, ROWS / 4, INPUTS])?, random(&[OUTPUTS, INPUTS])?, random(&[OUTPUTS])?);
    let parameters = Tensor::cat(&[w.flatten_all()?, b.as_tensor().clone()], 0)?;
    let got = op.forward(x.as_tensor(), &parameters)?;
    let expected = x.broadcast_matmul(&w.t()?)?.broadcast_add(b.as_tensor())?;
    assert!(error(&got, &expected)? < bound);
    // A weight of the sum, so that gradients differ from element to element.
    let weight = random(&[4, ROWS / 4, OUTPUTS])?;
    let weighted = |y: &Tensor| (y * weight.as_tensor())?.sum_all();
    let (got, expected) = (weighted(&got)?.backward()?, weighted(&expected)?.backward()?);
    for variable in [&x, &w, &b] {
        let (got, expected) = (got.get(variable).unwrap(), expected.get(variable).unwrap());
        assert!(error(got, expected)? < of_gradients);
    }
    Ok(())
}

#[test]
fn linear_in_high_precision() -> Result<()> {
    // The tensor cores of GPUs take float32 as TF32.
    linear(None, [if nvte::backend_name().unwrap() == "cuda" { 2e-3 } else { 1e-5 }; 2])
}

#[test]
fn linear_in_fp8() -> Result<()> {
    // E4M3 rounds by up to 2^-4 of a number, and E5M2, which gradients have, by up to 2^-3.
    linear(Some(RecipeKind::CurrentScaling), [0.06, 0.12])
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let context = context().unwrap();
    let config = LayerNormMLPConfig::new().hidden_size(INPUTS).ffn_hidden_size(OUTPUTS);
    let module = LayerNormMLP::new(context, &config, &Stream::default()).unwrap();
    let op = ModuleOp::new(context, module, INPUTS, None).unwrap();
    let parameters = op.initial_values().unwrap();
    let count = parameters.len();
    assert_eq!(count, 2 * INPUTS + 2 * INPUTS * OUTPUTS + OUTPUTS + INPUTS);
    let x = random(&[ROWS, INPUTS])?;
    let few = Tensor::from_slice(&parameters[1..], count - 1, &Device::Cpu)?;
    let text = op.forward(x.as_tensor(), &few).unwrap_err().to_string();
    assert!(text.contains("parameters") && text.contains(&count.to_string()), "{text}");
    let all = Tensor::from_slice(&parameters, count, &Device::Cpu)?;
    let wide = random(&[ROWS, INPUTS + 1])?;
    let text = op.forward(wide.as_tensor(), &all).unwrap_err().to_string();
    assert!(text.contains("33"), "{text}");
    Ok(())
}
