//! Modules, recipes and errors; expected values are computed here, in float64.

use nvte::*;

/// Numbers between -1 and 1, the same in every run.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// `a b^T` of `[m, k]` and `[n, k]`.
fn product(a: &[f32], b: &[f32], k: usize) -> Vec<f64> {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    a.chunks(k).flat_map(|row| b.chunks(k).map(move |column| dot(row, column))).collect()
}

fn transposed(a: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| a.iter().skip(c).step_by(columns)).copied().collect()
}

fn assert_close(got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= tolerance, "element {i}: expected {expected}, got {got}");
    }
}

/// A linear layer under a recipe, against products in float64.
fn linear_agrees(recipe: Option<RecipeKind>, tolerance: f64) -> Result<()> {
    let (m, k, n) = (64, 32, 96);
    let stream = Stream::new()?;
    let weight = numbers(n * k, 1);
    let value = Tensor::from_slice(&weight, &[n, k], &stream)?;
    let dweight = Tensor::<f32>::zeros(&[n, k], &stream)?;
    let context = Context::new()?;
    let config = LinearConfig::new().name("layer").in_features(k).out_features(n).bias(false);
    let linear = Linear::new(&context, &config, &stream)?;
    linear.bind(0, &value)?;
    linear.bind_gradient(0, &dweight, false)?;

    let (input, gradient) = (numbers(m * k, 2), numbers(m * n, 3));
    let x = Tensor::from_slice(&input, &[m, k], &stream)?;
    let dy = Tensor::from_slice(&gradient, &[m, n], &stream)?;
    let y = Tensor::<f32>::zeros(&[m, n], &stream)?;
    let dx = Tensor::<f32>::zeros(&[m, k], &stream)?;
    let step = Step::new();
    let forward = || linear.forward(&[&x], &[&y], &step, &stream);
    let tape = match recipe {
        Some(kind) => context.autocast(&Recipe::of_kind(kind)?, forward)??,
        None => forward()?,
    };
    linear.backward(&tape, &[&dy], &[&dx], &stream)?;
    let expected = if recipe.is_some() { SlotScaling::Current } else { SlotScaling::HighPrecision };
    assert_eq!(linear.precision(0, Role::Weight)?.scaling, expected);
    assert_close(&y.to_vec(&stream)?, &product(&input, &weight, k), tolerance);
    let dgrad = product(&gradient, &transposed(&weight, k), n);
    assert_close(&dx.to_vec(&stream)?, &dgrad, tolerance);
    let wgrad = product(&transposed(&gradient, n), &transposed(&input, k), m);
    assert_close(&dweight.to_vec(&stream)?, &wgrad, tolerance);
    Ok(())
}

/// Of products in float32, which the tensor cores of GPUs take as TF32.
fn float32_tolerance() -> Result<f64> {
    Ok(if backend_name()? == "cuda" { 2e-2 } else { 1e-4 })
}

#[test]
fn linear_in_float32() -> Result<()> {
    linear_agrees(None, float32_tolerance()?)
}

/// Elements are at most 1 and rounded by up to 1/16 (E4M3) and 1/8 (E5M2): sums of up to 96 products of opposite
/// rounding errors stay far below this.
#[test]
fn linear_in_fp8() -> Result<()> {
    linear_agrees(Some(RecipeKind::CurrentScaling), 2.0)
}

#[test]
fn parameters_of_a_layer() -> Result<()> {
    let stream = Stream::default();
    let context = Context::new()?;
    let config = TransformerLayerConfig::new()
        .name("block")
        .hidden_size(32)
        .ffn_hidden_size(64)
        .num_attention_heads(2)
        .activation(ActivationType::Swiglu)
        .norm_type(NormType::RMSNorm)
        .attention(|attention| attention.attn_mask_type(MaskType::NoMask));
    let layer = TransformerLayer::new(&context, &config, &stream)?;
    let parameters = layer.parameters()?;
    let find = |name: &str| parameters.iter().find(|p| p.name == name).map(|p| &p.shape[..]);
    assert_eq!(find("layernorm_mlp.fc1_weight"), Some(&[128, 32][..]));
    assert_eq!(find("self_attention.layernorm_qkv.weight"), Some(&[96, 32][..]));
    // RMSNorm has no bias.
    assert_eq!(find("layernorm_mlp.layer_norm_bias"), None);
    let x = Tensor::from_slice(&numbers(8 * 2 * 32, 4), &[8, 2, 32], &stream)?;
    let y = Tensor::<f32>::zeros(&[8, 2, 32], &stream)?;
    layer.infer(&[&x], &[&y], &Step::new(), &stream)?;
    assert!(y.to_vec(&stream)?.iter().all(|y| y.is_finite()));
    Ok(())
}

/// A model whose logits are all equal: the loss is the logarithm of the vocabulary's size, whatever the tokens.
#[test]
fn a_model_of_modules_in_a_row() -> Result<()> {
    let stream = Stream::default();
    let context = Context::new()?;
    let config = EmbeddingConfig::new().vocabulary_size(24).hidden_size(16).init_std(0.0);
    let embedding = Embedding::new(&context, &config, &stream)?;
    let config = LinearConfig::new().in_features(16).out_features(16);
    let linear = Linear::new(&context, &config, &stream)?;
    let head = LMHead::new(&context, &LMHeadConfig::new().tied_to(&embedding), &stream)?;
    let model = Sequential::new(
        &context,
        &[("embedding", &embedding), ("linear", &linear), ("head", &head)],
    )?;
    let names: Vec<_> = model.parameters()?.into_iter().map(|parameter| parameter.name).collect();
    assert_eq!(names, ["embedding.weight", "linear.weight", "linear.bias"]);
    let tokens = Tensor::from_slice(&[0i32, 5, 23, 7], &[4], &stream)?;
    let targets = Tensor::from_slice(&[5i32, 23, 7, 0], &[4], &stream)?;
    let loss = Tensor::<f32>::zeros(&[1], &stream)?;
    model.infer(&[&tokens, &Missing, &targets], &[&loss], &Step::new(), &stream)?;
    assert_close(&loss.to_vec(&stream)?, &[24f64.ln()], 1e-5);
    Ok(())
}

#[test]
fn values_are_assigned_and_read() -> Result<()> {
    let stream = Stream::default();
    let context = Context::new()?;
    let config = LinearConfig::new().in_features(16).out_features(16).dtype(DType::BFloat16);
    let linear = Linear::new(&context, &config, &stream)?;
    // Multiples of 1/8 up to 32 are numbers of BFloat16.
    let values: Vec<f32> = (0..256).map(|i| i as f32 / 8.0).collect();
    linear.assign(0, &Tensor::from_slice(&values, &[16, 16], &stream)?, &stream)?;
    let read = Tensor::<f32>::zeros(&[16, 16], &stream)?;
    linear.read(0, &read, &stream)?;
    assert_eq!(read.to_vec(&stream)?, values);
    let bits = Tensor::<BF16>::zeros(&[16, 16], &stream)?;
    linear.read(0, &bits, &stream)?;
    assert_eq!(bits.to_vec(&stream)?.into_iter().map(f32::from).collect::<Vec<_>>(), values);
    Ok(())
}

#[test]
fn delayed_scaling_is_saved_and_loaded() -> Result<()> {
    let stream = Stream::default();
    let recipe = Recipe::new(&RecipeConfig::new(RecipeKind::DelayedScaling).amax_history_len(4))?;
    let state = |scale: f32| -> Result<Vec<u8>> {
        let context = Context::new()?;
        let config = LinearConfig::new().name("layer").in_features(16).out_features(16);
        let linear = Linear::new(&context, &config, &stream)?;
        let x = Tensor::from_slice(&[scale; 256], &[16, 16], &stream)?;
        let y = Tensor::<f32>::zeros(&[16, 16], &stream)?;
        let tape =
            context.autocast(&recipe, || linear.forward(&[&x], &[&y], &Step::new(), &stream))??;
        context.forward_update(&stream)?;
        drop(tape);
        let saved = context.save(&stream)?;
        let other = Context::new()?;
        other.load(&saved, &stream)?;
        assert_eq!(other.save(&stream)?, saved);
        let error = other.load(&saved[..saved.len() - 1], &stream).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        Ok(saved)
    };
    assert_ne!(state(1.0)?, state(2.0)?);
    Ok(())
}

#[test]
fn errors_are_results() -> Result<()> {
    let stream = Stream::default();
    let context = Context::new()?;
    let error = Linear::new(&context, &LinearConfig::new().in_features(16), &stream).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().contains("out_features"), "{error}");

    let config = LinearConfig::new().in_features(16).out_features(16);
    let linear = Linear::new(&context, &config, &stream)?;
    let x = Tensor::<f32>::zeros(&[4, 8], &stream)?;
    let y = Tensor::<f32>::zeros(&[4, 16], &stream)?;
    let error = linear.infer(&[&x], &[&y], &Step::new(), &stream).unwrap_err();
    assert!(error.message().contains("expected"), "{error}");
    // The error is told once: later calls succeed.
    let x = Tensor::<f32>::zeros(&[4, 16], &stream)?;
    linear.infer(&[&x], &[&y], &Step::new(), &stream)?;

    let error = Tensor::from_slice(&[1.0f32; 3], &[2, 2], &stream).unwrap_err();
    assert!(error.message().contains("expected 4 elements"), "{error}");
    let error = Tensor::<f32>::zeros(&[usize::MAX, 2], &stream).unwrap_err();
    assert!(error.message().contains("too many elements"), "{error}");
    Ok(())
}

#[test]
fn threads_have_their_own_contexts() {
    fn is_send<T: Send>() {}
    is_send::<Context>();
    is_send::<Tensor<f32>>();
    is_send::<Recipe>();
    let run = || linear_agrees(None, float32_tolerance()?);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        for thread in threads {
            thread.join().expect("no panic").expect("no error");
        }
    });
}
